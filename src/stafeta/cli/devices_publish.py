"""`stafeta devices publish`: readings by UDP, one or those of a file.

1. A line of a file that is no reading is reported by its number and left out. The others are sent; the exit code is 1.
2. A file is begun anew as often as `--count` takes. Standard input is read once.
3. `--rate` is a limit: what could not be sent in time (a slow pipe, say) is not made up for in a burst.
"""

import argparse
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, repeat
from typing import BinaryIO, Final

from stafeta.cli import exits
from stafeta.cli.numbers import positive, whole
from stafeta.clients.devices import Publisher, kind_of, payload_of
from stafeta.doors.devices.readings import write
from stafeta.errors import ConfigError, InvalidMessage
from stafeta.progress import Progress

_TICK: Final = 0.001  # seconds that are not worth a sleep
_CATCH_UP: Final = 0.05  # seconds by which it may be late and still make up for it


def run(options: argparse.Namespace, port: int) -> int:
    count = None if options.count is None else whole("--count", options.count)
    pace = Pace(None if options.rate is None else positive("--rate", options.rate))
    reading = (options.topic, options.kind, options.value)
    if options.file is None:
        if None in reading:
            raise ConfigError("Name a TOPIC, a KIND and a VALUE, or a file with --from.")
        count = count or 1
        _send(
            options.host, port, repeat(_datagram(*reading), count), pace, Progress(lambda sent: sent / count)
        )
        return exits.OK
    if reading != (None, None, None):
        raise ConfigError("--from has the readings in a file: leave TOPIC, KIND and VALUE out.")
    file = File(options.file, endless=count is not None)
    progress = Progress(lambda sent: sent / count if count else file.fraction)
    file.complain = progress.say
    print(_send(options.host, port, islice(file, count), pace, progress))
    return exits.REFUSED if file.failed else exits.OK


def _send(host: str, port: int, datagrams: Iterable[bytes], pace: "Pace", progress: Progress) -> int:
    with Publisher(host, port) as publisher, progress:
        for datagram in datagrams:
            pace.wait()
            publisher.send(datagram)
            progress.advance()
    return progress.sent


class Pace:
    """Lets through so many a second."""

    def __init__(self, rate: float | None) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._due = 0.0

    def wait(self) -> None:
        if not self._interval:
            return
        now = time.monotonic()
        if now < self._due - _TICK:
            time.sleep(self._due - now)
        elif now > self._due + _CATCH_UP:
            self._due = now
        self._due += self._interval


class File:
    """The readings of a file of JSON lines, as datagrams; again and again if it is `endless`."""

    def __init__(self, name: str, endless: bool) -> None:
        self._name = "standard input" if name == "-" else name
        self._standard_input = name == "-"
        self._endless = endless and not self._standard_input
        self._size = self._read = 0
        self.failed = False
        self.complain: Callable[[str], None] = print

    @property
    def fraction(self) -> float | None:
        """How much of the file has been read, where it is one that has a size."""
        return min(self._read / self._size, 1.0) if self._size else None

    def __iter__(self) -> Iterator[bytes]:
        complain = self._complain
        while True:
            found = False
            for datagram in self._once(complain):
                found = True
                yield datagram
            if not (self._endless and found):
                return
            complain = _keep_quiet  # of lines that have been complained of

    def _once(self, complain: Callable[[str], None]) -> Iterator[bytes]:
        with self._open() as lines:
            self._size = _size(lines)
            self._read = 0
            for number, line in enumerate(lines, 1):
                self._read += len(line)
                if line.isspace():
                    continue
                try:
                    datagram = _parse(line)
                except InvalidMessage as error:
                    complain(f"stafeta: {self._name}, line {number}: {error}")
                else:
                    yield datagram

    def _open(self) -> AbstractContextManager[BinaryIO]:
        if self._standard_input:
            if sys.stdin is None:
                raise ConfigError("--from: there is no standard input.")
            return nullcontext(sys.stdin.buffer)
        try:
            return open(self._name, "rb")
        except OSError as error:
            raise ConfigError(f"--from: {self._name} cannot be read: {error.strerror}.") from None

    def _complain(self, sentence: str) -> None:
        self.failed = True
        self.complain(sentence)


def _keep_quiet(sentence: str) -> None:
    pass


def _size(file: BinaryIO) -> int:
    found = os.fstat(file.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _parse(line: bytes) -> bytes:
    """The datagram of a JSON line. Its numbers are taken as they are written."""
    try:
        fields = json.loads(line.decode(), parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        raise InvalidMessage("it is not JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidMessage('it is not an object with "topic", "kind" and "value".')
    words = []
    for key in ("topic", "kind", "value"):
        if key not in fields:
            raise InvalidMessage(f'it has no "{key}".')
        if not isinstance(fields[key], str):
            raise InvalidMessage(
                f'its "{key}" is {json.dumps(fields[key])[:40]}, which is no text or number.'
            )
        words.append(fields[key])
    return _datagram(*words)


def _datagram(topic: str, word: str, text: str) -> bytes:
    kind = kind_of(word)
    return write(topic, kind, payload_of(kind, text))
