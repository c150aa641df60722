"""The command `stafeta`.

Each command group is a module with a function `register`, which describes its commands and imports nothing that is
slow to import; what a command needs is imported when it runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from stafeta import __version__
from stafeta.cli import bench, devices, exits, messages, pipeline, serve, shell, spark, sql
from stafeta.errors import StafetaError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except StafetaError as error:
        print(f"stafeta: {error}", file=sys.stderr)
        return exits.code_of(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # What is still buffered would fail again when Python leaves, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stafeta",
        description="A reliable publish/subscribe broker: one durable log, many doors.",
        epilog="'stafeta COMMAND --help' tells about a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"stafeta {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve.register(commands)
    messages.register(commands)
    shell.register(commands)
    devices.register(commands)
    bench.register(commands)
    spark.register(commands)
    pipeline.register(commands)
    sql.register(commands)
    return parser
