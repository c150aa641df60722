"""Requests that are carried out in portions: what is answered is so, whatever happens between two of them."""

import asyncio
from collections.abc import Awaitable, Callable

import orjson
import pytest

from stafeta.broker import Broker, portions
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.codec import (
    Ack,
    Clients,
    Get,
    PutSequence,
    Request,
    Stats,
    Subscriptions,
    Topics,
    Watch,
)
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.watchers import Watchers
from stafeta.errors import OutOfSequence, StoreFull
from stafeta.message import Kind
from stafeta.store.port import Group
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run

DIALECT = JsonDialect()


class FailsOnce(MemoryStore):
    """One of its commits fails."""

    def __init__(self) -> None:
        super().__init__()
        self.until = -1

    async def commit(self, group: Group) -> None:
        self.until -= 1
        if self.until == 0:
            raise StoreFull("No room is left.")
        await super().commit(group)


def with_broker(work: Callable[[Broker, FailsOnce], Awaitable[None]]) -> None:
    async def life() -> None:
        store = FailsOnce()
        broker = await Broker.open(store)
        broker.subscribe("reader", "t")
        await broker.commit()
        await work(broker, store)
        await broker.close()

    run(life())


def put(count: int, sequence: int = 1) -> PutSequence:
    return PutSequence("t", [b"x" * 200] * count, Kind.STRING, "p", sequence)


async def carry_out(broker: Broker, request: PutSequence | Ack | Get) -> dict[str, object]:
    reply = await actions.act_in_portions(broker, Watchers(), DIALECT, request, "", 1 << 20)
    answer: dict[str, object] = orjson.loads(reply)
    return answer


@pytest.mark.parametrize(
    "request_", [Stats(), Topics("#", "", 1), Clients("", 1), Subscriptions(("", ""), 1, "")]
)
def test_others_get_their_turn_between_two_requests_that_look_at_all_there_is(request_: Request) -> None:
    async def work(broker: Broker, store: FailsOnce) -> None:
        assert actions.takes_time(broker, request_)

    with_broker(work)


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_put_of_which_a_portion_cannot_be_stored_is_not_acknowledged(failing: int) -> None:
    async def work(broker: Broker, store: FailsOnce) -> None:
        store.until = failing
        try:
            answer = await carry_out(broker, put(3000))
        except (StoreFull, OutOfSequence):
            pass
        else:
            assert store.until > 0, "the commit that fails was one of them"
            assert answer["body"] == {"first_publication_id": 1, "current_publication_id": 3000}
        store.until = -1
        stored = broker.next_sequence("t", "p") - 1
        await broker.commit()
        assert broker.topic("t").visible == stored + 1
        assert (await carry_out(broker, put(3000)))["type"] == "ACK"
        assert broker.topic("t").visible == 3001, "each of them is there once"

    with_broker(work)


@pytest.mark.parametrize("failing", range(1, 6))
def test_an_ack_of_which_a_portion_cannot_be_stored_is_refused(failing: int) -> None:
    async def work(broker: Broker, store: FailsOnce) -> None:
        await carry_out(broker, put(12_000))
        subscription = broker.subscription("reader", "t")
        cursor = subscription.cursors[broker.topic("t")]
        store.until = failing
        try:
            await carry_out(broker, Ack("reader", "t", list(range(2, 12_001, 2))))
        except StoreFull:
            assert cursor.gaps < 6000
        else:
            assert store.until > 0
            assert cursor.gaps == 6000

    with_broker(work)


def test_a_put_that_is_refused_in_the_middle_says_what_is_stored() -> None:
    """Else its numbers would be used again, for messages that would be taken for repeated ones."""

    async def work(broker: Broker, store: FailsOnce) -> None:
        putting = asyncio.ensure_future(carry_out(broker, put(5000)))
        while broker.topic("t").next < 1001:  # noqa: ASYNC110 - nothing tells when a portion is placed
            await asyncio.sleep(0)
        broker.unsubscribe("reader", "t")
        with pytest.raises(OutOfSequence, match="does not exist") as caught:
            await putting
        assert caught.value.expected == broker.next_sequence("t", "p") > 1000

    with_broker(work)


def test_a_message_that_comes_while_a_get_looks_for_some_ends_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "FEW", 0)  # others get their turn after each look at some topics

    async def work(broker: Broker, store: FailsOnce) -> None:
        filter_ = broker.subscribe("c", "#")
        broker.publish("t", b"1")
        await broker.commit()
        broker.ack(filter_, broker.topic("t"), 1, 2)
        await broker.commit()
        broker.publish("t", b"2")
        broker.commit()
        answer = await carry_out(broker, Get("c", "#", limit=10, wait=5))
        assert b'"2"' in orjson.dumps(answer)

    with_broker(work)


def test_a_watcher_whose_time_ends_while_its_messages_are_gathered_gets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the middle of it, where some of them count as handed out."""
    monkeypatch.setattr(portions, "PORTION", 1)
    names = [f"t/{number}" for number in range(60)]

    async def work(broker: Broker, store: FailsOnce) -> None:
        watchers = Watchers()
        got: list[bytes] = []

        async def ask(wait: float) -> int:
            batches = await watchers.ask(broker, Watch("w", ["#"], wait), 1 << 20)
            got.extend(payload for batch in batches for payload in batch.payloads)
            return len(batches)

        await ask(0.0)
        for round_ in range(30):
            for name in names:
                broker.publish(name, b"%d" % round_)
            await broker.commit()
            await ask(0.0001 * (round_ + 1))
        while await ask(0.0):
            pass
        assert len(got) == 30 * len(names)
        watchers.close()

    with_broker(work)
