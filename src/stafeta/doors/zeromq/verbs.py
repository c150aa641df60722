"""What each request does to the broker."""

import asyncio
from collections.abc import Iterable
from heapq import nsmallest

from stafeta.broker import Broker, Subscription, Topic
from stafeta.broker.names import check_filter, matcher
from stafeta.doors.zeromq.codec import (
    Ack,
    Delivery,
    Dialect,
    Get,
    Login,
    Put,
    PutSequence,
    Request,
    Subscribe,
    TopicLine,
    Topics,
    Unsubscribe,
)
from stafeta.doors.zeromq.json_dialect import stored_sequence, topics
from stafeta.errors import InvalidClient, NoSuchOffset
from stafeta.message import Batch

MAX_SIZE = 1 << 20
OTHER_DOORS = (
    "devices/",
    "flight/",
    "flights/",
    "frames/",
)  # what their clients' ids begin with at the broker


def act(broker: Broker, dialect: Dialect, request: Request, source: str) -> bytes:
    """Carry out a request that needs no reading; returns the reply for when it is durable."""
    match request:
        case Put(topic, payload, kind, client, counter):
            if counter is None or not client:
                offset = broker.publish(topic, payload, kind, source, client)
            else:
                offset = broker.publish_once(topic, payload, client, counter, kind, source)
            return dialect.stored(offset)
        case PutSequence(topic, payloads, kind, client, sequence):
            return stored_sequence(*broker.publish_sequence(topic, payloads, client, sequence, kind, source))
        case Subscribe(client, filter_):
            _check_own(client)
            subscription = broker.subscribe(client, filter_)
            return dialect.subscribed(_behind(subscription))
        case Unsubscribe(client, filter_):
            _check_own(client)
            broker.unsubscribe(client, filter_)
            return dialect.done()
        case Ack(client, filter_, ids, up_to):
            subscription, one = _aim(broker, client, filter_)
            assert one is not None, "acknowledging positions needs reading"
            ranges = _ranges(ids or ()) if up_to is None else [(0, up_to + 1)]
            for start, stop in reversed(
                ranges
            ):  # the highest first: it alone can be wrong, and then nothing is done
                broker.ack(subscription, one, start, stop)
            return dialect.done()
        case Login():
            return dialect.logged_in(broker.new_client())
        case Topics(filter_, after, limit):
            return topics(_topics(broker, filter_, after, limit))
        case Get():
            raise AssertionError("a GET needs reading")


def needs_reading(broker: Broker, request: Request) -> bool:
    if isinstance(request, Get):
        return True
    # By position: only the log tells which messages those are.
    return isinstance(request, Ack) and _aim(broker, request.client, request.filter)[1] is None


async def read(broker: Broker, dialect: Dialect, request: Get | Ack, size: int) -> bytes:
    """Carry out a request that needs reading."""
    if isinstance(request, Ack):
        subscription, _ = _aim(broker, request.client, request.filter)
        await _ack_positions(broker, subscription, request)
        await asyncio.shield(broker.receipt())
        return dialect.done()
    size = min(size, MAX_SIZE)
    delivery = await _deliver(broker, request, size)
    if request.wait and not delivery.batches:
        delivery = await _wait(broker, request, size)
    return dialect.messages(request, delivery, size)


def _check_own(client: str) -> None:
    if client.startswith(OTHER_DOORS):
        raise InvalidClient(f"The client id {client!r} is a client's of another door; choose another.")


def _aim(broker: Broker, client: str, filter_: str) -> tuple[Subscription, Topic | None]:
    """The subscription, and the one topic that is meant, or None for all that a filter matches."""
    _check_own(client)
    subscription = broker.subscription(client, filter_)
    if subscription.wide and filter_ == subscription.filter:
        return subscription, None
    return subscription, broker.topic(filter_)


