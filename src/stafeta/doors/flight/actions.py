"""The actions: what is asked for without Arrow data. All of this runs on the broker's loop."""

import asyncio
from collections.abc import Awaitable, Callable
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, Final

from stafeta import __version__
from stafeta.broker import Topic, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.flight.codec import Body
from stafeta.errors import InvalidRequest, NoSuchOffset
from stafeta.names import FLIGHT_PREFIX, check_client, check_name

if TYPE_CHECKING:
    from stafeta.doors.flight.server import FlightDoor

MAX_RANGES: Final = 1000
MAX_LABEL: Final = 200
MAX_FORGET: Final = 10 * 365 * 24 * 3600  # seconds
Result = dict[str, Any]


def client_of(name: str) -> str:
    """What a client of this door is called at the broker."""
    check_client(name)
    return FLIGHT_PREFIX + name


async def subscribe(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """client, filter, from (earliest, or latest): hold what is published from now on, or from the first held on."""
    client, filter_ = client_of(body.text("client")), body.text("filter")
    start = body.text("from", optional=True)
    if start not in (None, "earliest", "latest"):
        raise InvalidRequest(f"A subscription begins at earliest or latest, not at {shown(start)}.")
    body.end()
    subscription = verbs.subscribe(client, filter_, earliest=start == "earliest")
    await verbs.begun(subscription)
    await door.durable()
    return [{"position": subscription.start}]


async def unsubscribe(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """client, filter: release what the subscription held."""
    client, filter_ = client_of(body.text("client")), body.text("filter")
    body.end()
    verbs.unsubscribe(client, filter_)
    door.end_stream(verbs, client, filter_, "The subscription was ended.")
    await door.durable()
    return [{}]


async def ack(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """client, filter, ranges ([topic, from or null, to] each), mark (optional): these messages are done with."""
    client, filter_ = client_of(body.text("client")), body.text("filter")
    ranges = body.items("ranges")
    mark = body.text("mark", optional=True)
    body.end()
    if len(ranges) > MAX_RANGES:
        raise InvalidRequest(
            f"There are {len(ranges)} ranges; at most {MAX_RANGES} can be acknowledged together."
        )
    if mark:
        verbs.check_mark(mark)
    subscription = verbs.subscription(client, filter_)
    for topic, start, stop in [_range(verbs, one) for one in ranges]:
        verbs.ack(subscription, topic, start, stop)
    await door.durable()
    return [{}]


async def cursors(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """client, filter: how far the subscriber has come on each topic."""
    subscription = verbs.subscription(client_of(body.text("client")), body.text("filter"))
    body.end()
    await verbs.begun(subscription)
    found = [
        {"topic": topic.name, "floor": subscription.floor(topic), "next": topic.visible}
        async for topic in in_portions(await verbs.matched_by(subscription))
        if topic.exists
    ]
    await door.durable()  # what it stands on may not be yet
    return found


async def subscriptions(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """The durable subscriptions of all doors, and how far each has come on its topics."""
    body.end()
    results = []
    for client, subscription in verbs.durable_subscriptions():
        cursors = [
            # As of one instant, and up to what is on its way to the disk: a cursor may stand there.
            {
                "topic": topic.name,
                "floor": subscription.floor(topic),
                "above": subscription.above(topic),
                "first": topic.first,
                "next": topic.next,
            }
            async for topic in in_portions(await verbs.matched_by(subscription))
            if topic.exists
        ]
        results.append({"client": client, "filter": subscription.filter, "cursors": cursors})
        await asyncio.sleep(0)
    await door.durable()
    return results


def _range(verbs: Verbs, given: object) -> tuple[Topic, int, int]:
    match given:
        case [str() as name, int() | None as start, int() as stop] if (
            0 <= (start or 0) <= stop and not isinstance(start, bool) and not isinstance(stop, bool)
        ):
            topic = verbs.topic(name)
            if stop > topic.visible:
                raise NoSuchOffset(
                    f"Topic {name!r} has no message {stop - 1} yet; its last is {topic.visible - 1}."
                )
            return topic, start or 0, stop
    raise InvalidRequest(f"{given!r:.100} is no range of offsets; one is [topic, from or null, to].")


async def topics(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """filter (optional): the topics there are."""
    filter_ = body.text("filter", optional=True)
    body.end()
    return [
        {
            "topic": topic.name,
            "first": topic.first,
            "next": topic.visible,
            "rows": topic.messages(topic.first, topic.visible),
            "subscribers": verbs.subscribed_to(topic),
            **({"skipped": topic.skipped} if topic.skipped else {}),
        }
        async for topic in in_portions(await door.topics(verbs, filter_))
    ]


async def check(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """marks: refused where one is not of this log, or of what it has lost."""
    marks = body.texts("marks")
    body.end()
    for mark in marks:
        verbs.check_mark(mark)
    return [{}]


async def stats(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """What the broker is doing."""
    body.end()
    found = {"version": __version__, **verbs.stats()}
    if "clients" in found:  # how many others there are is seen by who looks after the broker
        found["streams"] = door.streams
    return [found]


async def sequence(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """producer, topic: the number that the producer's next row has."""
    producer, topic = client_of(body.text("producer")), body.text("topic")
    body.end()
    check_name(topic)
    following = verbs.next_sequence(topic, producer)
    await door.durable()  # what has it so far may not be durable yet
    return [{"next": following}]


async def begin(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """producer: begin its next transaction, and drop what was staged for it before."""
    producer = client_of(body.text("producer"))
    body.end()
    counter, attempt = verbs.begin_transaction(producer)
    await door.durable()
    return [{"counter": counter, "attempt": attempt}]


async def committed(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """producer, counter (optional): its last transaction that was committed, and the label of that one, or of the one
    with this counter."""
    producer, counter = client_of(body.text("producer")), body.number("counter", least=0, optional=True)
    body.end()
    last = verbs.last_transaction(producer)
    label = verbs.transaction_label(producer, last if counter is None else counter)
    await door.durable()  # it may not be yet, and may fail
    return [{"counter": None if last < 0 else last, "label": label}]


async def commit(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """producer, counter, attempt, parts, label, forget_after (all four optional): make what was staged visible, all at
    once."""
    producer, counter, attempt = _transaction(body)
    parts = body.counts("parts", optional=True)
    label = body.text("label", optional=True) or ""
    seconds = body.number("forget_after", least=1, optional=True)
    body.end()
    if len(label) > MAX_LABEL:
        raise InvalidRequest(f"A label has {MAX_LABEL} characters at most, not {len(label)}.")
    forget_after = None if seconds is None else min(seconds, MAX_FORGET) * 1_000_000
    await door.durable()  # what was staged last may not be yet
    await verbs.prepare_transaction(producer, counter, parts, attempt)
    done = verbs.is_committed(producer, counter)
    verbs.commit_transaction(producer, counter, parts, attempt, label, forget_after)
    await door.durable()
    return [{"committed": not done}]


async def abort(door: "FlightDoor", verbs: Verbs, body: Body) -> list[Result]:
    """producer, counter, attempt (optional): drop what was staged."""
    producer, counter, attempt = _transaction(body)
    body.end()
    verbs.abort_transaction(producer, counter, attempt)
    await door.durable()
    return [{}]


def _transaction(body: Body) -> tuple[str, int, int | None]:
    return (
        client_of(body.text("producer")),
        body.number("counter", least=0),
        body.number("attempt", least=1, optional=True),
    )


ACTIONS: Final[dict[str, Callable[["FlightDoor", Verbs, Body], Awaitable[list[Result]]]]] = {
    action.__name__: action
    for action in (
        subscribe,
        unsubscribe,
        ack,
        cursors,
        subscriptions,
        topics,
        check,
        stats,
        sequence,
        begin,
        committed,
        commit,
        abort,
    )
}


async def act(door: "FlightDoor", verbs: Verbs, name: str, body: bytes) -> list[Result]:
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequest(f"There is no action {shown(name)}; there are {', '.join(ACTIONS)}.")
    return await action(door, verbs, Body(body, f"body of the action {name}"))
