"""What the queries of a job have done, as their progress tells it.

1. Each micro-batch counts once. While nothing comes Spark tells of the next one, which has not been worked on.
2. The lag is what was waiting in the topics when the last micro-batch began, beyond what that took.
3. Rows that came after their watermark are counted, as the figure `late`; and what a job observes under that name, or
   as `ahead`.
4. Through Spark Connect only the sources tell how many rows there were. Of a source of ours, its offsets do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stafeta.pipeline.connector.options import NEW_TOPICS

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OBSERVED: Final = ("late", "ahead")


@dataclass
class ProgressCounter:
    batch: int = -1
    rows: int = 0
    observed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OBSERVED, 0))
    _speeds: dict[str, float] = field(default_factory=dict)
    _lags: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)  # the last micro-batch, by run of a query

    @property
    def rows_per_second(self) -> float:
        return sum(self._speeds.values())

    @property
    def lag(self) -> int:
        return sum(self._lags.values())

    def look(self, query: "StreamingQuery") -> bool:
        """Takes in what a query has done since; whether that is anything."""
        last: Mapping[str, Any] | None = query.lastProgress
        if last is None:
            return False
        run, name = str(last["runId"]), str(last["name"])
        number = int(last["batchId"]) - (not _worked(last))
        seen = self._seen.get(run, -1)
        self._lags[name] = sum(map(lag_of, last["sources"]))
        if not _worked(last):
            self._speeds[name] = 0.0
        if number <= seen:
            return False
        self._seen[run] = number
        reports = [last] if _worked(last) and number == seen + 1 else query.recentProgress
        new = [one for one in reports if _worked(one) and seen < int(one["batchId"]) <= number]
        self.add(name, new)
        return bool(new)

    def add(self, name: str, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes in micro-batches of a query."""
        for one in reports:
            self.batch = max(self.batch, int(one["batchId"]))
            self.rows += _rows(one)
            late = sum(int(part["numRowsDroppedByWatermark"]) for part in one["stateOperators"])
            self.observed["late"] += late
            for row in one["observedMetrics"].values():
                for figure in OBSERVED:
                    self.observed[figure] += int(row[figure] or 0) if figure in row else 0
            self._speeds[name] = _speed(one)


def _worked(progress: Mapping[str, Any]) -> bool:
    """Whether it tells of a micro-batch that is done, and not of waiting for one."""
    return "addBatch" in progress["durationMs"]


def _rows(progress: Mapping[str, Any]) -> int:
    return sum(map(rows_of, progress["sources"]))


def _speed(progress: Mapping[str, Any]) -> float:
    seconds = max(int(progress["durationMs"].get("triggerExecution", 0)), 1) / 1000
    return sum(_speed_of(source, seconds) for source in progress["sources"])


def _speed_of(source: Mapping[str, Any], seconds: float) -> float:
    counted, speed = int(source["numInputRows"]), float(source["processedRowsPerSecond"] or 0.0)
    return speed * rows_of(source) / counted if counted else rows_of(source) / seconds


def rows_of(source: Mapping[str, Any]) -> int:
    """How many messages a micro-batch took: by its offsets, since the archive's rows are files, and few messages of
    rollup and alerts are no rows at all."""
    start, end = _offsets(source["startOffset"]), _offsets(source["endOffset"])
    if not end:
        return int(source["numInputRows"])
    new = _new_topics(source["endOffset"])
    return sum(offset - new.get(topic, start.get(topic, offset)) for topic, offset in end.items())


def lag_of(source: Mapping[str, Any]) -> int:
    """How many messages wait beyond those that were taken."""
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    return sum(max(0, offset - end.get(topic, 0)) for topic, offset in latest.items())


def _offsets(offsets: object) -> dict[str, int]:
    """Next offsets by topic, of a source of ours; of others nothing."""
    return {topic: offset for topic, offset in _plain(offsets).items() if isinstance(offset, int)}


def _new_topics(offsets: object) -> dict[str, int]:
    """Where the topics begin that a micro-batch is the first to read."""
    new = _plain(offsets).get(NEW_TOPICS, {})
    return new if isinstance(new, dict) else {}


def _plain(offsets: object) -> dict[str, Any]:
    try:
        plain = json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}
