"""`stafeta devices server`: a broker with only the devices door, watched over by a person."""

import argparse
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from stafeta.cli.output import Output
from stafeta.cli.typed import Typed

if TYPE_CHECKING:
    from stafeta.config import Config

_STARTING: Final = 0.005  # seconds between two looks at whether the broker has started
_FAREWELL: Final = 0.1  # seconds for the last lines, if nobody reads them


def run(options: argparse.Namespace, port: int) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _pass_on)
    with _folder(options.data) as folder:
        config = _config(options, port, folder)
        from stafeta.doors.devices.sockets import bind

        # Before all the rest is imported, which takes its time: whoever connects meanwhile waits to be accepted.
        bound = [bind(address.host, address.port) for address in config.addresses(config.devices.listen)]
        from stafeta.server import run as run_server

        output = Output()

        def observer(line: str) -> None:
            if not output.full:  # nobody has read the last thousands: the broker does not wait, nor grow
                output.write(line.encode() + b"\n")

        threading.Thread(target=_wait_for_exit, daemon=True).start()
        code = run_server(config, lambda: config, observer, bound)
        output.finish(_FAREWELL)
    return code


def _config(options: argparse.Namespace, port: int, folder: str) -> "Config":
    from stafeta.config.sources import Setting, build, from_assignment

    flags = {
        "--host": (("host",), options.host),
        "--log-level": (("log_level",), options.log_level or "warning"),
        "--data": (("data",), folder),
        "PORT": (("devices", "listen"), port),
        "--allow-anyone": (("allow_anyone",), options.allow_anyone),
    }
    durability = "fsync" if options.data else "os"  # what is thrown away need not reach the disk
    return build(
        [
            Setting(("durability",), durability, "--data"),
            *(from_assignment(text, "--set") for text in options.set),
            *(Setting(key, value, flag) for flag, (key, value) in flags.items() if value is not None),
            *(
                Setting((door, "listen"), "off", "devices server")
                for door in ("zeromq", "frames", "flight", "http")
            ),
        ]
    )


@contextmanager
def _folder(given: str | None) -> Iterator[str]:
    """The folder of the log: the one that was given, or one that is gone afterwards."""
    if given is not None:
        yield given
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="stafeta-devices-", ignore_cleanup_errors=True) as folder:
        yield folder


def _wait_for_exit() -> None:
    typed = Typed()
    while typed.descriptor is not None:
        select.select([typed.descriptor], [], [])
        if any(words[:1] == ["exit"] for words in typed.read()):
            _leave(signal.SIGTERM)
            return


def _pass_on(number: int, frame: FrameType | None) -> None:
    """A signal that comes before the broker has its own way to leave is kept until then."""
    threading.Thread(target=_leave, args=(number,), daemon=True).start()


def _leave(number: int) -> None:
    while signal.getsignal(number) is _pass_on:
        time.sleep(_STARTING)
    os.kill(os.getpid(), number)
