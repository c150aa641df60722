"""Looking at a data folder, and making a damaged one such that a broker starts on it: a new database of all that is
whole in the old one.

1. Nothing is deleted. The old database, and files in which nothing lies, go to `quarantine`.
2. Blocks are the truth: where topics end, and what is missing of them, is read from their headers. The index is left
   out; the broker makes it anew.
3. What is missing of a topic is skipped from then on, and reported.
4. A new database is complete before the old one is moved, under a name that every start looks for: a repair that was
   interrupted is done again, or finished.
"""

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from isal.isal_zlib import crc32

from stafeta.errors import StoreDamaged, StoreError
from stafeta.names import COUNTER_PREFIX, is_filter, matcher
from stafeta.ranges import merged
from stafeta.store.blocks import Run, batch_of, decode, runs_of, verified
from stafeta.store.blocks import checksum as checksum_of
from stafeta.store.sqlite import schema, segments
from stafeta.store.sqlite.check import (
    Advance,
    Check,
    Reached,
    Report,
    block_ids,
    block_row,
    expected_schema,
    rows_of,
    schema_of,
    staged_is_whole,
)
from stafeta.store.sqlite.continuity import Continuity
from stafeta.store.sqlite.folder import (
    DATABASE,
    REPAIRED,
    accept_log,
    check_version,
    connect,
    finish_repair,
    lock,
    look,
    migrate,
    new_quarantine,
    opening,
    sync_folder,
    translating_errors,
)
from stafeta.store.sqlite.forgotten import Forgotten
from stafeta.store.sqlite.loading import BLOCK_MOST
from stafeta.store.sqlite.seals import Row, opened

LOST = "lost/"  # what topics are called whose names are lost
KEEPER = "quarantine"  # the client that holds them
TOGETHER = 1000  # blocks copied in one transaction
MARGIN = 1 << 20  # of numbers that may have been given out


