"""Datagrams that show who has sent them: signed with a key that the devices share with the broker.
(docs/protocols/devices.md, Signed datagrams)

1. Behind the datagram come the sender's number, a time and a signature over all of that.
2. A time counts once for a sender, near the broker's own time, and later than the broker's start. So what was recorded
   is not taken again: within the window it is remembered, before it it is too old, and what was sent before a restart
   is older than that. Nothing has to be stored.
3. A sender from whom nothing has come for as long as a time counts is forgotten: there are as many as are active.
"""

import hmac
import os
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stafeta.errors import ConfigError, InvalidDatagram

SIGNATURE: Final = 16  # bytes: the first half of HMAC-SHA256
WINDOW: Final = 60.0  # seconds that a time may be before or after the broker's
REMEMBERED: Final = 64  # times of a sender; one that is before all of them comes too late
_STAMP: Final = struct.Struct(">QQ")  # sender, microseconds since 1970
TRAILER: Final = _STAMP.size + SIGNATURE
LEAST_KEY: Final = 16  # bytes
LARGEST: Final = (1 << 64) - 1


def sign(datagram: bytes, key: bytes, sender: int, micros: int) -> bytes:
    """The datagram as it is sent."""
    stamped = datagram + _STAMP.pack(sender, micros)
    return stamped + _signature(stamped, key)


def read_key(path: str | Path) -> bytes:
    """The key in a file: hexadecimal digits, at least 32. Raises `ConfigError`, also where others may read it."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(f"The key {path} is open to others than its owner: chmod 600 {path}")
            text = file.read(4096).strip()
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < LEAST_KEY:
        raise ConfigError(
            f"{path} has no key in it: it has at least {2 * LEAST_KEY} hexadecimal digits, such as "
            "'openssl rand -hex 32' writes."
        )
    return key


class Verifier:
    """Tells whether a datagram is a sender's, and comes for the first time."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock
        self._start = int(clock() * 1_000_000)
        self._senders: OrderedDict[int, set[int]] = OrderedDict()  # the last to be heard is the last

    def verify(self, data: bytes) -> bytes:
        """The datagram without what was added to it. Raises `InvalidDatagram`."""
        if len(data) < TRAILER:
            raise InvalidDatagram("The datagram is not signed.")
        stamped, signature = data[:-SIGNATURE], data[-SIGNATURE:]
        if not hmac.compare_digest(_signature(stamped, self._key), signature):
            raise InvalidDatagram("The datagram is not signed with the door's key.")
        sender, micros = _STAMP.unpack_from(stamped, len(stamped) - _STAMP.size)
        now = self._clock()
        if not self._start < micros or abs(micros - now * 1_000_000) > WINDOW * 1_000_000:
            raise InvalidDatagram("The datagram's time is too far from the broker's, or before its start.")
        self._note(sender, micros, int((now - WINDOW) * 1_000_000))
        return stamped[: -_STAMP.size]

    def _note(self, sender: int, micros: int, oldest: int) -> None:
        known = self._senders.get(sender)
        if known is None:
            known = self._senders[sender] = set()
            self._forget(oldest)
        if micros in known or (len(known) >= REMEMBERED and micros < min(known)):
            raise InvalidDatagram("The datagram has come before, or is later than those behind it.")
        known.add(micros)
        if len(known) > REMEMBERED:
            known.discard(min(known))
        self._senders.move_to_end(sender)

    def _forget(self, oldest: int) -> None:
        """Senders whose times do not count any more, whatever comes of them."""
        while self._senders:
            sender, times = next(iter(self._senders.items()))
            if not times or max(times) >= oldest:
                return
            del self._senders[sender]


def _signature(data: bytes, key: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")[:SIGNATURE]
