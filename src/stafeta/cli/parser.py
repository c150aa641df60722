"""The parser of all commands: its help ends with examples, and with what exit codes say."""

import argparse

from stafeta.cli import exits

_ALWAYS = (exits.OK, exits.USAGE, exits.OUTPUT, exits.INTERRUPTED, exits.BROKEN_PIPE)


class Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        from stafeta.cli.examples import EXAMPLES

        examples, codes = EXAMPLES[self.prog.partition(" ")[2]]
        lines = ["", "examples:", *(f"  {example}" for example in examples)]
        lines += ["", "exit codes:"]
        lines += [f"  {code:<3}  {exits.MEANINGS[code]}" for code in sorted({*_ALWAYS, *codes})]
        return super().format_help() + "\n".join(lines) + "\n"
