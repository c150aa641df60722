"""The broker that is measured: one of our own, in a process of its own, or one that runs already."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from stafeta.addresses import Address
from stafeta.errors import NoReply

_LISTENING = re.compile(r": listening on (?:\w+://)?(\S+)$")
_POLL_INTERVAL: Final = 0.1  # seconds between two looks at something else
_START: Final = 60.0  # seconds to begin listening
_EXIT_TIMEOUT: Final = 60.0  # seconds to leave, and to remove its folder
_REACH: Final = 5.0  # seconds to answer


class OwnBroker:
    """A broker with one door open, on a temporary folder. It and its folder are gone afterwards."""

    def __init__(self, door: str, meanwhile: Callable[[], None]) -> None:
        """`meanwhile` is called while it starts; where that raises, it is ended again."""
        self._door = door
        self._meanwhile = meanwhile
        self._lines: deque[str] = deque(maxlen=20)
        self._told = threading.Event()
        self.address = ""  # HOST:PORT

    def check(self) -> None:
        """Raises `NoReply` where it has ended."""
        if not self._reader.is_alive():
            raise NoReply(f"The broker has ended:\n{''.join(self._lines)}".rstrip())

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stafeta.bench.host", self._door],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            env=environment(),
            process_group=0,  # Ctrl-C is for the one who measures
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            deadline = time.monotonic() + _START
            while not self._told.wait(_POLL_INTERVAL) and time.monotonic() < deadline:
                self._meanwhile()
            if not self.address:
                raise NoReply(f"The broker has not started:\n{''.join(self._lines)}".rstrip())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            if not self.address and (found := _LISTENING.search(line.rstrip())):
                self.address = found[1]
                self._told.set()
        self._told.set()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stderr.close()


def reach(host: str, port: int) -> None:
    """Raises `NoReply` where nobody listens."""
    try:
        socket.create_connection((host, port), _REACH).close()
    except (OSError, UnicodeError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise NoReply(
            f"No broker answers at {Address(host, port)}: {why}. Does it run, with this door open?"
        ) from None


def environment() -> dict[str, str]:
    """That of the processes of a run: nothing in it configures a broker."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
