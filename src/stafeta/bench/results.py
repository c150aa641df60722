"""What a run has measured, put together from what its publishers and subscribers say."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from stafeta.bench.delivery_stats import SLOT
from stafeta.bench.histogram import Histogram
from stafeta.bench.plan import DOORS, Plan

PERCENTS: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}
_MOUNTS = Path("/proc/self/mounts")


class Flow(NamedTuple):
    """Messages, and the seconds from the start to the last of them."""

    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


class Report(NamedTuple):
    plan: Plan
    broker: str  # which one it was
    promise: str
    published: Flow  # up to the last acknowledgement, where there are any
    delivered: Flow  # to all subscribers together
    acknowledgement: Histogram | None  # from the time at which a message was to be sent
    delivery: Histogram
    lost: int
    repeated: int
    timeline: list[int]  # how many were delivered in each tenth of a second

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "settings": self.plan.to_plain(),
            "broker": self.broker,
            "promise": self.promise,
            "published": _flow(self.published, self.plan.size),
            "delivered": _flow(self.delivered, self.plan.size),
            "latency_ms": {
                "acknowledgement": latency_ms(self.acknowledgement),
                "delivery": latency_ms(self.delivery),
            },
            "lost": self.lost,
            "repeated": self.repeated,
            "timeline": {"seconds": SLOT / 1e9, "delivered": self.timeline},
        }


def report(
    plan: Plan,
    own: bool,
    start: int,
    published: Sequence[dict[str, Any]],
    delivered: Sequence[dict[str, Any]],
) -> Report:
    """Of what workers have said once they were done."""
    door = DOORS[plan.door]
    slots = sum((Counter(dict(one["slots"])) for one in delivered), Counter[int]())
    first = start // SLOT
    disk = filesystem(Path(tempfile.gettempdir()))
    return Report(
        plan,
        f"started for this run, durability fsync, its log on {disk}" if own else plan.address,
        door.promise if own else f"{door.promise}, if its durability is fsync",
        Flow(sum(one["published"] for one in published), _until(start, [one["end"] for one in published])),
        Flow(sum(slots.values()), _until(start, [one["last"] for one in delivered])),
        Histogram.merged(one["latency"] for one in published) if door.acknowledges else None,
        Histogram.merged(one["latency"] for one in delivered),
        sum(one["lost"] for one in delivered),
        sum(one["repeated"] for one in delivered),
        [slots[slot] for slot in range(first, max(slots, default=first - 1) + 1)],
    )


def latency_ms(histogram: Histogram | None) -> dict[str, float] | None:
    """Percentiles and the largest, in milliseconds; None where there are none."""
    if histogram is None or not histogram.total:
        return None
    found = dict(zip(PERCENTS, histogram.percentiles(PERCENTS.values()), strict=True))
    return {name: round(value / 1e6, 4) for name, value in {**found, "max": histogram.largest}.items()}


def filesystem(folder: Path) -> str:
    """That of a folder: on one that lives in memory a sync costs nothing, and figures mean little."""
    if not _MOUNTS.exists():
        return "an unknown disk"
    mounts = {}
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        _, place, kind, *_ = line.split()
        mounts[Path(place)] = kind
    folder = folder.resolve()
    return next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "an unknown disk")


def _flow(flow: Flow, size: int) -> dict[str, float]:
    return {
        "messages": flow.messages,
        "seconds": round(flow.seconds, 6),
        "per_second": round(flow.rate, 1),
        "mb_per_second": round(flow.rate * size / 1e6, 3),
    }


def _until(start: int, ends: Sequence[int]) -> float:
    return (max(start, *ends) - start) / 1e9
