"""`stafeta serve`: runs a broker."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stafeta.config import Config, Setting

_LISTEN = "PORT|off|LIST"
# The options that have a flag of their own: their key, what stands for the value, what they mean.
FLAGS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "--data": (("data",), "DIR", "folder of the log (stafeta-data)"),
    "--host": (("host",), "ADDRESS", "address that doors listen on (127.0.0.1)"),
    "--zeromq": (("zeromq", "listen"), _LISTEN, "where the ZeroMQ door listens (9001)"),
    "--devices": (("devices", "listen"), _LISTEN, "where the devices door listens, UDP and TCP (12345)"),
    "--frames": (("frames", "listen"), _LISTEN, "where the frames door listens (5000)"),
    "--flight": (("flight", "listen"), _LISTEN, "where the Flight door listens (8815)"),
    "--durability": (("durability",), "fsync|os", "what a commit waits for: the disk, or the system (fsync)"),
    "--log-format": (("log_format",), "text|json", "form of the log on standard error (text)"),
    "--log-level": (("log_level",), "LEVEL", "least line to log: debug, info, warning or error (info)"),
}


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run a broker",
        description="Runs a broker until SIGTERM or SIGINT; SIGHUP makes it read its configuration again. "
        "A flag wins over the environment (STAFETA_DATA, STAFETA_ZEROMQ_MAX_FRAME, ...), which wins over the file.",
        epilog="LIST is ports and HOST:PORTs parted by commas; port 0 is any free one.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="read options from a TOML file (STAFETA_CONFIG)")
    for flag, (_, metavar, text) in FLAGS.items():
        parser.add_argument(flag, metavar=metavar, help=text, dest=flag)
    parser.add_argument(
        "--allow-anyone", action="store_true", help="listen on addresses that other machines can reach"
    )
    parser.add_argument(
        "--set",
        metavar="SECTION.OPTION=VALUE",
        action="append",
        default=[],
        help="set any option (repeatable)",
    )
    parser.add_argument(
        "--check", action="store_true", help="print the effective configuration, as TOML, instead of running"
    )
    parser.add_argument("--json", action="store_true", help="with --check: print it as JSON")
    parser.set_defaults(run=run)


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
    from stafeta.config.sources import from_assignment

    given = vars(options)
    settings = [from_assignment(text, "--set") for text in options.set]
    settings += [
        Setting(key, given[flag], flag) for flag, (key, *_) in FLAGS.items() if given[flag] is not None
    ]
    if options.allow_anyone:
        settings.append(Setting(("allow_anyone",), True, "--allow-anyone"))
    return settings


def _check(config: "Config", options: argparse.Namespace) -> int:
    from stafeta.cli import exits
    from stafeta.errors import ConfigError

    if not options.check:
        raise ConfigError("--json goes with --check; for a log in JSON write --log-format json.")
    if options.json:
        import json

        print(json.dumps(config.to_plain(), indent=2, ensure_ascii=False))
    else:
        print(config.to_toml(), end="")
    return exits.OK


def _serve(config: "Config", reload: "Callable[[], Config]") -> int:
    from stafeta.server import run as run_server

    return run_server(config, reload)
