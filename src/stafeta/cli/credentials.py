"""The flags that say who a command is, and whom it trusts. None of them takes a secret: they name files.

What they say goes into the environment of the command, where its clients look, and Spark and its workers after it.
"""

import argparse
import os

from stafeta.credentials import VARIABLES

_LOGIN = {
    "user": ("NAME", "the user that a password is for"),
    "password_file": ("FILE", "file with the user's password"),
    "token_file": ("FILE", "file with a token"),
}
_TLS = {
    "ca": ("FILE", "certificates of the authorities that are trusted, for TLS"),
    "cert": ("FILE", "the certificate that says who asks, for TLS"),
    "key": ("FILE", "its key"),
    "tls_hostname": ("NAME", "the name in the broker's certificate, if it is not the one in its address"),
}
_CURVE = {
    "curve_server": ("KEY", "the broker's public key, or its file, for CURVE"),
    "curve_key": ("FILE", "the key that says who asks, for CURVE"),
}


def add_flight(parser: argparse.ArgumentParser) -> None:
    """Those of commands that use the Flight door."""
    _add(parser, _LOGIN | _TLS)


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Those of commands that use a door without credentials of its own."""
    _add(parser, _TLS)


def add_curve(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Those of commands that use the ZeroMQ door."""
    _add(parser, _CURVE)


def take(options: argparse.Namespace) -> None:
    """Lets the command, and what it starts, have what the flags say."""
    given = vars(options)
    for name, variable in VARIABLES.items():
        value = given.get(f"credential_{name}")
        if value is not None:
            os.environ[variable] = value
            if name == "token_file":
                os.environ.pop(VARIABLES["token"], None)
            elif name == "password_file":
                os.environ.pop(VARIABLES["password"], None)


def _add(
    parser: argparse._ArgumentGroup | argparse.ArgumentParser, flags: dict[str, tuple[str, str]]
) -> None:
    for name, (metavar, text) in flags.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            dest=f"credential_{name}",
            help=f"{text} ({VARIABLES[name]})",
        )
