"""A broker's life with everything in it, recorded, and what has to be there wherever it is cut off.

A life is a row of points: what there is after each turn of the broker's loop. The record says when a turn began and
when it was acknowledged. After a loss of power there must be one of these points, whole: the last that was
acknowledged, or one that was under way.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pytest

from stafeta.broker import Broker
from stafeta.columns import ColumnBatch
from stafeta.doors.flight.decode_batches import take
from stafeta.message import RowBatch
from stafeta.store.port import CommitRecord
from stafeta.store.sqlite import SqliteStore, ahead, segments, store, sweeper
from tests.broker.stores import shrink
from tests.faults.power import Mark
from tests.faults.recorder import Recorder
from tests.waiting import PATIENCE

NAMES = ("a", "b", "a/x", "a/y")
FILTERS = ("a", "b", "a/x", "#", "a/+")
CLIENTS = ("1", "2")

Durability: TypeAlias = Literal["fsync", "os"]
Staged: TypeAlias = list[tuple[str, str, list[bytes]]]  # part, topic, payloads


class Settings(NamedTuple):
    durability: Durability
    segments_from: int
    small: int  # slices and portions

    def shrink(self, patch: pytest.MonkeyPatch) -> None:
        """Lets everything that happens now and then happen all the time."""
        shrink(patch, self.small)
        patch.setattr(segments, "SIZE", 5000)
        patch.setattr(ahead, "TOGETHER", 1)
        patch.setattr(sweeper, "SPARE", 2)
        patch.setattr(sweeper, "PAGES", 3)
        patch.setattr(store, "WAL_COPY", 40_000)
        patch.setattr(store, "WAL_COPY_IDLE", 10_000)
        patch.setattr(store, "WAL_LIMIT", 200_000)
        patch.setattr(store, "WAL_AHEAD", 9_000)

    def store(self, folder: Path) -> SqliteStore:
        return _Store(
            folder, durability=self.durability, checkpoint_rows=self.small, segments_from=self.segments_from
        )


class _Store(SqliteStore):
    def _copy_if_due(self, limit: int = 40_000) -> None:
        super()._copy_if_due(min(limit, 40_000))


class Seen(NamedTuple):
    """All that a broker knows but for the messages themselves."""

    topics: dict[
        str, tuple[bool, int, int, bool]
    ]  # whether it is there, first, next, whether it keeps its last
    cursors: dict[tuple[str, str, str], tuple[int, list[tuple[int, int]]]]  # by client, filter, topic
    subscriptions: set[tuple[str, str]]
    producers: dict[tuple[str, str], bytes]
    done: dict[str, int]
    labels: dict[str, dict[int, CommitRecord]]
    staged: dict[tuple[str, int], list[tuple[str, str, int]]]
    client_id: int
    position: int


def seen(broker: Broker) -> Seen:
    topics = broker.topics.values()
    staged = broker.staging._staged.items()
    return Seen(
        {topic.name: (topic.exists, topic.first, topic.next, topic.keeps_last) for topic in topics},
        {
            (by.client, by.filter, topic.name): (cursor.floor, cursor.above)
            for topic in topics
            for by, cursor in topic.cursors()
        },
        {(client, filter_) for client, filters in broker.clients.items() for filter_ in filters},
        {
            (topic.name, name): state.encode()
            for topic in topics
            for name, state in (topic.producers or {}).items()
        },
        dict(broker.staging._done),
        {producer: dict(records) for producer, records in broker.staging._committed.items()},
        {
            key: [(one.part, topic, rows) for one in records for topic, rows in one.runs]
            for key, records in staged
            if records
        },
        broker.registry._client_id,
        broker.commits.position,
    )


@dataclass
class World:
    """What was ever published, and under which names."""

    payloads: dict[str, list[bytes]] = field(default_factory=dict)  # by topic, from offset 1 on
    staged: dict[tuple[str, int], Staged] = field(default_factory=dict)
    dedup_window: dict[tuple[str, str], list[tuple[int, bytes, int]]] = field(
        default_factory=dict
    )  # by topic, client
    points: list[Seen] = field(default_factory=list)

    def put(self, name: str, payloads: Sequence[bytes], offset: int | None) -> None:
        known = self.payloads.setdefault(name, [])
        assert offset is None or offset == len(known) + 1
        known += payloads

    def up_to(self, last: int) -> "World":
        """What is left of it where nothing came after this point."""
        point = self.points[last]
        ends = {name: next_ - 1 for name, (_, _, next_, _) in point.topics.items()}
        return World(
            {name: known[: ends.get(name, 0)] for name, known in self.payloads.items()},
            # Of those that are not open any more all is kept: an earlier point may come back.
            {key: staged[: len(point.staged.get(key, staged))] for key, staged in self.staged.items()},
            {
                key: [one for one in dedup_window if one[2] <= ends.get(key[0], 0)]
                for key, dedup_window in self.dedup_window.items()
            },
            self.points[: last + 1],
        )


def columns(name: str, payloads: Sequence[bytes]) -> ColumnBatch:
    """Messages as an Arrow client sends them."""
    return take(pa.record_batch({"payload": pa.array(payloads, pa.binary())}), name, 1, 1 << 30)


class Life:
    """Does random things, one turn after the other, and remembers what came of them."""

    def __init__(
        self, settings: Settings, random: Random, folder: Path, recorder: Recorder, world: World
    ) -> None:
        self.settings = settings
        self.random = random
        self.folder = folder
        self.recorder = recorder
        self.world = world
        self._transaction = 0
        self._ahead: list[tuple[str, list[bytes], ColumnBatch]] = []  # what is written and not committed

    async def live(self, turns: int) -> None:
        self.broker = await Broker.open(self.settings.store(self.folder), tail=2000)
        self._found()
        for _ in range(turns):
            await self._turn()
        await self.broker.close()

    def _found(self) -> None:
        """What there is at a start is as good as acknowledged: a retry would be told so."""
        found = seen(self.broker)
        points = self.world.points
        if not points:
            points.append(found)
        else:
            known = [at for at, point in enumerate(points) if point == found]
            assert known, "what is found at a start never was"
            self.world = self.world.up_to(known[-1])
        self._transaction = max((counter for _, counter in found.staged), default=self._unused())
        self.recorder.mark("found", len(self.world.points) - 1)

    def _unused(self) -> int:
        """A number that no transaction ever had."""
        return 1 + max((counter for _, counter in self.world.staged), default=0)

    async def _turn(self) -> None:
        if self.random.random() < 0.06:
            await self.broker.close()
            self._ahead.clear()
            self.broker = await Broker.open(self.settings.store(self.folder), tail=2000)
            now, then = seen(self.broker), self.world.points[-1]
            assert now == then, {
                name: (getattr(now, name), getattr(then, name))
                for name in Seen._fields
                if getattr(now, name) != getattr(then, name)
            }
            return
        if self.random.random() < 0.2:
            point = self._begin()
            work = self.broker.collector.collect() if self.random.random() < 0.6 else self._sweep()
            await work
            self._end(point)
            self.recorder.mark("acknowledged", point)
            return
        # Several groups under way together, now and then.
        commits: list[tuple[int, asyncio.Future[None]]] = []
        for _ in range(self.random.choice((1, 1, 1, 3))):
            point = self._begin()
            for _ in range(self.random.choice((1, 1, 1, 2, 5))):
                self.random.choice(VERBS)(self)
            self._end(point)
            commits.append((point, self.broker.commit()))
            await asyncio.sleep(0)
        for point, commit in commits:
            await commit
            self.recorder.mark("acknowledged", point)
        if seen(self.broker) != self.world.points[-1]:  # topics have gone with a filter that has ended
            point = self._begin()
            self._end(point)
            await self.broker.commit()
            self.recorder.mark("acknowledged", point)

    async def _sweep(self) -> None:
        await self.broker._store.sweep()

    def _begin(self) -> int:
        point = len(self.world.points)
        self.recorder.mark("begun", point)
        return point

    def _end(self, point: int) -> None:
        self.world.points.append(seen(self.broker))
        assert len(self.world.points) == point + 1

    # --- what it does

    def payload(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 5, 30, 30, 300, 3000)))

    def some(self) -> list[bytes]:
        return [self.payload() for _ in range(self.random.randint(1, 5))]

    def name(self) -> str:
        return self.random.choice(NAMES)

    def publish(self) -> None:
        name, payload = self.name(), self.payload()
        keep = self.random.random() < 0.1
        self.world.put(name, [payload], self.broker.publish(name, payload, create=True, keep_last=keep))

    def publish_once(self) -> None:
        name, payload, client = self.name(), self.payload(), self.random.choice(CLIENTS)
        if name not in self.broker.topics or not self.broker.topics[name].exists:
            return
        counter = self.random.randrange(1 << 40)
        offset = self.broker.publish_once(name, payload, client, counter)
        self.world.put(name, [payload], offset)
        self.world.dedup_window.setdefault((name, client), []).append((counter, payload, offset))

    def publish_sequence(self) -> None:
        name, payloads, producer = self.name(), self.some(), f"seq-{self.random.choice(CLIENTS)}"
        sequence = self.broker.next_sequence(name, producer)
        first, _ = self.broker.publish_sequence(name, payloads, producer, sequence, create=True)
        self.world.put(name, payloads, first)

    def append(self) -> None:
        name, payloads = self.name(), self.some()
        self.world.put(name, payloads, self.broker.append(name, columns(name, payloads)))

    def write_ahead(self) -> None:
        """What is appended some time later, or never; several by more than one thread."""
        waiting = []
        for _ in range(self.random.randrange(1, 4)):
            name, payloads = self.name(), self.some()
            batch, written = columns(name, payloads), threading.Event()
            if self.broker.write_ahead(batch, written.set):
                waiting.append(written)
            self._ahead.append((name, payloads, batch))
        assert all(written.wait(PATIENCE) for written in waiting)

    def append_ahead(self) -> None:
        if self._ahead:
            name, payloads, batch = self._ahead.pop(self.random.randrange(len(self._ahead)))
            self.world.put(name, payloads, self.broker.append(name, batch))

    def append_sequence(self) -> None:
        name, payloads, producer = self.name(), self.some(), f"seq-{self.random.choice(CLIENTS)}"
        sequence = self.broker.next_sequence(name, producer)
        first = self.broker.append(name, columns(name, payloads), "", producer, sequence)
        self.world.put(name, payloads, first)

    def subscribe(self) -> None:
        earliest = self.random.random() < 0.5
        self.broker.subscribe(self.random.choice(CLIENTS), self.random.choice(FILTERS), earliest=earliest)

    def unsubscribe(self) -> None:
        known = sorted(
            (client, filter_) for client, filters in self.broker.clients.items() for filter_ in filters
        )
        if len(known) > 2:
            self.broker.unsubscribe(*self.random.choice(known))

    def ack(self) -> None:
        held = [
            (by, topic)
            for topic in self.broker.topics.values()
            for by, cursor in topic.cursors()
            if cursor.floor < topic.visible
        ]
        if held:
            by, topic = self.random.choice(held)
            floor = by.cursors[topic].floor
            start = self.random.choice((floor, self.random.randrange(floor, topic.visible)))
            self.broker.ack(by, topic, start, self.random.randint(start + 1, topic.visible))

    def stage(self) -> None:
        name, payloads, part = self.name(), self.some(), self.random.choice("xy")
        counter, together = self._transaction, [(name, payloads)]
        way = self.random.randrange(3)
        if way == 0:
            self.broker.staging.stage("query", counter, part, name, [(3, one) for one in payloads])
        elif way == 1:
            self.broker.staging.stage_batch("query", counter, part, name, columns(name, payloads))
        else:
            together = [*({name: payloads} | {self.name(): self.some() for _ in range(2)}).items()]
            batches = [
                RowBatch(topic, 0, [(at, 0, "query", "", 3, None, one) for at, one in enumerate(some)])
                for topic, some in together
            ]
            self.broker.staging.stage_apart("query", counter, part, batches)
        self.world.staged.setdefault(("query", counter), []).extend(
            (part, topic, some) for topic, some in together
        )

    def commit(self) -> None:
        staged = self.world.staged.get(("query", self._transaction))
        if staged:
            parts = list(dict.fromkeys(part for part, _, _ in staged))
            self.random.shuffle(parts)
            parts = parts[: self.random.randint(1, 2)]
            self.broker.staging.commit("query", self._transaction, parts, label=" ".join(parts))
            for name, payloads in promoted(staged, parts):
                self.world.put(name, payloads, None)
            self._transaction = self._unused()

    def abort(self) -> None:
        if ("query", self._transaction) in self.world.staged:
            self.broker.staging.abort("query", self._transaction)
            self._transaction = self._unused()

    def new_client(self) -> None:
        self.broker.new_client()


VERBS: tuple[Callable[[Life], None], ...] = (
    *(Life.publish, Life.publish_once, Life.publish_once, Life.publish_sequence),
    *(Life.append, Life.append_sequence, Life.subscribe, Life.unsubscribe, Life.new_client),
    *(Life.write_ahead, Life.write_ahead, Life.append_ahead),
    *(Life.ack, Life.ack, Life.ack, Life.stage, Life.stage, Life.commit, Life.abort),
)


def promoted(staged: Staged, parts: Sequence[str]) -> list[tuple[str, list[bytes]]]:
    """What a commit of these parts makes visible, in its order."""
    return [(name, payloads) for wanted in parts for part, name, payloads in staged if part == wanted]


def after_mark(low: int, high: int, mark: Mark) -> tuple[int, int]:
    """The last point that was acknowledged, and the last that had begun, from what they were before."""
    match mark:
        case Mark("begun", point):
            return low, point
        case Mark("acknowledged", point):
            return point, high
        case Mark(_, point):  # found at a start
            return point, point
