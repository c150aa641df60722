"""A data folder made of a copy (copying.py): the index is made anew, and what a broker gives out goes on far behind.

1. Of blocks those are put in that a topic keeps something of, or that no checkpoint has covered: the others were only
   not deleted yet.
2. Nothing that was given out after the copy was made comes again: offsets, positions and client ids go on so far behind
   that nobody can have used them, whatever brokers were started on whatever copies meanwhile. How far that is the clock
   says: no broker gives out more than `RATE` of anything in a microsecond, on the average, so that none has come
   further than `RATE` times the microseconds since `EPOCH`, also none that began there when it was restored.
3. All topics go on at one offset, and new ones begin there: one that was made, or forgotten and made again, after the
   copy may have come as far as any other.
4. What lies between is skipped, as what is damaged is: nobody waits for it, and nobody takes it for lost.
5. A run begins where the copy ends: readers that have read further notice. (broker/runs.py)
"""

import secrets
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from stafeta.errors import StoreDamaged
from stafeta.store.blocks import Run, runs_of
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.copying import PUT_BLOCK, BlockRow
from stafeta.store.sqlite.folder import DATABASE, connect, translating_errors
from stafeta.store.sqlite.forgotten import Firsts, Forgotten
from stafeta.store.sqlite.pages import Runs, append, pages
from stafeta.store.sqlite.repair import joined_ranges

RATE = 4  # messages in a microsecond that a topic gets at most, or clients that come
EPOCH = 1_767_225_600_000_000  # 2026, in microseconds
MARGIN = 1 << 32  # where the clock is wrong
FLUSH = 100_000  # runs that are put into the index together

_PUT_RUN = schema.PUT["run"]


class Resumed(NamedTuple):
    """Where a restored broker goes on."""

    offset: int
    position: int
    client_id: int


def resumed_at(reached: int, now: int) -> int:
    """What is given out first by a broker that is restored now (microseconds), where the copy has reached this."""
    return max(reached + MARGIN, RATE * (now - EPOCH))


class Rebuilding:
    """The folder has the database of a copy, without packs and index, and its segments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[int, int] = {}

    def run(self, packs: Iterable[Iterable[BlockRow]], position: int, now: int) -> Resumed:
        """`position` is that of the first message after the copy."""
        with (
            translating_errors(self._folder),
            closing(connect(self._folder, durability="fsync", name=DATABASE, journal="OFF")) as connection,
        ):
            self._connection = connection
            self._meta: dict[str, int] = dict(connection.execute("SELECT key, value FROM meta"))
            forgotten = Forgotten(connection.execute("SELECT start, stop FROM forgotten"))
            self._firsts = Firsts(connection.execute("SELECT id, first FROM topic"), forgotten)
            for rows in packs:
                self._put_blocks(rows)
            connection.execute("BEGIN")
            self._index()
            resumed = self._go_on(position, now)
            connection.execute("COMMIT")
            return resumed

    @property
    def _checkpoint(self) -> int:
        return self._meta.get("checkpoint", 0)

    def _put_blocks(self, rows: Iterable[BlockRow]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(PUT_BLOCK, (row for row in rows if self._is_wanted(row)))
        self._connection.execute("COMMIT")

    def _is_wanted(self, row: BlockRow) -> bool:
        if row[0] > self._checkpoint:
            return True
        try:
            return any(self._keeps(run) for run in runs_of(row[0], row[1]))
        except StoreDamaged:
            return True  # which messages it has, nobody knows

    def _keeps(self, run: Run) -> bool:
        return run.end > self._firsts.kept_from(run.topic)

    def _index(self) -> None:
        known: dict[int, Runs] = {}
        count = 0
        for id_, header in self._connection.execute(schema.HEADERS_AFTER, (0,)):
            runs: list[Run] = []
            with suppress(StoreDamaged):  # `stafeta check` finds it
                runs = runs_of(id_, header)
            for run in runs:
                self._ends[run.topic] = max(self._ends.get(run.topic, 0), run.end)
            if id_ <= self._checkpoint:
                kept = [run for run in runs if run.topic in self._firsts and self._keeps(run)]
                append(known, kept)
                count += len(kept)
            if count >= FLUSH:
                self._flush(known)
                known, count = {}, 0
        self._flush(known)

    def _flush(self, known: dict[int, Runs]) -> None:
        for topic, runs in sorted(known.items()):
            self._connection.executemany(schema.ADD_PAGE, pages(topic, runs))

    # --- going on

    def _go_on(self, position: int, now: int) -> Resumed:
        topics = self._connection.execute(
            "SELECT id, name, first, next, present, keeps_last FROM topic"
        ).fetchall()
        acked = self._acked()
        cursors = self._connection.execute("SELECT subscription, topic, floor FROM cursor").fetchall()
        for id_, _, _, next_, *_ in topics:
            self._ends[id_] = max(self._ends.get(id_, 0), next_)
        for subscription, topic, floor in cursors:
            reached = max([floor, *(stop for _, stop in acked.get((subscription, topic), ()))])
            self._ends[topic] = max(self._ends.get(topic, 0), reached)
        offset = resumed_at(max([self._meta.get("first_offset", 1), *self._ends.values()]), now)
        gaps: dict[int, tuple[int, int]] = {}
        for id_, name, first, _, present, keeps_last in topics:
            gaps[id_] = self._ends[id_], offset
            first_kept = first if first < self._ends[id_] else offset
            record = id_, name, first_kept, offset, present, keeps_last
            self._connection.execute(schema.SET_TOPIC, record)
        self._connection.executemany(schema.SET_SKIPPED, [(id_, *one) for id_, one in gaps.items()])
        for subscription, topic, floor in cursors:
            if topic not in gaps:
                continue  # a topic that is damaged; `stafeta check` finds it
            done = acked.get((subscription, topic), [])
            self._move(subscription, topic, floor, done, gaps[topic])
        client_id = resumed_at(self._meta.get("client_id", 0), now)
        resumed = Resumed(offset, resumed_at(position, now), client_id)
        self._connection.execute(_PUT_RUN, (position, secrets.token_hex(8)))
        values = {
            "first_offset": offset,
            "position": resumed.position,
            "client_id": resumed.client_id,
            "restored": offset,
            "looked_at": 0,
            "unfinished": 0,
        }
        self._connection.executemany(schema.SET_META, values.items())
        return resumed

    def _acked(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for subscription, topic, start, stop in self._connection.execute(
            "SELECT subscription, topic, start, stop FROM acked"
        ):
            found.setdefault((subscription, topic), []).append((start, stop))
        return found

    def _move(
        self, subscription: int, topic: int, floor: int, done: list[tuple[int, int]], between: tuple[int, int]
    ) -> None:
        """Lets a cursor have what lies between behind it."""
        reached, above = joined_ranges(floor, [*done, between])
        self._connection.execute(schema.DROP_ACKED, (subscription, topic))
        self._connection.execute(schema.SET_CURSOR, (subscription, topic, reached))
        self._connection.executemany(schema.SET_ACKED, [(subscription, topic, *one) for one in above])