class Repair:
    """`report` is filled with what was lost."""

    def __init__(
        self,
        folder: Path,
        old: sqlite3.Connection,
        reached: Reached,
        advance: Advance,
        *,
        log_lost: bool,
    ) -> None:
        """`log_lost`: the write-ahead log could not be read to its end."""
        self._folder = folder
        self._old = old
        self._reached = reached
        self._advance = advance
        self.report = Report()
        self._topics: dict[int, list[int | str]] = {}
        self._forgotten = Forgotten()
        self._named: set[int] = set()  # topics whose names are known
        self._ends: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._positions: dict[int, int] = {}  # of the last message of each topic
        self._segments: set[int] = set()
        self._position = 0
        self._cursors_lost = False
        self._blocks_lost = log_lost  # so that positions may have been given out that are not known
        self._ends_lost = log_lost  # and offsets
        self._reported: set[str] = set()  # tables are read more than once
        self._last_subscription = 0

    def run(self) -> Report:
        partial = self._folder / f"{REPAIRED}.partial"
        for name in (partial.name, f"{partial.name}-journal", f"{partial.name}-wal", f"{partial.name}-shm"):
            (self._folder / name).unlink(missing_ok=True)
        try:
            with closing(
                connect(self._folder, durability="fsync", name=partial.name, journal="DELETE")
            ) as new:
                migrate(new)
                self._new = new
                self._fill()
        except BaseException:
            with suppress(OSError):
                partial.unlink()  # on a full disk, a broker needs the room
            raise
        self._put_away()  # before: a broker that finds the new database deletes what nothing lies in
        os.rename(partial, self._folder / REPAIRED)
        sync_folder(self._folder)
        self._old.close()
        finish_repair(self._folder)
        return self.report

    def _fill(self) -> None:
        meta: dict[str, int] = dict(self._whole("meta"))
        for row in self._whole("topic"):
            self._topics[row[0]] = list(row)
        subscriptions = {row[0]: row for row in self._whole("subscription")}
        skipped: dict[int, list[tuple[int, int]]] = {}
        for topic, start, stop in self._whole("skipped"):
            skipped.setdefault(topic, []).append((start, stop))
        self._named = set(self._topics)
        ranges = list(self._whole("forgotten"))
        self._put("forgotten", ranges)
        self._forgotten = Forgotten((start, stop) for start, stop in ranges)
        self._copy_blocks(meta.get("checkpoint", 0))
        cursors = {(row[0], row[1]): row[2] for row in self._whole("cursor")}
        self._last_subscription = max([0, *subscriptions, *[subscription for subscription, _ in cursors]])
        self._new.execute("BEGIN")
        self._name_lost_topics(subscriptions, cursors)
        self._skip_lost(cursors, skipped)
        self._hold_for_lost(subscriptions, cursors)
        self._copy_subscriptions(subscriptions, cursors, skipped)
        self._put("topic", self._topics.values())
        self._put("kept", [row for row in self._whole("kept") if row[0] in self._topics])
        self._put("skipped", [(topic, *one) for topic, ranges in skipped.items() for one in ranges])
        self._put("producer", [row for row in self._whole("producer") if row[0] in self._topics])
        for table in ("done", "begun", "committed", "run"):
            self._put(table, self._whole(table))
        self._copy_staged()
        self._put("meta", self._meta(meta).items())
        self._new.execute("COMMIT")

    def _whole(self, table: str) -> Iterator[Row]:
        for row in rows_of(self._old, table, lambda: self._lost(table, f"Some of table {table} is lost.")):
            values = opened(table, row)
            if values is not None:
                yield values
                continue
            self._lost(table, f"A row of table {table} is left out, since it is damaged: {row[:3]}.")

    def _lost(self, table: str, sentence: str) -> None:
        self._cursors_lost |= table in ("cursor", "topic", "subscription")
        if sentence not in self._reported:
            self._reported.add(sentence)
            self.report.find(sentence)

    def _put(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        self._new.executemany(schema.PUT[table], rows)

    # --- messages

    def _copy_blocks(self, mark: int) -> None:
        """`mark` is the last block that the index covers."""
        ids = block_ids(self._old, self._blocks_are_lost)
        for start in range(0, len(ids), TOGETHER):
            self._new.execute("BEGIN")
            for number, id_ in enumerate(ids[start : start + TOGETHER], start + 1):
                self._advance(number, len(ids))
                self._copy_block(id_, mark)
            self._new.execute("COMMIT")

    def _blocks_are_lost(self) -> None:
        self._blocks_lost = self._ends_lost = True
        self.report.find("Some stored batches are lost.")

    def _copy_block(self, id_: int, mark: int) -> None:
        row = block_row(self._old, id_)
        try:
            if row is None:
                raise StoreDamaged(f"Stored batch {id_} cannot be read.")
            header, content, expected, segment = row
            header, body = verified(id_, header, segments.read(self._folder, id_, segment, content), expected)
            block, runs = decode(id_, header, body)
        except StoreDamaged as error:
            self.report.find(f"{error} It is left out.")
            self._blocks_lost = True
            try:
                for run in runs_of(id_, b"" if row is None else row[0]):
                    self._reaches(run.topic, run.end)
            except StoreDamaged:
                self._ends_lost |= id_ > mark  # else the index says it
            return
        batch = batch_of("", block, Run(0, 0, block.rows, id_, 0, 0, 0))
        self._position = max(self._position, batch.last_position)
        for run in runs:
            self._begins.setdefault(run.topic, run.base)
            self._reaches(run.topic, run.end)
            self._positions[run.topic] = batch_of("", block, run).last_position
        if segment is None:
            content = body
        else:
            self._segments.add(segment)
        whole = checksum_of(header, crc32(body))
        self._new.execute(schema.ADD_BLOCK, (id_, header, segment, content, whole))

    def _reaches(self, topic: int, end: int) -> None:
        """No offset is given out again that was once, whatever has become of its message."""
        self._ends[topic] = max(self._ends.get(topic, 0), end)

    def _name_lost_topics(self, subscriptions: dict[int, Row], cursors: dict[tuple[int, int], int]) -> None:
        """Their messages stay, under another name, and somebody holds them."""
        names = {topic[1] for topic in self._topics.values()}
        for topic, end in self._ends.items():
            if topic in self._topics or topic in self._forgotten or topic not in self._begins:
                continue
            name, first = f"{LOST}{topic}", self._begins[topic]
            while name in names:
                name += "-"
            self._topics[topic] = [topic, name, first, end, 1, 0]
            self._named.add(topic)
            for key in [key for key in cursors if key[1] == topic]:
                del cursors[key]  # they are of who subscribed to its name
            self._hold(name, topic, first, subscriptions, cursors)
            self.report.find(
                f"The name of topic {topic} is lost; its messages are in {name!r}, held for client {KEEPER!r}."
            )

    def _hold(
        self,
        name: str,
        topic: int,
        floor: int,
        subscriptions: dict[int, Row],
        cursors: dict[tuple[int, int], int],
    ) -> None:
        """Lets the keeper hold a topic from an offset on."""
        known = [id_ for id_, row in subscriptions.items() if row[1:3] == (KEEPER, name)]
        if not known:
            self._last_subscription += 1
            subscriptions[self._last_subscription] = (self._last_subscription, KEEPER, name, 0, 1)
        key = known[0] if known else self._last_subscription, topic
        cursors[key] = min(floor, cursors.get(key, floor))

    def _hold_for_lost(self, subscriptions: dict[int, Row], cursors: dict[tuple[int, int], int]) -> None:
        """What a subscription waits for that is lost would be collected."""
        for (subscription, topic), floor in list(cursors.items()):
            if subscription in subscriptions or topic not in self._named:
                continue
            del cursors[subscription, topic]
            name = str(self._topics[topic][1])
            self._hold(name, topic, floor, subscriptions, cursors)
            self.report.find(
                f"A subscription is lost that waits for {floor} of {name!r} and what comes after it: client {KEEPER!r} "
                "holds that now."
            )

    def _skip_lost(
        self, cursors: dict[tuple[int, int], int], skipped: dict[int, list[tuple[int, int]]]
    ) -> None:
        for (_, topic), floor in cursors.items():
            self._reaches(topic, floor)
        for topic, _, end, *_ in self._whole("page"):
            self._reaches(topic, end)
        for topic, name, state in self._whole("producer"):
            self._reaches(topic, self._reached(name, state) + 1)
        for id_, record in self._topics.items():
            record[3] = max(int(record[3]), self._ends.get(id_, 0))
        continuity = Continuity(
            {id_: int(topic[2]) for id_, topic in self._topics.items()},
            {id_: int(topic[3]) for id_, topic in self._topics.items()},
            skipped,
        )
        found = self._new.execute(schema.HEADERS_AFTER, (0,))
        gaps = [gap for id_, header in found for gap in continuity.add(runs_of(id_, header))]
        for gap in (*gaps, *continuity.finish()):
            name = str(self._topics[gap.topic][1])
            if not gap.twice:
                skipped.setdefault(gap.topic, []).append((gap.start, gap.stop))
                self.report.find(
                    f"Gone: {gap.start} to {gap.stop - 1} of {name!r}.", name, gap.start, gap.stop
                )
        if self._ends_lost:
            self._leave_room(skipped)

    def _leave_room(self, skipped: dict[int, list[tuple[int, int]]]) -> None:
        """Where topics end is not known: they go on so far behind that no offset is given out again."""
        for id_, topic in self._topics.items():
            end, next_ = int(topic[3]), int(topic[3]) + BLOCK_MOST
            topic[3] = next_
            if topic[2] == end and not topic[4]:
                topic[2] = next_
                continue
            skipped.setdefault(id_, []).append((end, next_))
            self.report.find(
                f"Perhaps gone: {end} and what came after it of {topic[1]!r}, which goes on at {next_}.",
                str(topic[1]),
                end,
                next_,
            )

    # --- who waits for what

    def _copy_subscriptions(
        self,
        subscriptions: dict[int, Row],
        cursors: dict[tuple[int, int], int],
        skipped: dict[int, list[tuple[int, int]]],
    ) -> None:
        cursors = {
            key: floor for key, floor in cursors.items() if key[0] in subscriptions and key[1] in self._named
        }
        if self._cursors_lost:
            self._complete(subscriptions.values(), cursors)
        done: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for subscription, topic, start, stop in self._whole("acked"):
            done.setdefault((subscription, topic), []).append((start, stop))
        self._put("subscription", subscriptions.values())
        for key, floor in cursors.items():
            reached, above = joined_ranges(floor, [*done.get(key, ()), *skipped.get(key[1], ())])
            self._put("cursor", [(*key, reached)])
            self._put("acked", [(*key, *one) for one in above])

    def _complete(self, subscriptions: Iterable[Row], cursors: dict[tuple[int, int], int]) -> None:
        """Whoever has no cursor where he should begins with all that there is."""
        for id_, client, filter_, start, durable in subscriptions:
            matches, wide = matcher(filter_), is_filter(filter_)
            for topic, (_, name, first, _, present, _) in self._topics.items():
                if wide and self._positions.get(topic, 0) <= start:
                    continue  # nothing came to it since
                if durable and present and (id_, topic) not in cursors and matches(str(name)):
                    cursors[id_, topic] = int(first)
                    self.report.find(f"Client {client!r} gets {name!r} from {first} on again.")

    def _copy_staged(self) -> None:
        for row in self._whole("staged"):
            id_, producer, counter, *_, segment, checksum = row
            if not staged_is_whole(self._folder, self._old, id_, segment, checksum):
                self.report.find(f"Staged batch {id_} of transaction {counter} of {producer!r} is left out.")
                continue
            if segment is not None:
                self._segments.add(segment)
            (content,) = self._old.execute(schema.GET_STAGED_BODY, (id_,)).fetchone()
            self._new.execute(schema.ADD_STAGED, (*row, content))

    def _meta(self, meta: dict[str, int]) -> dict[str, int]:
        """The single values; what is lost of them is so high that nothing is given out twice."""
        new = {"checkpoint": 0, "looked_at": 0, "unfinished": 0, "first_offset": meta.get("first_offset", 1)}
        if self._forgotten and "first_offset" not in meta:
            new["first_offset"] = max(self._ends.values(), default=0) + MARGIN
        starts = [row[3] or 0 for row in self._whole("subscription")]
        new["position"] = max([meta.get("position", 1), self._position + 1, *[start + 1 for start in starts]])
        if self._blocks_lost or "position" not in meta:
            new["position"] += BLOCK_MOST
        clients = [row[1] for table in ("subscription", "producer") for row in self._whole(table)]
        numbers = [
            int(name)
            for client in clients
            if re.fullmatch(r"[0-9]{1,18}", name := client.removeprefix(COUNTER_PREFIX))
        ]
        new["client_id"] = meta.get("client_id", max(numbers, default=0) + MARGIN)
        return new

    def _put_away(self) -> None:
        """Files in which nothing lies."""
        unused = set(segments.present(self._folder)) - self._segments
        if unused:
            place = new_quarantine(self._folder)
            for segment in unused:
                os.rename(segments.path_of(self._folder, segment), place / f"segment-{segment:08}")
            sync_folder(place)
            sync_folder(self._folder / segments.FOLDER)


def joined_ranges(floor: int, ranges: Iterable[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """How far a cursor is, and the ranges above that are done, each apart from the next."""
    (_, floor), *above = merged([(-1 << 63, floor)], sorted(ranges))
    return floor, above


def examine(
    folder: Path, reached: Reached, *, repair: bool, advance: Advance
) -> tuple[Report, Report | None]:
    """What was found in a folder; and, where it was repaired, what was lost. Raises StoreError where a broker has it
    open, or it is none."""
    if not any((folder / name).exists() for name in (DATABASE, REPAIRED)):
        raise StoreError(f"{folder} is not a data folder: it has no {DATABASE}. Name one with --data.")
    held = lock(folder)
    try:
        with translating_errors(folder):
            return _examined(folder, reached, repair, advance)
    finally:
        os.close(held)


def _examined(folder: Path, reached: Reached, repair: bool, advance: Advance) -> tuple[Report, Report | None]:
    first: str | None = None
    log_lost = False
    try:
        with opening(folder):
            check_version(folder, durability="fsync")
    except StoreDamaged as error:
        first = str(error)
        if repair:
            with opening(folder):
                log_lost = not accept_log(folder)
    with closing(look(folder)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != len(schema.MIGRATIONS) and schema_of(connection) != expected_schema():
            if first is not None:
                raise StoreDamaged(first)
            raise StoreError(
                f"{folder} has format {version}, and this program looks at {len(schema.MIGRATIONS)}: a broker that is "
                "started on it brings it there."
            )
        report = Check(folder, connection, reached, advance).run()
        if first is not None:
            report.find(first)
        if not repair or not report.findings:
            return report, None
        if schema_of(connection) != expected_schema():
            raise StoreDamaged(
                f"What the tables of {folder / DATABASE} are is damaged: they cannot be read. Restore the folder "
                f"from a copy, or try `sqlite3 {DATABASE} .recover`."
            )
        return report, Repair(folder, connection, reached, advance, log_lost=log_lost).run()
