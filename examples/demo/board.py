"""What is known of the demo while it runs, for whoever shows it."""

import json
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

WIDTH: Final = 60  # readings of a sensor that are remembered
_MEMORY: Final = 5.0  # seconds over which the rate is told


@dataclass
class Line:
    """The last readings of a sensor."""

    text: str = ""
    kind: str = ""
    at: float = 0.0
    values: deque[float] = field(default_factory=lambda: deque(maxlen=WIDTH))


class Message(NamedTuple):
    topic: str
    kind: str
    payload: bytes


class Rolled(NamedTuple):
    """A window that was closed."""

    topic: str
    readings: int
    low: float
    mean: float
    high: float
    end: str


class Alert(NamedTuple):
    raised: bool
    rule: str
    topic: str
    message: str
    time: str


class Shelf(NamedTuple):
    """What is in the lake, and in the log after it."""

    rows: int = 0
    files: int = 0
    size: int = 0
    log: int = 0


class Board:
    """Is told by several threads, and shown by another: `lock` is held for either."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.seconds: float | None = None
        self.doing = "a day lasts a minute"
        self.page = ""
        """Where the dashboard is."""
        self.off = False
        """Whether the sensors have stopped."""
        self.lines: dict[str, Line] = {}
        self.messages = 0
        self.rolled: deque[Rolled] = deque(maxlen=20)
        self.counted: Counter[str] = Counter()
        """Of each topic, how many readings its windows have counted."""
        self.windows = 0
        self.alerts: deque[Alert] = deque(maxlen=20)
        self.standing: set[tuple[str, str]] = set()
        """The rules, and their topics, that are raised now."""
        self.raised = self.cleared = 0
        self.jobs: dict[str, dict[str, Any]] = {}
        self.shelf = Shelf()
        self._came: deque[tuple[float, int]] = deque()

    @property
    def rate(self) -> float:
        """Readings a second, of late."""
        since = time.monotonic() - _MEMORY
        return sum(count for at, count in self._came if at > since) / _MEMORY

    def take(self, messages: list[Message]) -> None:
        """Messages of all topics, as they come."""
        now = time.monotonic()
        with self.lock:
            readings = 0
            for message in messages:
                first = message.topic.partition("/")[0]
                if first == "rollup":
                    self._rolled(json.loads(message.payload))
                elif first == "alerts":
                    self._alerted(json.loads(message.payload))
                else:
                    readings += 1
                    self._read(message, now)
            self.messages += readings
            self._came.append((now, readings))
            while self._came[0][0] < now - _MEMORY:
                self._came.popleft()

    def hear(self, reports: list[Message]) -> None:
        """What jobs say of themselves."""
        with self.lock:
            for report in reports:
                said = json.loads(report.payload)
                if "job" in said:
                    self.jobs[said["job"]] = said

    def _read(self, message: Message, now: float) -> None:
        line = self.lines.setdefault(message.topic, Line())
        line.text, line.kind, line.at = message.payload.decode(), message.kind, now
        if line.kind in ("int", "short_real", "float"):
            line.values.append(float(line.text))

    def _rolled(self, said: dict[str, Any]) -> None:
        self.windows += 1
        self.counted[said["topic"]] += said["count"]
        self.rolled.append(
            Rolled(said["topic"], said["count"], said["min"], said["mean"], said["max"], said["end"])
        )

    def _alerted(self, said: dict[str, Any]) -> None:
        raised = said["state"] == "raised"
        change = self.standing.add if raised else self.standing.discard
        change((said["rule"], said["topic"]))
        self.raised += raised
        self.cleared += not raised
        self.alerts.append(Alert(raised, said["rule"], said["topic"], said["message"], said["time"]))
