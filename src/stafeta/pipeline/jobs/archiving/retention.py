"""What the broker holds for a lake, and what it need not hold any more.

1. The broker holds what is not in the lake under a name of the lake's own: another lake has another one.
2. What has been in the lake for the grace period, so that no query still reads it from the log, is acknowledged: up to
   the first offset that the lake lacks, and no further; and of the log that is in the lake alone.
3. What the lake had, and when, is noted in a folder, so that many short runs do it as well as a long one. The notes
   only ever delay: what is acknowledged is in the lake at that moment.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.archived import known_in
from stafeta.pipeline.lake.marks import LOG
from stafeta.ranges import first_missing

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.clients.flight.connection import Connection

FORMER: Final = "pipeline/archive"
"""The name that all lakes had before each had its own."""
_SEEN: Final = "seen.json"
_POLL_INTERVAL: Final = 1.0  # seconds between looks whether something can be acknowledged

log = logging.getLogger(__name__)


def holder(lake: Lake) -> str:
    """The name under which the broker holds what is not in a lake."""
    return f"{FORMER}/{lake.id}" if lake.id else FORMER


class RetentionKeeper:
    """Acknowledges what has been in the lake for long enough."""

    def __init__(self, lake: Lake, broker: str, filters: Sequence[str], grace: float, folder: str) -> None:
        self._lake = lake
        self._id = lake.id
        self._name = holder(lake)
        self._address = broker
        self._filters = filters
        self._grace = grace
        self._folder = folder
        self._seen = _noted(folder, self._id)  # what changed at a time
        self._ends = {topic: end for _, ends in self._seen for topic, end in ends.items()}
        self._metadata = ""

    def run(self, query: "StreamingQuery") -> None:
        """Does so for as long as a query runs, and once more then."""
        from stafeta import connect

        broker: Connection | None = None
        active = True
        while active:
            active = _active(query)
            try:
                self.look(time.time())
                broker = broker or connect(self._address)
                self.acknowledge(broker, time.time())
            except Exception as error:  # noqa: BLE001 - broker or lake are away, which the query finds out as well
                log.debug("Nothing is acknowledged: %s", error)
        if broker is not None:
            broker.close(0.0)

    def look(self, now: float) -> None:
        """Remembers what is in the lake now, some ten times in a grace period."""
        self._seen = [(min(since, now), ends) for since, ends in self._seen]  # a clock may have been set back
        if self._seen and now < self._seen[-1][0] + self._grace / 10:
            return
        table = self._lake.table("messages")
        if table.metadata_location == self._metadata:
            return
        ends = _ends(table)
        changed = {topic: end for topic, end in ends.items() if self._ends.get(topic) != end}
        if changed:
            self._seen.append((now, changed))
            self._ends = ends
            self._write_down()
        self._metadata = table.metadata_location

    def acknowledge(self, broker: "Connection", now: float) -> None:
        """Acknowledges what was there when the grace period began, and is there still."""
        old = [ends for since, ends in self._seen if since <= now - self._grace]
        if not old:
            return
        noted = {topic: end for ends in old for topic, end in ends.items()}
        table = self._lake.table("messages")
        there, mark = _ends(table), table.properties.get(LOG, "")
        for one in self._filters:
            floors = broker.cursors(one, name=self._name)
            ends = {topic: min(noted.get(topic, 0), there.get(topic, 0)) for topic in floors}
            done = {topic: end for topic, end in ends.items() if end > floors[topic]}
            if done:
                broker.acknowledge(one, done, name=self._name, mark=mark)
        del self._seen[: len(old)]
        self._write_down()

    def _write_down(self) -> None:
        checkpoint_files.write(self._folder, _SEEN, {"lake": self._id, "seen": self._seen})


def _noted(folder: str, lake: str) -> list[tuple[float, dict[str, int]]]:
    """What was noted of a lake. What another one had says nothing of it; nor does a file that is damaged."""
    try:
        notes = checkpoint_files.read(folder, _SEEN) or {}
        mine = notes["seen"] if notes.get("lake") == lake else []
        return [(float(since), {topic: int(end) for topic, end in ends.items()}) for since, ends in mine]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("What the lake had is noted anew: %s/%s is damaged (%s).", folder, _SEEN, error)
        return []


def _ends(table: "Table") -> dict[str, int]:
    """For each topic the first offset that the lake lacks."""
    return {topic: first_missing(runs) for topic, runs in known_in(table).done.items()}


def _active(query: "StreamingQuery") -> bool:
    """Whether a query goes on, known a little later."""
    time.sleep(_POLL_INTERVAL)
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - of a session that is gone, in whichever way
        return False
