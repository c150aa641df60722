"""What a store knows when it is opened: every row looked at, and what is damaged left out and reported.

1. A row in which one bit was flipped is put right. One that is worse is left out: the broker starts, and serves what is
   whole.
2. Where it is not known any more who waits for what, nothing is collected until the folder is repaired.
3. Where the database's structure is damaged, or its few single values, it is not opened: what would be missing nobody
   could tell. `stafeta check --repair` makes it whole.
"""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from stafeta.columns import Block
from stafeta.errors import StoreDamaged
from stafeta.message import PRODUCER
from stafeta.store.blocks import Run, batch_of, has_checksum, runs_of
from stafeta.store.port import (
    Append,
    CursorRecord,
    KeepRecord,
    ProducerRecord,
    Snapshot,
    StagedRecord,
    SubscriptionRecord,
    TopicRecord,
)
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.folder import translating_errors
from stafeta.store.sqlite.forgotten import Forgotten
from stafeta.store.sqlite.pages import opened_page
from stafeta.store.sqlite.reader import load
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.seals import Row, opened
from stafeta.store.sqlite.writer import Ends

log = logging.getLogger("stafeta.store")

LINES = 20  # of the log that say what is damaged
BLOCK_MOST = 1 << 22  # messages that a block has at most, by far
NOT_AT_START = ("page",)  # without it the broker can be started