def _behind(subscription: Subscription) -> int:
    """The last id that a subscription has behind it: an offset, or for a filter a position."""
    if not subscription.wide:
        (topic,) = subscription.topics
        return topic.cursors[subscription].floor - 1
    return subscription.start


async def _deliver(broker: Broker, request: Get, size: int) -> Delivery:
    subscription, topic = _aim(broker, request.client, request.filter)
    after = request.after
    if topic is None:
        if after is not None:
            await _ack_positions(broker, subscription, Ack(request.client, request.filter, None, after))
        return Delivery(await broker.fetch(subscription, list(subscription.topics), size), True)
    if after is None:
        return Delivery(await broker.fetch(subscription, [topic], size), False)
    if after >= topic.visible:
        raise _not_reached(topic, after)
    broker.ack(subscription, topic, 0, after + 1)
    broker.receipt()
    if request.limit is not None:
        return Delivery(await broker.fetch(subscription, [topic], size), by_position=False)
    # Whoever says n has n, whatever was acknowledged in its name since.
    batches = await broker.read(topic, after + 1, 1)
    return Delivery([batch.cut(batch.base, batch.base + 1) for batch in batches[:1]], by_position=False)


def _not_reached(topic: Topic, after: int) -> NoSuchOffset:
    return NoSuchOffset(f"Topic {topic.name!r} has no message {after} yet; its last is {topic.visible - 1}.")


async def _wait(broker: Broker, request: Get, size: int) -> Delivery:
    """Until there is something to deliver, or the time is over."""
    subscription, _ = _aim(broker, request.client, request.filter)
    news = asyncio.Event()

    def wake(topic: Topic) -> None:
        news.set()

    broker.watch(subscription, wake)
    try:
        async with asyncio.timeout(request.wait):
            while True:
                await news.wait()
                news.clear()
                delivery = await _deliver(broker, request, size)
                if delivery.batches:
                    return delivery
    except TimeoutError:
        return Delivery([], False)
    finally:
        broker.unwatch(subscription, wake)


async def _ack_positions(broker: Broker, subscription: Subscription, request: Ack) -> None:
    """Acknowledge messages of a filter by their positions, single ones or all up to one."""
    wanted = set(request.ids or ())
    last = max(wanted, default=0) if request.up_to is None else request.up_to
    if last >= broker.commits.position:
        raise NoSuchOffset(
            f"No message has the position {last} yet; the last is {broker.commits.position - 1}."
        )
    size = MAX_SIZE
    end = -1
    while True:
        # Single acknowledgements leave what is before them: each turn reads further than the one before.
        batches = await broker.fetch(subscription, list(subscription.topics), size)
        _ack_batches(broker, subscription, batches, last, None if request.up_to is not None else wanted)
        reached = batches[-1].positions[-1] if batches else end
        if reached >= last or reached == end:
            return
        end = reached
        size *= 2


def _ack_batches(
    broker: Broker, subscription: Subscription, batches: list[Batch], last: int, wanted: set[int] | None
) -> None:
    for batch in batches:
        for offset, position in enumerate(batch.positions, batch.base):
            if position <= last and (wanted is None or position in wanted):
                broker.ack(subscription, broker.topics[batch.topic], offset, offset + 1)


def _ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ids as ranges from, up to but not including."""
    ranges: list[tuple[int, int]] = []
    for id_ in sorted(set(ids)):
        if ranges and ranges[-1][1] == id_:
            ranges[-1] = (ranges[-1][0], id_ + 1)
        else:
            ranges.append((id_, id_ + 1))
    return ranges


def _topics(broker: Broker, filter_: str, after: str, limit: int) -> list[TopicLine]:
    check_filter(filter_)
    matches = matcher(filter_)
    wanted = (t for t in broker.topics.values() if t.exists and t.name > after and matches(t.name))
    first = nsmallest(limit, wanted, key=lambda topic: topic.name)
    return [TopicLine(t.name, t.first, t.visible, len(t.cursors)) for t in first]
