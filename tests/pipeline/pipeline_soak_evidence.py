"""What lake and broker hold in the end, as plain values to check."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from stafeta.clients.flight.connection import Connection
from stafeta.config.options import Lake as Settings
from stafeta.pipeline.lake import Lake
from tests.pipeline.pipeline_soak_checks import Event, Kept, Messages, Window, merged

SIZE = "1s"
HIGH, SILENT = "high", "silent"
"""The rules of alerts."""


class Evidence(NamedTuple):
    lake: dict[str, list[Kept]]
    log: dict[str, list[Kept]]
    ends: dict[str, int]
    """The next offset of each topic."""
    table: list[Window]
    """Rollups in the lake."""
    dead: list[tuple[str, int]]
    """Topics and offsets of the dead in the lake."""

    def kept(self) -> dict[str, list[Kept]]:
        return merged(self.lake, self.log)


def gathered(settings: Settings, broker: Connection) -> Evidence:
    lake = Lake(settings)
    columns = ("topic", "offset", "payload")
    return Evidence(
        _by_topic(lake.table("messages").scan(selected_fields=columns).to_arrow()),
        _by_topic(broker.read("#", columns=list(columns))),
        {one.topic: one.next for one in broker.topics("#")},
        [
            Window(row["topic"], _micros(row["start"]), row["count"])
            for row in lake.table("rollups")
            .scan(selected_fields=("topic", "start", "count"))
            .to_arrow()
            .to_pylist()
        ],
        [
            (row["topic"], row["offset"])
            for row in lake.table("dead").scan(selected_fields=("topic", "offset")).to_arrow().to_pylist()
        ],
    )


def windows(kept: Messages) -> list[Window]:
    """The rollups that were published."""
    return [
        Window(topic, _micros(datetime.fromisoformat(told["start"])), told["count"])
        for topic, _, told in _told(kept, f"rollup/{SIZE}/")
    ]


def alerts(kept: Messages) -> dict[str, list[Event]]:
    """Those of the rule for the limit, by the topic of the readings."""
    found: dict[str, list[Event]] = {}
    for topic, _, told in _told(kept, f"alerts/{HIGH}/"):
        found.setdefault(topic, []).append(Event(told["state"], told["offset"]))
    return found


def silences(kept: Messages) -> dict[str, list[tuple[str, float]]]:
    """States and times of the rule for sensors that stopped, by their topic."""
    found: dict[str, list[tuple[str, float]]] = {}
    for topic, _, told in _told(kept, f"alerts/{SILENT}/"):
        when = datetime.fromisoformat(told["time"]).timestamp()
        found.setdefault(topic, []).append((told["state"], when))
    return found


def dead(kept: Messages) -> list[tuple[str, int]]:
    """Topics and offsets of the dead that were published."""
    return [(topic, told["offset"]) for topic, _, told in _told(kept, "dead/")]


def reports(broker: Connection) -> dict[str, Mapping[str, Any]]:
    """The last report of each job."""
    found = {}
    for row in broker.read("$sys/pipeline/+", columns=["topic", "payload"]).to_pylist():
        name = row["topic"].rpartition("/")[2]
        if name != "control":
            found[name] = json.loads(row["payload"])
    return found


def _told(kept: Messages, prefix: str) -> Iterator[tuple[str, int, Any]]:
    """What the topics below a prefix say: about which topic, with which offset, and what."""
    for topic, messages in kept.items():
        if topic.startswith(prefix):
            for offset, payload in messages:
                yield topic.removeprefix(prefix), offset, json.loads(payload)


def _by_topic(rows: Any) -> dict[str, list[Kept]]:
    """In the order of the offsets; what is there twice is there twice."""
    found: dict[str, list[Kept]] = {}
    columns = (rows.column(name).to_pylist() for name in ("topic", "offset", "payload"))
    for topic, offset, payload in zip(*columns, strict=True):
        found.setdefault(topic, []).append(Kept(offset, bytes(payload)))
    for kept in found.values():
        kept.sort()
    return found


def _micros(when: datetime) -> int:
    return round(when.timestamp() * 1_000_000)
