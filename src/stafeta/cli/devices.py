"""`stafeta devices server`, `subscriber` and `publish`: the devices door from the shell."""

import argparse

from stafeta.cli import credentials

_PORT = "the port of the devices door, UDP and TCP"
_UNACKNOWLEDGED = "UDP has no acknowledgement: nobody says whether a reading has arrived."


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "devices",
        help="readings from devices: a server, a subscriber, a publisher",
        description="The devices door: readings come by UDP and go to subscribers by TCP.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_server(commands)
    _register_subscriber(commands)
    _register_publish(commands)


def _register_server(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "server",
        help="run a broker that has only this door",
        description="Runs a broker that has only the devices door, until it reads 'exit' or gets SIGTERM or SIGINT. "
        "Prints a line for each client that comes and goes.",
        allow_abbrev=False,
    )
    parser.add_argument("port", metavar="PORT", help=f"{_PORT}; 0 is any free one")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--allow-anyone", action="store_true", help="listen on an address that other machines can reach"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the log; without it everything is forgotten at the end"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="least line to log on standard error (warning)")
    parser.add_argument(
        "--set",
        metavar="SECTION.OPTION=VALUE",
        action="append",
        default=[],
        help="set any option of 'stafeta serve' (repeatable)",
    )
    parser.set_defaults(run=_run_server)


def _register_subscriber(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "subscriber",
        help="print what is published on topics",
        description="Reads 'subscribe TOPIC [SF]', 'unsubscribe TOPIC' and 'exit' from standard input and prints "
        "messages as they come, until the server closes. With SF 1 the server keeps what is published while this "
        "client is away; with SF 0, or none, it does not. TOPIC may have wildcards: + is one level, * any number.",
        allow_abbrev=False,
    )
    parser.add_argument("id", metavar="ID", help="the client's name, at most 10 ASCII characters")
    _add_address(parser)
    parser.add_argument("--tls", action="store_true", help="the server takes TLS")
    credentials.add_tls(parser)
    parser.set_defaults(run=_run_subscriber)


def _register_publish(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "publish",
        help="publish readings",
        description=f"Publishes a reading, or those in a file, by UDP. {_UNACKNOWLEDGED}",
        epilog="A VALUE that begins with '-' and is no number needs '--' before it.",
        allow_abbrev=False,
    )
    _add_address(parser)
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="at most 50 bytes")
    parser.add_argument("kind", metavar="KIND", nargs="?", help="int, short_real, float or string")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="decimals are kept as they are written")
    parser.add_argument(
        "--from",
        metavar="FILE",
        dest="file",
        help='publish JSON lines, {"topic": "a/b", "kind": "float", "value": 1.50} each; "-" is standard input',
    )
    parser.add_argument("--rate", metavar="N", help="at most so many a second (as fast as it goes)")
    parser.add_argument(
        "--count",
        metavar="N",
        help="so many in all; FILE is begun anew as often as that takes (once through)",
    )
    parser.set_defaults(run=_run_publish)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="where the server is")
    parser.add_argument("port", metavar="PORT", help=_PORT)


def _run_server(options: argparse.Namespace) -> int:
    from stafeta.cli.devices_server import run

    return run(options, port_of(options.port, least=0))


def _run_subscriber(options: argparse.Namespace) -> int:
    from stafeta.cli.devices_subscriber import run

    return run(options.id, options.host, port_of(options.port), tls=options.tls)


def _run_publish(options: argparse.Namespace) -> int:
    from stafeta.cli.devices_publish import run

    return run(options, port_of(options.port))


def port_of(text: str, least: int = 1) -> int:
    """The port that an argument names, or `ConfigError`."""
    from stafeta.errors import ConfigError

    if not (text.isascii() and text.isdigit() and least <= int(text[:6]) <= 65535):
        raise ConfigError(f"PORT must be a number from {least} to 65535, not {text[:40]!r}.")
    return int(text[:6])
