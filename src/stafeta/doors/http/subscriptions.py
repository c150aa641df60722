"""Subscriptions and clients: who waits for what, and how far each has come."""

import asyncio
from typing import Any, Final

from starlette.responses import Response

from stafeta.broker import Subscription, Topic, Verbs
from stafeta.broker.overview import SubscriptionLine
from stafeta.broker.portions import in_portions
from stafeta.doors.http.call import Call, answer
from stafeta.doors.http.codec import MAX_INT, Parameters, accepted, name_of, named, ranges_of, time_of
from stafeta.doors.http.problems import HttpProblem
from stafeta.doors.http.topics import MESSAGES, MOST, MOST_MESSAGES, OFFERED, PAGE, SIZE, written
from stafeta.errors import InvalidRequest, NoSuchOffset, NotSubscribed
from stafeta.message import Batch
from stafeta.names import check_filter, check_name

MAX_WAIT: Final = 30.0  # seconds
PORTION: Final = 100  # topics that are moved before others get their turn


def _who(name: str) -> dict[str, Any]:
    user, door, client = named(name)
    return {"client": client, "door": door, "user": user or None}


def _line(line: SubscriptionLine) -> dict[str, Any]:
    return {
        **_who(line.client),
        "filter": line.filter,
        "durable": line.durable,
        "connected": line.connected,
        "topics": line.topics,
        "behind": line.behind,
        "seconds": round(line.seconds, 3),
    }


async def clients(call: Call) -> Response:
    """A page of the clients that have subscriptions, or are connected by their names."""
    parameters = call.parameters
    after = parameters.text("after")
    limit = parameters.number("limit", 1, MOST, PAGE) or PAGE
    parameters.end()
    lines = await call.verbs.client_lines(after, limit)
    found = [
        {
            **_who(line.client),
            "subscriptions": line.subscriptions,
            "connected": line.connected,
            "behind": line.behind,
        }
        for line in lines
    ]
    return answer({"clients": found, "after": lines[-1].client if len(lines) == limit else None})


async def listed(call: Call) -> Response:
    """A page of the subscriptions by client and filter, or those that are furthest behind."""
    parameters = call.parameters
    sort = parameters.word("sort", ("client", "behind", "seconds"), "client")
    wanted = parameters.text("topic") or parameters.text("filter")
    search = parameters.text("search").lower()
    after = parameters.text("after")
    limit = parameters.number("limit", 1, MOST, PAGE) or PAGE
    parameters.end()
    if sort != "client":
        if after:
            raise InvalidRequest(
                "Those that are furthest behind come in one page; there is nothing after it."
            )
        found = await call.verbs.lagging_lines(limit, by_age=sort == "seconds", wanted=wanted, search=search)
        return answer({"subscriptions": [_line(line) for line in found], "after": None})
    client, _, filter_ = after.partition(" ")
    lines = await call.verbs.subscription_lines((client, filter_), limit, wanted, search=search)
    return answer(
        {
            "subscriptions": [_line(line) for line in lines],
            # There may be fewer in a page than there are after it.
            "after": f"{lines[-1].client} {lines[-1].filter}" if lines else None,
        }
    )


# --- one subscription


def _aim(call: Call, parameters: Parameters) -> tuple[str, str]:
    """The client's name at the broker, and the filter."""
    client, filter_ = parameters.needed_text("client"), parameters.needed_text("filter")
    name = name_of(client, parameters.text("door", "http"), parameters.text("user"))
    check_filter(filter_)
    return name, filter_


async def subscribe(call: Call) -> Response:
    """client, filter, from (earliest, or latest): hold what is published from now on, or from the first held on."""
    body = await call.object()
    client, filter_ = body.needed_text("client"), body.needed_text("filter")
    start = body.word("from", ("earliest", "latest"), "latest")
    body.end()
    name = name_of(client)
    check_filter(filter_)
    new = False
    try:
        call.verbs.subscription_named(name, filter_)
    except NotSubscribed:
        new = True
    subscription = call.verbs.subscribe(name, filter_, earliest=start == "earliest")
    await call.verbs.begun(subscription)
    await call.door.durable()
    return answer(
        {"client": client, "door": "http", "filter": filter_, "position": max(subscription.start, 0)},
        201 if new else 200,
    )


async def unsubscribe(call: Call) -> Response:
    """Releases what the subscription held."""
    parameters = call.parameters
    name, filter_ = _aim(call, parameters)
    parameters.end()
    subscription = call.verbs.subscription_named(name, filter_)
    call.verbs.end_subscription(subscription)
    call.door.streams.unsubscribed(subscription)
    await call.door.durable()
    return answer({})


async def cursors(call: Call) -> Response:
    """How far the subscription has come on each of its topics."""
    parameters = call.parameters
    name, filter_ = _aim(call, parameters)
    after = parameters.text("after")
    limit = parameters.number("limit", 1, MOST, PAGE) or PAGE
    parameters.end()
    subscription = call.verbs.subscription_named(name, filter_)
    await call.verbs.begun(subscription)
    found: list[dict[str, Any]] = []
    async for topic in in_portions(
        sorted(await call.verbs.matched_by(subscription), key=lambda one: one.name)
    ):
        if topic.exists and topic.name > after:
            if len(found) == limit:
                return answer({"cursors": found, "after": found[-1]["topic"]})
            found.append(_cursor(subscription, topic))
    return answer({"cursors": found, "after": None})


