"""What a runner says of its jobs, to topic `$sys/pipeline/<job>`, and what others tell from it.

1. A report comes at each change of state, after micro-batches but not more often than once a second, and every few
   seconds if nothing happens: a job that nothing is heard of is taken for dead.
2. The last report of a job says all there is to say.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import NoSuchTopic
from stafeta.times import iso

if TYPE_CHECKING:
    from stafeta.clients.flight.connection import Connection

ROOT: Final = "$sys/pipeline"
CONTROL: Final = f"{ROOT}/control"
SILENCE: Final = 10.0
"""Seconds after which a runner that says nothing is not taken for alive."""

ENDED: Final = ("failed", "stopped", "finished")


@dataclass(frozen=True)
class Report:
    job: str
    state: str = "starting"
    """starting, running, waiting (to be started again), failed, stopped or finished."""

    since: str = ""
    batch: int = -1
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int = 0
    restarts: int = 0
    error: str = ""
    runner: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{ROOT}/{self.job}"

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> str:
        plain = {name: value for name, value in vars(self).items() if name != "figures"}
        return json.dumps({**self.figures, **plain}, default=str, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Report | None":
        """The report, unless somebody else has written there."""
        try:
            plain = json.loads(text)
            known = {name: plain.pop(name) for name in list(plain) if name in cls.__dataclass_fields__}
            report = cls(**known)
            fine = [type(getattr(report, name)) for name in ("job", "state", "since", "batch", "rows")]
            if fine != [str, str, str, int, int]:
                return None
            return replace(report, figures=plain)
        except (ValueError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Heard:
    """The last report of a job, and when it came."""

    report: Report
    at: datetime

    def silent(self, now: datetime | None = None) -> bool:
        """Whether its runner should have said something since."""
        age = ((now or datetime.now(UTC)) - self.at).total_seconds()
        return not self.report.ended and age > SILENCE


def moment() -> str:
    return iso(datetime.now(UTC), "milliseconds")


def last_reports(broker: "Connection") -> dict[str, Heard]:
    """What was last heard of each job."""
    found: dict[str, Heard] = {}
    for topic in broker.topics(f"{ROOT}/+"):
        if topic.topic == CONTROL or topic.next <= topic.first:
            continue
        try:
            rows = broker.read(
                topic.topic, start=topic.next - 1, columns=["timestamp", "payload"]
            ).to_pylist()
        except NoSuchTopic:  # which it was a moment ago
            continue
        for row in rows:
            report = Report.from_json(row["payload"])
            if report is not None and report.topic == topic.topic:
                at = row["timestamp"]
                found[report.job] = Heard(report, at if at.tzinfo else at.replace(tzinfo=UTC))
    return found
