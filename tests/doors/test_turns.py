"""However many topics a filter matches: no request looks at more than a portion of them in one turn of the loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from stafeta.broker import Broker, Topic, collector, portions
from stafeta.doors.flight.actions import ACTIONS
from stafeta.doors.flight.codec import ALL, Body, Range, Ticket
from stafeta.doors.flight.server import FlightDoor
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.codec import Ack, Clients, Get, Request, Stats, Subscriptions, Topics, Wait, Watch
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.watchers import Watchers
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run

TOPICS = 250
MOST = 100  # that may be looked at in one turn


class Turns:
    def __init__(self) -> None:
        self.topics: set[Topic] = set()  # that were looked at in this turn
        self.most = 0

    def end(self) -> None:
        self.most = max(self.most, len(self.topics))
        self.topics.clear()


@contextmanager
def counted() -> Iterator[Turns]:
    """Counts the topics of which anything is read or written, by turn: a callback or a step of a task."""
    turns = Turns()
    step = asyncio.Handle._run

    def run_step(handle: asyncio.Handle) -> None:
        step(handle)
        turns.end()

    def look(topic: Topic, name: str) -> Any:
        turns.topics.add(topic)
        return object.__getattribute__(topic, name)

    asyncio.Handle._run = run_step  # type: ignore[method-assign,assignment]
    Topic.__getattribute__ = look  # type: ignore[method-assign,assignment]
    try:
        yield turns
        turns.end()
    finally:
        del Topic.__getattribute__
        asyncio.Handle._run = step  # type: ignore[method-assign]


class Doors(NamedTuple):
    broker: Broker
    flight: FlightDoor
    watchers: Watchers

    async def ask(self, request: Request) -> None:
        """As a ZeroMQ client."""
        await actions.act_in_portions(self.broker, self.watchers, JsonDialect(), request, "", 1 << 20)

    async def act(self, action: str, **body: str) -> None:
        """As a Flight client."""
        await ACTIONS[action](self.flight, self.broker, Body(body, "request"))


Step = Callable[[Doors], Awaitable[object]]


async def nothing(doors: Doors) -> None:
    pass


async def held(doors: Doors) -> None:
    doors.broker.subscribe("c", "#")


async def held_for_flight(doors: Doors) -> None:
    await doors.act("subscribe", client="c", filter="#")


async def device(doors: Doors) -> None:
    doors.broker.consumer("c").subscribe("#", durable=False, persistent=True)


async def device_left(doors: Doors) -> None:
    consumer = doors.broker.consumer("c")
    consumer.subscribe("#", durable=False, persistent=True)
    consumer.close()


async def watched(doors: Doors) -> None:
    await doors.ask(Watch("c", ["#"], 0))


async def subscribe(doors: Doors) -> None:
    doors.broker.subscribe("c", "#")


async def subscribe_live(doors: Doors) -> None:
    doors.broker.consumer("c").subscribe("#", durable=False)


async def subscribe_device(doors: Doors) -> None:
    doors.broker.consumer("c").subscribe("#", durable=False, persistent=True)


async def hold_less(doors: Doors) -> None:
    doors.broker.consumer("c").subscribe("#", durable=False, persistent=True)


async def hold_more(doors: Doors) -> None:
    doors.broker.subscribe("c", "#", durable=True)


async def leave(doors: Doors) -> None:
    doors.broker.leave(doors.broker.subscription("c", "#"))


async def unsubscribe(doors: Doors) -> None:
    doors.broker.unsubscribe("c", "#")


async def unsubscribe_consumer(doors: Doors) -> None:
    consumer = doors.broker.consumer("c")
    consumer.resume()
    await asyncio.sleep(0)
    consumer.unsubscribe("#")


async def resume(doors: Doors) -> None:
    news = asyncio.Event()
    consumer = doors.broker.consumer("c", news.set)
    consumer.resume()
    found = 0
    while found < TOPICS:
        news.clear()
        batches = consumer.take(1 << 20)
        if batches is None:
            batches = await consumer.read(1 << 20)
        found += sum(batch.count for batch in batches)
        if not batches and not consumer.ready:
            await news.wait()


async def resume_device(doors: Doors) -> None:
    doors.broker.consumer("c").resume()


async def stream(doors: Doors, range_: Range = ALL, client: str | None = None) -> None:
    stream = await doors.flight.open(doors.broker, Ticket(filter="#", range=range_, client=client))
    doors.flight.close_stream(stream)


async def stream_live(doors: Doors) -> None:
    await stream(doors, Range(latest=True))


async def stream_held(doors: Doors) -> None:
    await stream(doors, client="c")


async def acknowledge_twice(doors: Doors) -> None:
    for _ in range(2):
        await doors.ask(Ack("c", "#", None, doors.broker.visible_position - 1))


CASES: dict[str, tuple[Step, Step]] = {
    "SUB": (nothing, subscribe),
    "SUB live": (nothing, subscribe_live),
    "SUB of a device": (nothing, subscribe_device),
    "SUB from the earliest": (
        nothing,
        lambda doors: doors.act("subscribe", client="c", filter="#", **{"from": "earliest"}),
    ),
    "a durable one becomes persistent": (held, hold_less),
    "a persistent one becomes durable": (device_left, hold_more),
    "UNSUB": (held, unsubscribe),
    "UNSUB of a watcher": (watched, lambda doors: doors.ask(Watch("c", [], 0))),
    "UNSUB of a consumer": (held, unsubscribe_consumer),
    "a device leaves": (device, leave),
    "a device comes back": (device_left, resume_device),
    "a client comes back": (held, resume),
    "many filters": (
        nothing,
        lambda doors: doors.ask(Watch("c", ["#", "+/+", "t/#", "t/+", "#/#", "+/#"], 0)),
    ),
    "a stream from the earliest": (nothing, stream),
    "a stream of what comes": (nothing, stream_live),
    "a stream of a client": (held_for_flight, stream_held),
    "GET": (held, lambda doors: doors.ask(Get("c", "#"))),
    "WAIT": (held, lambda doors: doors.ask(Wait("c", ["#"], 0))),
    "ACK": (held, acknowledge_twice),
    "subscriptions": (held, lambda doors: doors.ask(Subscriptions(("", ""), 10, ""))),
    "clients": (held, lambda doors: doors.ask(Clients("", 10))),
    "topics": (held, lambda doors: doors.ask(Topics("#", "", MOST))),
    "stats": (held, lambda doors: doors.ask(Stats())),
    "cursors by Flight": (held_for_flight, lambda doors: doors.act("cursors", client="c", filter="#")),
    "subscriptions by Flight": (held, lambda doors: doors.act("subscriptions")),
    "topics by Flight": (held, lambda doors: doors.act("topics")),
}


@pytest.mark.parametrize("case", CASES)
def test_no_request_looks_at_more_than_a_portion_of_the_topics_at_once(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, request = CASES[case]
    for module in (portions, collector):
        monkeypatch.setattr(module, "PORTION", MOST)
    monkeypatch.setattr(portions, "FEW", MOST // 10)

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        doors = Doors(broker, FlightDoor(broker, max_batch=1 << 20, max_streams=10), Watchers())
        broker.subscribe("maker", "#")
        for number in range(TOPICS):
            broker.publish(f"t/{number}", b"before")
        await broker.commit()
        await before(doors)
        for number in range(TOPICS):
            broker.publish(f"t/{number}", b"after")
        await broker.commit()
        with counted() as turns:
            await asyncio.sleep(0)  # the turn that began with what is not counted
            await request(doors)
            await broker.commit()
            for _ in range(20):
                await asyncio.sleep(0)
            await broker.collector.collect()
        assert turns.most <= MOST
        doors.watchers.close()
        await broker.close()

    run(work())