def _cursor(subscription: Subscription, topic: Topic) -> dict[str, Any]:
    above = subscription.above(topic)
    floor = max(subscription.floor(topic), topic.first)
    done = sum(stop - start for start, stop in above)
    return {
        "topic": topic.name,
        "next": min(floor, topic.visible),
        "first": topic.first,
        "end": topic.visible,
        "behind": max(topic.visible - floor - done, 0),
    }


async def messages(call: Call) -> Response:
    """What the subscription has not acknowledged, as soon as there is something; nothing where the time is over."""
    parameters = call.parameters
    name, filter_ = _aim(call, parameters)
    limit = parameters.number("limit", 1, MOST_MESSAGES, MESSAGES) or MESSAGES
    wait = parameters.seconds("wait", MAX_WAIT)
    parameters.end()
    media = accepted(call.header("accept"), OFFERED)
    if media is None:
        raise HttpProblem(406, f"Messages are {' or '.join(OFFERED)}.")
    verbs = call.verbs
    subscription = verbs.subscription_named(name, filter_)
    await verbs.begun(subscription)
    size = min(SIZE, limit * (64 << 10))
    batches = _at_most(await _fetched(verbs, subscription, size, limit, wait), limit)
    return await written(batches, media, {})


async def _fetched(
    verbs: Verbs, subscription: Subscription, size: int, limit: int, wait: float
) -> list[Batch]:
    if not wait:
        return await verbs.fetch(subscription, None, size, limit)
    wakeup = asyncio.Event()

    def wake(topic: Topic) -> None:
        wakeup.set()

    verbs.watch(subscription, wake)  # first: more may come while it is looked for
    try:
        async with asyncio.timeout(wait):
            while not (found := await verbs.fetch(subscription, None, size, limit)):
                await wakeup.wait()
                wakeup.clear()
        return found
    except TimeoutError:
        return []
    finally:
        verbs.unwatch(subscription, wake)


def _at_most(batches: list[Batch], limit: int) -> list[Batch]:
    """The first so many messages, in the order in which they were published."""
    if sum(batch.count for batch in batches) <= limit:
        return batches
    positions = sorted(position for batch in batches for position in batch.positions)
    last = positions[limit - 1]
    cut = [
        batch.cut(batch.base, batch.base + sum(position <= last for position in batch.positions))
        for batch in batches
    ]
    return [batch for batch in cut if batch.count]


async def ack(call: Call) -> Response:
    """client, filter, ranges (topic with offset, first and last, or last for all up to it): these are done with."""
    body = await call.object()
    name, filter_ = _aim(call, body)
    ranges = ranges_of(body.need("ranges"))
    body.end()
    verbs = call.verbs
    subscription = verbs.subscription_named(name, filter_)
    spans = []
    for topic_name, first, last in ranges:
        check_name(topic_name)
        topic = verbs.topic(topic_name)
        if not subscription.covers(topic_name):
            raise InvalidRequest(f"The subscription to {filter_!r} does not get {topic_name!r:.300}.")
        if last >= topic.visible:
            raise NoSuchOffset(
                f"Topic {topic_name!r} has no message {last} yet; its last is {topic.visible - 1}."
            )
        spans.append((topic, first, last + 1))
    for topic, start, stop in spans:
        verbs.ack(subscription, topic, start, stop)
    await call.door.durable()
    return answer({"acknowledged": len(spans)})


async def move(call: Call) -> Response:
    """client, filter, to (earliest, latest), offset with topic, or time: go on there, forward or back."""
    body = await call.object()
    name, filter_ = _aim(call, body)
    topic_name = body.text("topic")
    to = body.text("to")
    offset = body.number("offset", 0, MAX_INT)
    time = time_of("time", body.one("time")) if body.has("time") else None
    body.end()
    if sum((bool(to), offset is not None, time is not None)) != 1:
        raise InvalidRequest(
            "A subscription moves to an offset, to a time, or to earliest or latest: name one."
        )
    if to not in ("", "earliest", "latest"):
        raise InvalidRequest(f"'to' must be earliest or latest, not {to[:50]!r}.")
    verbs = call.verbs
    subscription = verbs.subscription_named(name, filter_)
    await verbs.begun(subscription)
    topics = await verbs.matched_by(subscription)
    if topic_name:
        topics = [topic for topic in topics if topic.name == topic_name]
        if not topics:
            check_name(topic_name)
            topic = verbs.topic(topic_name)
            raise InvalidRequest(f"The subscription to {filter_!r} does not get {topic.name!r}.")
    elif offset is not None and len(topics) != 1:
        raise InvalidRequest("An offset is one of a topic: name the topic, too.")
    moved: list[dict[str, Any]] = []
    count = collected = 0
    for number, topic in enumerate(topics, 1):
        if not topic.exists:
            continue
        wanted = await _place(verbs, topic, to, offset, time)
        place = verbs.move(subscription, topic, wanted)
        count += 1
        gone = max(place - max(wanted, 1), 0) if offset is not None else 0
        collected += gone
        if len(moved) < MOST:
            moved.append({"topic": topic.name, "next": place, "collected": gone})
        if number % PORTION == 0:
            await call.door.durable()
    await call.door.durable()
    return answer({"topics": count, "collected": collected, "moved": moved})


async def _place(verbs: Verbs, topic: Topic, to: str, offset: int | None, time: int | None) -> int:
    if offset is not None:
        return offset
    if time is not None:
        return await verbs.locate(topic, time)
    return topic.first if to == "earliest" else topic.visible
