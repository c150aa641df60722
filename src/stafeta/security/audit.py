"""The log of who did what: logins, refusals, changes of users, administration. (docs/security.md)

1. An event is one JSON object. It goes to a file, one line each, to the topic `$sys/audit`, and refusals to the log.
2. All of it is bounded: what is the same within `SAME` seconds is counted and written once, no more than `RATE` events
   are written a second, and a file that is full becomes `<file>.1`, in place of the one before. Refusals, of which
   strangers cause any number, are counted apart: they leave nothing else out.
3. Events may come from any thread; they are written on the loop.
"""

import asyncio
import json
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from stafeta.addresses import network_of
from stafeta.logs import fields
from stafeta.times import iso

log = logging.getLogger("stafeta.audit")

TOPIC: Final = "$sys/audit"
SAME: Final = 10.0  # seconds
RATE: Final = 100  # events a second
REMEMBERED: Final = 1000  # events that may come again
WAITING: Final = 1000  # events that are to be written, of either
REFUSED: Final = "refused"  # what the others' names begin with


class Audit:
    """`publish` is given each event as bytes; with `path` they go to a file of at most `size` bytes, too."""

    def __init__(
        self,
        publish: Callable[[bytes], None],
        path: Path | None = None,
        size: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._path = path
        self._size = size
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[dict[str, object]] = deque()
        self._queued = [0, 0]  # of those, what was refused, and all else
        self._recent: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()
        self._second, self._written = 0.0, [0, 0]
        self._dropped = 0

    def record(self, event: str, **details: object) -> None:
        """Something has happened. A detail that is empty is left out."""
        kind = not event.startswith(REFUSED)
        if self._queued[kind] >= WAITING:
            self._dropped += 1
            return
        self._queued[kind] += 1
        found: dict[str, object] = {"time": iso(datetime.now(UTC), "milliseconds"), "event": event}
        self._waiting.append(
            found | {key: value for key, value in details.items() if value not in ("", None)}
        )
        if len(self._waiting) == 1:
            try:
                self._loop.call_soon_threadsafe(self.flush)
            except RuntimeError:  # the loop has gone
                self._waiting.clear()
                self._queued = [0, 0]

    def flush(self) -> None:
        """Write what has come."""
        lines: list[bytes] = []
        while self._waiting:
            event = self._waiting.popleft()
            kind = not str(event["event"]).startswith(REFUSED)
            self._queued[kind] -= 1
            if self._is_new(event, kind):
                # In ASCII: what strangers write moves no cursor of a terminal, and hides nothing in it.
                lines.append(json.dumps(event).encode() + b"\n")
                if not kind:
                    details = {key: value for key, value in event.items() if key not in ("time", "event")}
                    log.warning("%s", event["event"], extra=fields(**details))
        if not lines:
            return
        self._write(lines)
        for line in lines:
            self._publish(line.rstrip())

    def _is_new(self, event: dict[str, object], kind: bool) -> bool:
        """Whether it is to be written, with how often the same has come since it last was."""
        now = self._clock()
        address = network_of(str(event.get("address", "")))
        key = (
            *[event.get(one) for one in ("event", "user", "door", "operation", "topic", "why", "what")],
            address,
        )
        written, more = self._recent.get(key, (-SAME, 0))
        if now - written < SAME:
            self._recent[key] = written, more + 1
            return False
        if now - self._second >= 1.0:
            self._second, self._written = now, [0, 0]
        if self._written[kind] >= RATE:
            self._dropped += 1
            return False
        self._written[kind] += 1
        if more:
            event["again"] = more
        if self._dropped:
            event["not_written"], self._dropped = self._dropped, 0
        self._recent[key] = now, 0
        self._recent.move_to_end(key)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return True

    def _write(self, lines: list[bytes]) -> None:
        if self._path is None:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "ab") as file:
                file.writelines(lines)
                full = file.tell() >= self._size
            if full:
                os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        except OSError as error:
            log.error("the log of who did what cannot be written", extra=fields(why=error.strerror))
