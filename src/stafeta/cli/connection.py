"""How a command reaches its broker, and where it keeps what it must remember between two runs."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stafeta import state
from stafeta.cli import credentials
from stafeta.errors import ConfigError

if TYPE_CHECKING:
    from stafeta.clients.zeromq.client import Client

_LONGEST_NAME = 40  # characters
_ADDRESS = "tcp://127.0.0.1:9001"


def add_options(parser: argparse.ArgumentParser, title: str = "broker") -> None:
    """Adds the options that every command with a broker has, before its name or behind it."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--broker", metavar="ADDRESS", help=f"address of the broker (STAFETA_BROKER; {_ADDRESS})"
    )
    group.add_argument(
        "--state",
        metavar="DIR",
        help="folder where clients remember what they have sent and received (STAFETA_STATE; ~/.local/state/stafeta)",
    )
    group.add_argument(
        "--client",
        metavar="NAME",
        default="default",
        help="which client to be: each has its own subscriptions (default)",
    )
    group.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="how long to wait for a reply (5)"
    )
    group.add_argument(
        "--retries", metavar="N", type=int, default=3, help="how often to try before giving up (3)"
    )
    credentials.add_curve(group)


def publisher(options: argparse.Namespace) -> "Client":
    """The client that puts."""
    return _client(options, "publisher")


def subscriber(options: argparse.Namespace) -> "Client":
    """The client that subscribes and gets. Not the one that puts, so that one can follow while the other puts."""
    return _client(options, "subscriber")


def visitor(options: argparse.Namespace) -> "Client":
    """A client that has nothing to remember."""
    return _client(options, None)


def state_folder(options: argparse.Namespace) -> Path:
    """The folder of the client that was asked for."""
    name: str = options.client
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"--client: {name!r} is not a name; it must be one that a folder can have.")
    return (Path(options.state) if options.state else state.folder()) / name


def _client(options: argparse.Namespace, role: str | None) -> "Client":
    from stafeta.clients.zeromq.client import Client

    address: str = options.broker or os.environ.get("STAFETA_BROKER") or _ADDRESS
    # What is kept for one broker must not go to another.
    place = address.removeprefix("tcp://").replace("%", "%25").replace("/", "%2F")
    return Client(
        address,
        state_folder(options) / place / role if role else None,
        timeout=options.timeout,
        retries=options.retries,
        name=_known_as(options.client),
    )


def _known_as(client: str) -> str:
    """What the client is called by people who look at the broker."""
    letters = f"{client}@{os.uname().nodename}"[:_LONGEST_NAME]
    return "".join(letter if letter.isalnum() or letter in "._@-" else "_" for letter in letters)
