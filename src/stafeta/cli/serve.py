"""`stafeta serve`: runs a broker."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from stafeta.cli.configured import add_assignments, add_file

if TYPE_CHECKING:
    from stafeta.config import Config, Setting


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run a broker",
        description="Runs a broker until SIGTERM or SIGINT; SIGHUP makes it read its configuration again. "
        "A flag wins over the environment (STAFETA_DATA, STAFETA_ZEROMQ_MAX_FRAME, ...), which wins over the file.",
        epilog="LIST is ports and HOST:PORTs parted by commas; port 0 is any free one.",
        allow_abbrev=False,
    )
    from stafeta.config.options import FLAGS

    add_file(parser)
    for key, (metavar, text) in FLAGS.items():
        flag = flag_of(key)
        if metavar:
            parser.add_argument(flag, metavar=metavar, help=text, dest=flag)
        else:
            parser.add_argument(flag, action="store_const", const=True, help=text, dest=flag)
    add_assignments(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="print the effective configuration and who may come in instead of running",
    )
    parser.add_argument("--json", action="store_true", help="with --check: print it as JSON")
    parser.set_defaults(run=run)


def flag_of(key: tuple[str, ...]) -> str:
    """The flag of an option: a door's listen has the name of the door."""
    return "--" + (key[0] if key[-1] == "listen" else key[-1]).replace("_", "-")


def run(options: argparse.Namespace) -> int:
    from stafeta.config import load

    flags = _settings(options)

    def reload() -> "Config":
        return load(options.config, flags)

    config = reload()
    if options.check or options.json:
        return _check(config, options)
    return _serve(config, reload)


def _settings(options: argparse.Namespace) -> "list[Setting]":
    from stafeta.config import Setting
    from stafeta.config.options import FLAGS
    from stafeta.config.sources import from_assignment

    given = {key: vars(options)[flag_of(key)] for key in FLAGS}
    return [
        *(from_assignment(text, "--set") for text in options.set),
        *(Setting(key, value, flag_of(key)) for key, value in given.items() if value is not None),
    ]


def _check(config: "Config", options: argparse.Namespace) -> int:
    from stafeta.cli import exits
    from stafeta.cli.doors_table import table
    from stafeta.errors import ConfigError

    if not options.check:
        raise ConfigError("--json goes with --check; for a log in JSON write --log-format json.")
    if options.json:
        import json

        print(json.dumps(config.to_plain(), indent=2, ensure_ascii=False))
    else:
        print(config.to_toml(), end="")
        print("", *(f"# {line}" for line in table(config)), sep="\n")
    return exits.OK


def _serve(config: "Config", reload: "Callable[[], Config]") -> int:
    from stafeta.server import run as run_server

    return run_server(config, reload)
