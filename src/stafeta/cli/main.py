"""The command `stafeta`.

Each command group is a module with a function `register`, which describes its commands and imports nothing that is
slow to import; what a command needs is imported when it runs. Where a command is named, only its group is imported.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from stafeta import __version__
from stafeta.cli import connection, credentials, exits, streams
from stafeta.cli.parser import Parser
from stafeta.errors import ConfigError, StafetaError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    streams.prepare()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except streams.Unwritable as error:
        streams.abandon()
        if error.nobody_reads:
            return exits.BROKEN_PIPE
        _complain(error)
        return exits.OUTPUT
    finally:
        streams.settle_errors()
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        words = in_order(arguments)
        options = parser_for(words).parse_args(words)
        credentials.take(options)
        code: int = options.run(options)
    except SystemExit:  # after help, or what is wrong with the arguments
        sys.stdout.flush()
        raise
    except StafetaError as error:
        _complain(error)
        return exits.code_of(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return code


def _complain(error: Exception) -> None:
    with suppress(OSError):  # there is nobody to read it
        print(f"stafeta: {error}", file=sys.stderr)


# The groups in the order of the help, each with its commands.
_GROUPS = {
    "serve": ("serve",),
    "messages": ("put", "pub", "sub", "unsub"),
    "get": ("get",),
    "watch": ("watch", "tail"),
    "overview": ("topics", "stats", "clients", "subs"),
    "shell": ("shell",),
    "upkeep": ("check", "skip"),
    "backup": ("backup", "restore"),
    "users": ("user", "token", "role"),
    "keys": ("keys",),
    "init": ("init",),
    "devices": ("devices",),
    "bench": ("bench",),
    "spark": ("spark",),
    "pipeline": ("pipeline",),
    "sql": ("sql",),
    "completion": ("completion",),
}
_NESTED = ("devices", "pipeline", "user", "token", "role")  # whose commands have commands
# What may stand before the command, and whether a value follows.
_LEADING = {
    "--broker": True,
    "--state": True,
    "--client": True,
    "--timeout": True,
    "--retries": True,
    "--curve-server": True,
    "--curve-key": True,
    "--json": False,
}


def in_order(words: Sequence[str]) -> list[str]:
    """The words of a command line, with the options that stand before the command behind it."""
    at = 0
    while at < len(words):
        name, equals, _ = words[at].partition("=")
        if name not in _LEADING:
            break
        at += 1 + (_LEADING[name] and not equals)
    leading, command = words[:at], words[at:]
    behind = 2 if command[:1] and command[0] in _NESTED else 1
    return [*command[:behind], *leading, *command[behind:]]


def parser_for(words: Sequence[str]) -> Parser:
    """The parser of a command line. Without a command it has all of them."""
    parser = Parser(
        prog="stafeta",
        description="A reliable publish/subscribe broker: one durable log, many doors.",
        epilog="'stafeta COMMAND --help' tells about a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions of Stafeta and its parts"
    )
    connection.add_options(parser, "broker, before the command or behind it")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(run=lambda options: _nothing_to_do(parser))
    named = [group for group, names in _GROUPS.items() if words and words[0] in names]
    for group in named or _GROUPS:
        import_module(f"stafeta.cli.{group}").register(commands)
    return parser


def _nothing_to_do(parser: Parser) -> int:
    parser.print_help()
    raise ConfigError("A command is missing.")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        import platform
        import sqlite3
        from importlib.metadata import PackageNotFoundError, version

        try:
            spark = version("pyspark")
        except PackageNotFoundError:
            spark = "not installed"
        parts = {
            "Python": platform.python_version(),
            "Arrow": version("pyarrow"),
            "SQLite": sqlite3.sqlite_version,
            "Spark": spark,
        }
        said = ", ".join(f"{name} {number}" for name, number in parts.items())
        print(f"stafeta {__version__} ({said})")
        parser.exit()
