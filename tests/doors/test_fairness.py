"""How much a door adds to a group, while the disk is slow and much comes in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
import zmq

import stafeta
from stafeta.broker import Broker
from stafeta.broker.commits import DOOR_SHARE
from stafeta.doors.devices.receiver import DATAGRAMS
from stafeta.doors.flight.server import ALONE, FlightDoor
from stafeta.store.port import Append, Group
from stafeta.testing.memory import MemoryStore
from tests.doors.devices.subscribers import Publisher
from tests.doors.frames.peers import Peer as Frames
from tests.doors.opened import DOORS
from tests.doors.zeromq.peers import Peer as ZeroMQ
from tests.doors.zeromq.peers import request
from tests.waiting import PATIENCE

LARGE = "x" * 60_000
COUNT = 150  # messages of each of three publishers: some MiB together
SLOW = 0.03  # seconds of a commit, in which the next group grows


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.stored = 0
        self.ready: Callable[[], bool] = lambda: True  # else messages are not stored yet

    async def commit(self, group: Group) -> None:
        await asyncio.sleep(SLOW)
        while group.appends and not self.ready():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(SLOW)
        batches = [append.batch for append in group.appends if isinstance(append, Append)]
        self.sizes.append(sum(batch.size for batch in batches))
        self.stored += sum(batch.count for batch in batches)
        await super().commit(group)


@pytest.mark.parametrize("kind", ["frames", "zeromq", "devices", "flight"])
def test_a_group_takes_a_bounded_number_of_bytes_from_a_door(kind: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sizes = runner.run(_flood(kind))
    assert sum(sizes) > 4 * DOOR_SHARE, "else it proves nothing"
    # Record batches that nobody else waits behind make larger groups. A message that fills a share belongs to it.
    assert max(sizes) < (ALONE if kind == "flight" else DOOR_SHARE) + DOOR_SHARE + 2 * len(LARGE)
    assert kind != "flight" or max(sizes) > DOOR_SHARE + 10 * len(LARGE)


def test_groups_of_record_batches_are_smaller_while_there_are_single_messages() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sizes = runner.run(_flood("flight", beside=True))
    assert sum(sizes) > 4 * DOOR_SHARE, "else it proves nothing"
    assert max(sizes) < DOOR_SHARE + 11 * len(LARGE)


async def _publish_singly(broker: Broker) -> None:
    while True:
        broker.publish("single", b"x", create=True)
        broker.commit()
        await asyncio.sleep(SLOW / 5)  # so that each group has some


async def _flood(kind: str, *, beside: bool = False) -> list[int]:
    store = SlowStore()
    broker = await Broker.open(store)
    broker.subscribe("keeper", "t", durable=True)
    singly = asyncio.ensure_future(_publish_singly(broker)) if beside else None
    door, place = await DOORS[kind](broker)
    if isinstance(door, FlightDoor):
        putting, waited_for = door._putting, {"bytes": 3 * DOOR_SHARE}

        def much_waits() -> bool:
            if sum(stream._queued for stream in putting) >= waited_for["bytes"]:
                waited_for["bytes"] = 0
            return not waited_for["bytes"]

        store.ready = much_waits
    try:
        count = await asyncio.to_thread(_FLOODS[kind], place)
        async with asyncio.timeout(PATIENCE):
            while store.stored < count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.05)
    finally:
        if singly is not None:
            singly.cancel()
        await door.close()
        await broker.close()
    return store.sizes


def _together(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(work) for _ in range(3)]:
            done.result()


def _frames(place: tuple[str, int]) -> int:
    def publish() -> None:
        with Frames(place) as peer:
            peer.publish("t", *[LARGE] * COUNT)
            peer.topics()

    _together(publish)
    return 3 * COUNT


def _zeromq(place: str) -> int:
    def publish() -> None:
        with ZeroMQ(place, zmq.DEALER) as peer:
            for _ in range(COUNT):
                peer.send(f"PUT t {LARGE}")
            assert {peer.receive() for _ in range(COUNT)} == {"ACK"}

    _together(publish)
    return 3 * COUNT


def _devices(place: tuple[str, int]) -> int:
    """As many as wait at once for the loop, which are not lost."""
    count = 8 * DATAGRAMS
    with Publisher(place) as publisher:
        for _ in range(count):
            publisher.send("t", 3, b"x" * 1000)
    return count * 9 // 10


def _flight(place: tuple[str, int]) -> int:
    host, port = place

    def publish() -> None:
        with stafeta.connect(f"grpc://{host}:{port}") as peer, peer.producer("t", batch_rows=10) as producer:
            for _ in range(COUNT):
                producer.send(LARGE)

    _together(publish)
    return 3 * COUNT


_FLOODS: dict[str, Callable[[Any], int]] = {
    "frames": _frames,
    "zeromq": _zeromq,
    "devices": _devices,
    "flight": _flight,
}


def test_requests_that_wait_for_the_next_group_are_not_taken_once_the_door_closes() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        faults, late = runner.run(_close_within())
    assert not faults, "the socket is gone, and nothing is to be sent on it"
    assert not late


async def _close_within() -> tuple[list[dict[str, Any]], int]:
    """What went wrong, and how many messages were taken after a door was closed that had more than it may take."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    store = SlowStore()
    broker = await Broker.open(store)
    broker.subscribe("keeper", "t", durable=True)
    door, place = await DOORS["zeromq"](broker)
    with ZeroMQ(place) as peer:
        peer.send(request("PUT", "t", "p", publications=["x" * 400] * 1200, sequence=1))  # takes time
        for _ in range(200):
            peer.send(request("PUT", "t", publication=LARGE))
        async with asyncio.timeout(PATIENCE):
            while store.stored <= 1200:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
        await door.close()
        taken = broker.topic("t").next
        for _ in range(5):
            await asyncio.sleep(SLOW)
            await broker.commit()
        late = broker.topic("t").next - taken
    await broker.close()
    return faults, late
