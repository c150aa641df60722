"""Whether everything in a data folder that no broker has open is as it should be.

1. Every row's checksum, every block's header and body, every segment.
2. Each topic without a gap, from its first to its next offset.
3. The index against the headers of blocks, in both directions: each run that a header names is in the index, and the
   index has no others.
4. Cursors, acknowledged ranges, producers and transactions point to what is there, and not beyond it. A durable filter
   has a cursor on each topic to which something came since it subscribed.

Nothing is changed, but for flipped bits in the write-ahead log, which any start puts right (folder.py).
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from isal.isal_zlib import crc32

from stafeta.errors import StoreDamaged, StoreError
from stafeta.names import USERS_PREFIX, is_filter, matcher
from stafeta.store.blocks import Run, batch_of, runs_of
from stafeta.store.sqlite import schema, segments
from stafeta.store.sqlite.continuity import Continuity, Gap
from stafeta.store.sqlite.folder import migrate
from stafeta.store.sqlite.forgotten import Forgotten
from stafeta.store.sqlite.pages import opened_page
from stafeta.store.sqlite.reader import load
from stafeta.store.sqlite.seals import Row, opened, seal

Reached = Callable[
    [str, bytes], int
]  # of a producer's name and state, the last offset that it has written to
Advance = Callable[[int, int], None]  # called with how many blocks were looked at, and of how many

PAGES = 1 << 14  # topics whose page of the index is at hand
# What a row is found by.
_KEYS = {
    "meta": 1,
    "topic": 1,
    "kept": 1,
    "subscription": 1,
    "cursor": 2,
    "acked": 3,
    "skipped": 2,
    "forgotten": 1,
    "producer": 2,
    "staged": 1,
    "done": 1,
    "begun": 1,
    "committed": 2,
    "run": 1,
    "page": 2,
}
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Finding(NamedTuple):
    """Something that is wrong; or, where it is no `damage`, that is left over and does no harm. Where messages are
    concerned: their topic and offsets."""

    sentence: str
    topic: str = ""
    start: int = 0
    stop: int = 0
    damage: bool = True


class Report:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.topics = self.messages = self.blocks = self.segments = 0

    @property
    def sound(self) -> bool:
        return not any(finding.damage for finding in self.findings)

    def find(self, sentence: str, *where: str | int, damage: bool = True) -> None:
        topic, start, stop = where or ("", 0, 0)
        self.findings.append(Finding(sentence, str(topic), int(start), int(stop), damage))


def rows_of(
    connection: sqlite3.Connection, table: str, broken: Callable[[], None] = lambda: None
) -> Iterator[Row]:
    """The rows of a table as far as they can be read: from both ends, where there is damage in between, of which
    `broken` is called."""
    columns = schema.SEALED[table][: _KEYS[table]]
    select = f"{schema.ROWS[table]} ORDER BY "
    last: Row = ()
    try:
        for row in connection.execute(select + ", ".join(columns)):
            last = row[: len(columns)]
            yield row
    except sqlite3.DatabaseError:
        broken()
        behind: list[Row] = []
        try:
            for row in connection.execute(select + ", ".join(f"{column} DESC" for column in columns)):
                if row[: len(columns)] == last:
                    break
                behind.append(row)
        except sqlite3.DatabaseError:
            pass
        yield from reversed(behind)


def block_ids(connection: sqlite3.Connection, broken: Callable[[], None] = lambda: None) -> list[int]:
    """The numbers of all blocks that can be found; `broken` is called where there may be others."""
    found: list[int] = []
    behind: list[int] = []
    try:
        found.extend(id_ for (id_,) in connection.execute("SELECT id FROM block ORDER BY id"))
    except sqlite3.DatabaseError:
        broken()
        last = found[-1] if found else 0
        try:
            for (id_,) in connection.execute("SELECT id FROM block ORDER BY id DESC"):
                if id_ <= last:
                    break
                behind.append(id_)
        except sqlite3.DatabaseError:
            # Somewhere between the two: whatever can be found by its number.
            between = range(last + 1, behind[-1] if behind else last + 1)
            found.extend(id_ for id_ in between if block_row(connection, id_) is not None)
    return sorted({*found, *behind})


def block_row(connection: sqlite3.Connection, id_: int) -> Row | None:
    """The row of a block; None where there is none, or it cannot be read."""
    try:
        row: Row | None = connection.execute(schema.GET_BLOCK, (id_,)).fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in _CORRUPT:
            raise
        return None
    return row


class Check:
    def __init__(
        self, folder: Path, connection: sqlite3.Connection, reached: Reached, advance: Advance
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._reached = reached
        self._advance = advance
        self.report = Report()
        self._names: dict[int, str] = {}
        self._firsts: dict[int, int] = {}
        self._nexts: dict[int, int] = {}
        self._positions: dict[int, int] = {}  # of the last message that each topic keeps
        self._forgotten = Forgotten()
        self._found: set[int] = set()  # segments in which something lies
        self._pages: dict[int, set[Run]] = {}  # of each topic the page of the index that was looked at last
        self._indexed = 0  # runs of blocks that are in the index

    def run(self) -> Report:
        try:
            self._run()
        except sqlite3.DatabaseError as error:
            self.report.find(f"The database cannot be read any further: {error}.")
        return self.report

    def _run(self) -> None:
        self._structure()
        meta: dict[str, int] = dict(self._rows("meta"))
        self._forgotten = Forgotten(self._rows("forgotten"))
        skipped: dict[int, list[tuple[int, int]]] = {}
        for id_, name, first, next_, *_ in self._rows("topic"):
            self._names[id_], self._firsts[id_], self._nexts[id_] = name, first, next_
            if id_ in self._forgotten:
                self._find(f"Topic {name!r} is remembered, and forgotten.")
            if not 1 <= first <= next_:
                self._find(f"Topic {name!r} begins at {first} and goes on at {next_}.")
        self.report.topics = len(self._names)
        for topic, start, stop in self._rows("skipped"):
            skipped.setdefault(topic, []).append((start, stop))
            if topic not in self._names:
                self._find(f"Messages of a topic {topic} are skipped, whose name is lost.")
        for topic, *_ in self._rows("kept"):
            if topic not in self._names:
                self._find(f"A topic {topic} has a retention of its own, and its name is lost.")
        pages = self._count_pages(meta.get("checkpoint", 0))
        cursors = dict(self._cursor_floors())
        self._blocks(meta, skipped)
        if pages != self._indexed:
            self._find(f"The index has {pages} runs of messages, and blocks have {self._indexed} of them.")
        self._subscriptions(cursors)
        self._producers()
        self._staged()
        self._segments()

    def _find(self, sentence: str, *where: str | int) -> None:
        self.report.find(sentence, *where)

    # --- the database

    def _structure(self) -> None:
        for (problem,) in self._connection.execute("PRAGMA integrity_check(20)"):
            if problem != "ok":
                self._find(f"The structure of the database is damaged: {problem}.")
        if schema_of(self._connection) != expected_schema():
            self._find("The tables of the database are not those of this version.")

    def _rows(self, table: str) -> Iterator[Row]:
        for row in rows_of(self._connection, table):
            values = opened(table, row)
            if values is None:
                self._find(f"A row of table {table} is damaged: {row[:3]}.")
                continue
            if values != row[:-1]:
                self._find(f"A bit of a row of table {table} is flipped; it should be {values[:3]}.")
            yield values

    def _count_pages(self, mark: int) -> int:
        """How many runs the index has of what topics keep."""
        runs = 0
        for topic, base, end, last_block, packed in self._rows("page"):
            if last_block > mark:
                continue  # what a checkpoint that was not finished has left
            found = opened_page(
                (topic, base, end, last_block, packed, seal("page", topic, base, end, last_block, packed))
            )
            if not found or (found[0].base, found[-1].end, found[-1].block) != (base, end, last_block):
                self._find(f"A page of the index of topic {topic} is not what it says: {base} to {end - 1}.")
                continue
            if topic in self._forgotten:
                continue  # it is taken out of the index soon
            if topic not in self._names:
                self._find(f"The index has a topic {topic} whose name is lost: {base} to {end - 1}.")
                continue
            self._nexts[topic] = max(self._nexts[topic], end)
            runs += sum(run.end > self._firsts[topic] for run in found)
        return runs

    # --- blocks

    def _blocks(self, meta: dict[str, int], skipped: dict[int, list[tuple[int, int]]]) -> None:
        continuity = Continuity(self._firsts, self._nexts, skipped)
        ids = block_ids(self._connection)
        mark = meta.get("checkpoint", 0)
        self.report.blocks = len(ids)
        nameless: dict[int, tuple[int, int]] = {}
        for number, id_ in enumerate(ids, 1):
            self._advance(number, len(ids))
            row = block_row(self._connection, id_)
            runs: list[Run] = []
            try:
                if row is None:
                    raise StoreDamaged(f"Stored batch {id_} cannot be read.")
                if row[3] is not None:
                    self._found.add(row[3])
                header, content, checksum, segment = row
                put_right = partial(self._put_right, in_place=segment is not None)
                block, runs = load(self._folder, id_, header, content, checksum, segment, put_right)
            except StoreDamaged as error:
                runs = self._damaged(id_, row, error)
            else:
                self.report.messages += sum(run.rows for run in runs)
                for run in runs:
                    if run.end > self._firsts.get(run.topic, run.end):
                        self._positions[run.topic] = batch_of("", block, run).last_position
            for run in runs:
                if run.topic in self._forgotten:
                    continue
                if run.topic not in self._names:
                    nameless[run.topic] = min(run.base, nameless.get(run.topic, (run.base, 0))[0]), run.end
                    continue
                self._nexts[run.topic] = max(self._nexts[run.topic], run.end)
                if id_ <= mark and run.end > self._firsts[run.topic]:
                    self._look_up(run)
            for gap in continuity.add(runs):
                self._gap(gap)
        for gap in continuity.finish():
            self._gap(gap)
        for topic, (start, stop) in nameless.items():
            self._find(f"There are {_these(start, stop)} of a topic {topic}, whose name is lost.")

    def _put_right(self, id_: int, *, in_place: bool) -> None:
        """What lies in a segment stays as it is, and is put right whenever it is read."""
        self.report.find(f"A bit of stored batch {id_} is flipped.", damage=not in_place)

    def _damaged(self, id_: int, row: Row | None, error: StoreDamaged) -> list[Run]:
        """The runs of a damaged block, where they are known."""
        try:
            runs = [] if row is None else runs_of(id_, row[0])
        except StoreDamaged:
            runs = []
        if not runs:
            self._find(f"{error} Which messages it had is not known.")
        for run in runs:
            name, first = self._names.get(run.topic, ""), self._firsts.get(run.topic, 0)
            if run.end > first:
                start = max(run.base, first)
                self._find(f"{error} It has {_these(start, run.end)} of {name!r}.", name, start, run.end)
        return runs

    def _gap(self, gap: Gap) -> None:
        name = self._names[gap.topic]
        what = "are stored twice" if gap.twice else "are missing"
        self._find(f"{_these(gap.start, gap.stop)} of {name!r} {what}.", name, gap.start, gap.stop)

    def _look_up(self, run: Run) -> None:
        page = self._pages.get(run.topic)
        if page is None or run not in page:
            row = self._connection.execute(schema.PAGE_AT, (run.topic, run.base)).fetchone()
            page = set() if row is None else set(opened_page(row))
            if len(self._pages) >= PAGES:
                self._pages.clear()
            self._pages[run.topic] = page
        if run in page:
            self._indexed += 1
        else:
            name = self._names[run.topic]
            self._find(
                f"The index does not have {_these(run.base, run.end)} of {name!r}, or has them elsewhere."
            )

    # --- who waits for what

    def _cursor_floors(self) -> Iterator[tuple[tuple[int, int], int]]:
        for subscription, topic, floor in self._rows("cursor"):
            if topic not in self._names:
                self._find(
                    f"A cursor of subscription {subscription} is on a topic {topic}, whose name is lost."
                )
                continue
            self._nexts[topic] = max(self._nexts[topic], floor)
            yield (subscription, topic), floor

    def _subscriptions(self, cursors: dict[tuple[int, int], int]) -> None:
        subscriptions = list(self._rows("subscription"))
        filters = {id_: filter_ for id_, _, filter_, *_ in subscriptions}
        for id_, client, filter_, start, durable in subscriptions:
            # One whose start is below 0 has not begun with all topics; the broker goes on with that.
            if durable and start >= 0 and is_filter(filter_):
                self._uncovered(id_, client, filter_, start, cursors)
        last: dict[tuple[int, int], int] = {}
        for (subscription, topic), floor in cursors.items():
            name = self._names[topic]
            if subscription not in filters:
                self._find(f"A cursor on {name!r} is of a subscription {subscription}, which is lost.")
            elif not matcher(filters[subscription])(name):
                self._find(f"A cursor on {name!r} is of a subscription to {filters[subscription]!r}.")
            last[subscription, topic] = floor
        for subscription, topic, start, stop in self._rows("acked"):
            before = last.get((subscription, topic))
            if before is None or not before < start < stop <= self._nexts.get(topic, 0):
                self._find(
                    f"Subscription {subscription} has acknowledged {_these(start, stop)} of topic {topic}, which does "
                    "not go with its cursor."
                )
            last[subscription, topic] = stop

    def _uncovered(
        self, id_: int, client: str, filter_: str, start: int, cursors: dict[tuple[int, int], int]
    ) -> None:
        if client.startswith(USERS_PREFIX):
            return  # it has cursors only where its user may subscribe, of which the folder knows nothing
        matches = matcher(filter_)
        for topic, position in self._positions.items():
            if position > start and (id_, topic) not in cursors and matches(self._names[topic]):
                self._find(
                    f"Client {client!r} has no cursor on {self._names[topic]!r} for its filter {filter_!r}, to which "
                    "messages came since it subscribed."
                )

    def _producers(self) -> None:
        for topic, name, state in self._rows("producer"):
            try:
                reached = self._reached(name, state)
            except (ValueError, TypeError, IndexError):
                self._find(f"What is known of producer {name!r} on topic {topic} cannot be read.")
                continue
            if topic not in self._names:
                self._find(f"Producer {name!r} is on a topic {topic}, whose name is lost.")
            elif reached >= self._nexts[topic]:
                self._find(
                    f"Producer {name!r} has written message {reached} of {self._names[topic]!r}, which is lost."
                )

    def _staged(self) -> None:
        for table in ("done", "begun", "committed", "run"):
            for _ in self._rows(table):
                pass  # its checksum is all there is to look at
        for id_, producer, counter, *_, segment, checksum in self._rows("staged"):
            if segment is not None:
                self._found.add(segment)
            if not staged_is_whole(self._folder, self._connection, id_, segment, checksum):
                self._find(f"Staged batch {id_} of transaction {counter} of {producer!r} is damaged.")

    def _segments(self) -> None:
        present = set(segments.present(self._folder))
        self.report.segments = len(present)
        for segment in sorted(present - self._found):
            self.report.find(
                f"Nothing lies in segment {segment}: what was not finished has left it.", damage=False
            )


def staged_is_whole(
    folder: Path, connection: sqlite3.Connection, id_: int, segment: int | None, checksum: int
) -> bool:
    try:
        (content,) = connection.execute(schema.GET_STAGED_BODY, (id_,)).fetchone() or (None,)
        return crc32(segments.read(folder, id_, segment, content)) == checksum
    except (StoreError, sqlite3.DatabaseError):
        return False


def schema_of(connection: sqlite3.Connection) -> Sequence[Row]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()


def expected_schema() -> Sequence[Row]:
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    fresh.create_function("seal", -1, seal, deterministic=True)
    migrate(fresh)
    found = schema_of(fresh)
    fresh.close()
    return found


def _these(start: int, stop: int) -> str:
    return f"message {start}" if stop == start + 1 else f"messages {start} to {stop - 1}"
