"""The job alerts on a real broker: a checkpoint of its own, rules, and what it has told."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.config import Config
from stafeta.config.options import Alerts, Pipeline
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.alerts import JOB, figures
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect
from tests.waiting import PATIENCE

BEGIN = datetime(2026, 11, 16, 8, tzinfo=UTC)


def sent(
    broker: BrokerProcess, topic: str, *values: float, at: Sequence[float] = (), kind: str = "float"
) -> None:
    """Publishes readings, with the times that they say: seconds after `BEGIN`."""
    data: dict[str, Any] = {"payload": [f"{value:g}" for value in values]}
    if at:
        times = [BEGIN + timedelta(seconds=second) for second in at]
        data["timestamp"] = pa.array(times, pa.timestamp("us", "UTC"))
    with connect(broker) as connection:
        connection.publish(topic, pa.table(data), kind=kind)


class Alarms:
    """The job with rules; it can be run again and again, with others too."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, rules: str) -> None:
        self._spark = spark
        self._broker = broker
        self._folder = folder
        self.rules = rules

    def run(self, batch: int = 1_000_000) -> StreamingQuery:
        """Judges what is there, and ends."""
        query = self._start(batch, once=True)
        try:
            assert query.awaitTermination(PATIENCE), (
                f"the job does not end: {query.status} {query.lastProgress}"
            )
        finally:
            query.stop()
        return query

    @contextmanager
    def running(self, batch: int = 1_000_000) -> Iterator[StreamingQuery]:
        query = self._start(batch, once=False)
        try:
            yield query
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """As if the driver had died just before it noted that the last micro-batch is done."""
        commits = [one for one in (self._folder / "checkpoint" / "commits").iterdir() if one.name.isdecimal()]
        max(commits, key=lambda one: int(one.name)).unlink()
        for checksum in (self._folder / "checkpoint" / "commits").glob(".*.crc"):
            checksum.unlink()

    def figures(self) -> dict[str, int]:
        """As the job's reports have them."""
        return dict(figures(self.context()))

    def told(self, subscribe: str = "+/+/#") -> list[tuple[str, str, str, int]]:
        """Rule, topic, state and offset of alerts, in their order."""
        return [
            (one["rule"], one["topic"], one["state"], one["offset"])
            for one in self.payloads(f"alerts/{subscribe}")
        ]

    def payloads(self, subscribe: str) -> list[dict[str, Any]]:
        with connect(self._broker) as connection:
            topics = sorted(info.topic for info in connection.topics(subscribe))
            found = [(topic, one) for topic in topics for one in connection.read(topic).to_pylist()]
        assert all(one["kind"] == "json" for _, one in found)
        return [json.loads(one["payload"]) for _, one in found]

    def _start(self, batch: int, *, once: bool) -> StreamingQuery:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "alerts.toml").write_text(self.rules, encoding="utf-8")
        (query,) = JOB.start(self.context(batch, once=once))
        return query

    def context(self, batch: int = 1_000_000, *, once: bool = True) -> Context:
        config = replace(
            Config(),
            alerts=Alerts(rules=str(self._folder / "alerts.toml")),
            pipeline=Pipeline(broker=address(self._broker), batch=batch, trigger=1.0),
        )
        return Context(self._spark, config, "alerts", str(self._folder / "checkpoint"), once)