class Damage:
    """Logs what is found damaged: the first lines of it, since it may be much."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = 0

    def say(self, sentence: str) -> None:
        self._lines += 1
        if self._lines <= LINES:
            log.error("%s", sentence)
        elif self._lines == LINES + 1:
            log.error(
                "more is damaged: stop the broker, and `stafeta check --data %s` says what", self._folder
            )


class Loading:
    def __init__(self, folder: Path, connection: sqlite3.Connection, recent: RecentRuns) -> None:
        """`recent` is filled with the runs that the index on disk does not have."""
        self._folder = folder
        self._connection = connection
        self._recent = recent
        self.damage = Damage(folder)
        self.meta: dict[str, int] = {}
        self.topics: dict[int, TopicRecord] = {}
        self.ends: Ends = {}
        self.skipped: dict[int, list[tuple[int, int]]] = {}
        self.forgotten = Forgotten()
        self._last_topic = 0  # that any block has
        self.snapshot = Snapshot()

    def load(self) -> Snapshot:
        self._check_structure()
        self.meta = dict(self._rows("meta"))
        self.forgotten = Forgotten(self._rows("forgotten"))
        mark = self.meta.get("checkpoint", 0)
        if self.meta.get("unfinished"):
            self._connection.execute(schema.DROP_UNFINISHED, (mark,))
        self._load_topics()
        self._load_recent(mark)
        cursors = self._cursors()
        snapshot = self.snapshot
        snapshot.topics = [topic._replace(next=self.ends[topic.id][0]) for topic in self.topics.values()]
        snapshot.kept = [(id_, KeepRecord(*keep)) for id_, *keep in self._rows("kept") if id_ in self.topics]
        snapshot.cursors = cursors
        snapshot.producers = list(self._producers())
        snapshot.recent = self._since(mark)
        snapshot.transactions = list(self._rows("done"))
        snapshot.committed = list(self._rows("committed"))
        snapshot.begun = list(self._rows("begun"))
        snapshot.runs = list(self._rows("run"))
        snapshot.staged = [StagedRecord(*row[:8]) for row in self._rows("staged")]
        snapshot.last_topic = max(self._number(schema.LAST_TOPIC), self._last_topic, self.forgotten.last)
        snapshot.first_offset = self.meta.get("first_offset", 1)
        snapshot.last_subscription = self._number(schema.LAST_SUBSCRIPTION)
        snapshot.last_staged = self._number(schema.LAST_STAGED)
        snapshot.client_id = self.meta.get("client_id", 0)
        snapshot.restored = self.meta.get("restored", 0)
        snapshot.position = self.meta.get("position", 1)
        snapshot.skipped = [row for row in self._rows("skipped") if row[0] in self.topics]
        for topic, start, stop in snapshot.skipped:
            self.skipped.setdefault(topic, []).append((start, stop))
        return snapshot

    def _number(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0] or 0)

    def _check_structure(self) -> None:
        for table in schema.SEALED:
            if table not in NOT_AT_START:
                problem = self._problem(table)
                if problem is not None:
                    raise _not_opened(self._folder, f"table {table}: {problem}")

    def _problem(self, table: str, check: str = "quick_check") -> str | None:
        """What is wrong with the structure of a table."""
        (first,) = self._connection.execute(f"PRAGMA {check}({table})").fetchone()
        return None if first == "ok" else str(first)

    def _rows(self, table: str) -> Iterator[Row]:
        """Those that are whole."""
        for row in self._connection.execute(schema.ROWS[table]):
            values = opened(table, row)
            if values is not None:
                if values != row[:-1]:
                    self.damage.say(f"a flipped bit in a row of table {table} is put right: {values[:3]}")
                yield values
                continue
            if table == "meta":
                raise _not_opened(self._folder, f"table meta: the row {row[:2]}")
            self.damage.say(f"a row of table {table} is damaged and left out: {row[:3]}")
            if table in ("topic", "kept", "subscription", "cursor", "producer"):
                self._doubt(table, row)

    def _doubt(self, table: str, row: Row) -> None:
        if table == "producer":
            self.snapshot.doubtful.update(self.topics)  # its topic may be what is damaged
        elif not self.snapshot.held:
            self.snapshot.held = True
            self.damage.say(
                "nothing is collected until this is repaired, since who waits for what is not known: stop the broker, "
                f"and run `stafeta check --repair --data {self._folder}`"
            )

    def _load_topics(self) -> None:
        for id_, name, first, next_, present, keeps_last in self._rows("topic"):
            self.topics[id_] = TopicRecord(id_, name, first, next_, bool(present), bool(keeps_last))
            self.ends[id_] = (next_, 0, 0)
        if not self._find_ends():
            self.damage.say(
                "a page of the index is damaged: where topics end is read from all that is stored"
            )
            for id_, header in self._connection.execute(schema.HEADERS_AFTER, (0,)):
                for run in self._known_runs(id_, header):
                    self._reaches(run)

    def _find_ends(self) -> bool:
        """Looks where topics end by the index; false where it is damaged there. A row whose key is damaged is not found
        where it belongs: then the one before it would be taken for the last, and offsets given out again."""
        if self._problem("page", "integrity_check") is not None:  # the quick one does not look at their order
            return False
        for (topic,) in self._connection.execute(schema.INDEXED_TOPICS):
            if topic not in self.topics and topic not in self.forgotten:
                return False
        for row in self._connection.execute(schema.LAST_PAGES):
            runs = opened_page(row)
            if not runs:
                return False
            self._reaches(runs[-1])
        return True

    def _reaches(self, run: Run) -> None:
        if run.topic in self.ends:  # where it goes on may lie behind all that it has
            end, size, time = self.ends[run.topic]
            self.ends[run.topic] = (max(end, run.end), max(size, run.size), max(time, run.time))

    def _load_recent(self, mark: int) -> None:
        for id_, header in self._connection.execute(schema.HEADERS_AFTER, (mark,)):
            runs = self._known_runs(id_, header)
            self._recent.add([run for run in runs if run.end > self.topics[run.topic].first])
            for run in runs:
                self._reaches(run)
        self.meta["block"] = max(mark, self._connection.execute(schema.LAST_BLOCK).fetchone()[0])

    def _known_runs(self, block: int, header: bytes) -> list[Run]:
        """The runs of a block by which it is known where topics end, of topics that are known."""
        try:
            runs = runs_of(block, header)
        except StoreDamaged:
            # Whatever topic it has may end behind it, and its offsets would be given out again.
            raise _not_opened(self._folder, f"which messages stored batch {block} has") from None
        self._last_topic = max(self._last_topic, *[run.topic for run in runs], 0)
        known = [run for run in runs if run.topic in self.topics]
        if len(known) < len(runs):
            strange = {
                run.topic for run in runs if run.topic not in self.topics and run.topic not in self.forgotten
            }
            if strange:
                self.damage.say(
                    f"stored batch {block} has messages of topics whose names are lost: {sorted(strange)[:5]}"
                )
        return known

    def _cursors(self) -> list[tuple[int, int, CursorRecord]]:
        self.snapshot.subscriptions = [
            SubscriptionRecord(id_, client, filter_, start, bool(durable))
            for id_, client, filter_, start, durable in self._rows("subscription")
        ]
        subscriptions = {one.id for one in self.snapshot.subscriptions}
        above: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for subscription, topic, start, stop in self._rows("acked"):
            above.setdefault((subscription, topic), []).append((start, stop))
        cursors = []
        for subscription, topic, floor in self._rows("cursor"):
            if subscription not in subscriptions or topic not in self.topics:
                self.damage.say(f"a cursor of subscription {subscription} on topic {topic} points to nothing")
                continue
            done = above.get((subscription, topic), ())
            reached = max([floor, *[stop for _, stop in done]])
            if reached > self.ends[topic][0]:
                name = self.topics[topic].name
                self.damage.say(
                    f"the end of {name!r} is lost: {reached - 1} was acknowledged, and is not there"
                )
                self.ends[topic] = (reached, *self.ends[topic][1:])
            cursors.append((subscription, topic, CursorRecord(floor, done)))
        return cursors

    def _producers(self) -> Iterator[ProducerRecord]:
        for topic, producer, state in self._rows("producer"):
            if topic in self.topics:
                yield ProducerRecord(topic, producer, state)

    def _since(self, mark: int) -> Iterator[Append]:
        """What was appended after a block. One block at a time: together they may be more than fits into memory."""
        names = {id_: topic.name for id_, topic in self.topics.items()}
        with translating_errors(self._folder):
            for id_, header, *row in self._connection.execute(schema.BLOCKS_AFTER, (mark,)):
                try:
                    block, runs = load(self._folder, id_, header, *row)
                except StoreDamaged as error:
                    self._lost(id_, header, error)
                    continue
                for form in (block,) if has_checksum(header) else (block, *_of_all_doors(block)):
                    for run in runs:
                        if run.topic in names:
                            yield Append(run.topic, batch_of(names[run.topic], form, run))

    def _lost(self, block: int, header: bytes, error: StoreDamaged) -> None:
        runs = [run for run in runs_of(block, header) if run.topic in self.topics]
        self.snapshot.doubtful.update([run.topic for run in runs] or self.topics)
        self.snapshot.lost_positions = BLOCK_MOST
        if runs:
            self.damage.say(f"{error} It has {_listed(runs, self.topics)}.")


def _listed(runs: Iterable[Run], topics: Mapping[int, TopicRecord]) -> str:
    listed = [f"{run.base} to {run.end - 1} of {topics[run.topic].name!r}" for run in runs]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _not_opened(folder: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"The database in {folder} is damaged ({what}). Nothing was changed. `stafeta check --data {folder}` says what "
        "is wrong, and with --repair keeps what is whole."
    )


def _of_all_doors(block: Block) -> Iterator[Block]:
    """Before version 4 a producer's name did not say whose it was: it counts for each. (schema.MIGRATIONS)"""
    producer = block.columns[PRODUCER]
    for prefix in schema.PREFIXES:
        if isinstance(producer, str):
            renamed: Any = prefix + producer
        else:
            renamed = pc.binary_join_element_wise(prefix, producer, "")
        yield Block(block.rows, (*block.columns[:PRODUCER], renamed, *block.columns[PRODUCER + 1 :]))
