"""Topics: which there are, what they hold, and how they are made and emptied."""

import asyncio
from typing import Any, Final, Literal

from starlette.responses import Response

from stafeta.broker import Retention, Topic, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.http import encoding
from stafeta.doors.http.call import LARGE, MAX_OBJECT, Call, answer, plain
from stafeta.doors.http.codec import ARROW, JSON, MAX_INT, NDJSON, Parameters, accepted
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidRequest, NoSuchOffset, StoreDamaged
from stafeta.message import Batch
from stafeta.names import check_filter, check_name, is_filter, matcher

PAGE: Final = 100  # lines of a list, unless asked for
MOST: Final = 1000  # and at most
LOOKS: Final = 100_000  # topics looked at for one page of those that a text is searched in
MESSAGES: Final = 100  # of an answer, unless asked for
MOST_MESSAGES: Final = 10_000
SIZE: Final = 4 << 20  # bytes of payload in one answer, about
MOST_SECONDS: Final = 100 * 365 * 86400.0  # that messages are kept
OFFERED: Final = (JSON, NDJSON, ARROW)


def _line(verbs: Verbs, topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "first": topic.first,
        "next": topic.visible,
        "messages": topic.messages(topic.first, topic.visible),
        "subscriptions": verbs.subscribed_to(topic),
        "keeps_last": topic.keeps_last,
    }


async def listed(call: Call) -> Response:
    """A page of the topics, by name: those that a filter matches, and that have a text in their names."""
    parameters = call.parameters
    filter_ = parameters.text("filter", "#")
    search = parameters.text("search").lower()
    after = parameters.text("after")
    limit = parameters.number("limit", 1, MOST, PAGE) or PAGE
    parameters.end()
    check_filter(filter_)
    found: list[Topic] = []
    looked = 0
    more: str | None = after
    while more is not None and len(found) < limit and looked < LOOKS:
        want = limit - len(found) if not search else MOST
        some = await call.verbs.listed(filter_, more, want)
        looked += len(some)
        more = some[-1].name if len(some) == want else None
        for topic in some:
            if not search or search in topic.name.lower():
                found.append(topic)
                if len(found) == limit:
                    more = topic.name
                    break
    lines: list[dict[str, Any]] = []
    for topic in found:
        lines.append(_line(call.verbs, topic))
        await asyncio.sleep(0)  # a topic may have thousands of subscriptions, which are looked at
    return answer({"topics": lines, "after": more})


async def info(call: Call) -> Response:
    """One topic."""
    call.parameters.end()
    topic = _topic(call)
    return answer(
        {
            **_line(call.verbs, topic),
            "published": topic.published,
            "bytes": await call.verbs.measure(topic, topic.first),
            "keep": _keep(topic),
            "skipped": [{"first": start, "last": stop - 1} for start, stop in topic.skipped],
        }
    )


def _keep(topic: Topic) -> dict[str, Any]:
    """How long the topic keeps what nobody waits for, and by which rule of the configuration, or its own."""
    keep = topic.retention or Retention()
    return {
        "seconds": None if keep.age is None else keep.age / 1_000_000,
        "bytes": keep.size,
        "messages": keep.messages,
        "rule": keep.rule or None,
        "own": topic.own_retention is not None,
    }


def _retention(value: object) -> Retention | Literal["configured"]:
    """What a request says of `keep`."""
    if value is None:
        return "configured"
    if not isinstance(value, dict):
        raise InvalidRequest(
            "'keep' must be an object with seconds, bytes or messages, or null: what the configuration says."
        )
    limits = Parameters({name: [one] for name, one in value.items() if one is not None}, "limit")
    age = limits.seconds("seconds", MOST_SECONDS) if limits.has("seconds") else None
    found = Retention(
        None if age is None else int(age * 1_000_000), limits.number("bytes", 0), limits.number("messages", 0)
    )
    limits.end()
    if found == Retention():
        raise InvalidRequest("'keep' has no limit; name seconds, bytes or messages, or several of them.")
    return found


def _topic(call: Call) -> Topic:
    name = call.path("name")
    check_name(name)
    return call.verbs.topic(name)


async def make(call: Call) -> Response:
    """Makes a topic, or says whether it keeps its last message, and how long it keeps others."""
    name = call.path("name")
    call.parameters.end()
    keep_last: bool | None = None
    keep: Retention | Literal["configured", "unchanged"] = "unchanged"
    if await call.body(MAX_OBJECT):
        body = await call.object()
        keep_last = body.flag("keep_last", None)
        if body.has("keep"):
            keep = _retention(body.one("keep"))
        body.end()
    check_name(name)
    new = call.verbs.make_topic(name, keep_last=keep_last, keep=keep)
    await call.door.durable()
    return answer({"topic": name, "created": new}, 201 if new else 200)


async def empty(call: Call) -> Response:
    """Releases all that a topic holds; it goes, unless somebody subscribes to it."""
    name = call.path("name")
    parameters = call.parameters
    force = bool(parameters.flag("force"))
    parameters.end()
    check_name(name)
    count = call.verbs.empty_topic(name, waited_for=force)
    await call.door.durable()
    return answer({"topic": name, "messages": count})


async def messages(call: Call) -> Response:
    """Messages of a topic, from an offset or a time on, or the last ones. No cursor moves."""
    parameters = call.parameters
    start = parameters.number("offset", 0)
    time = parameters.time("time")
    last = parameters.number("last", 1, MOST_MESSAGES)
    limit = parameters.number("limit", 1, MOST_MESSAGES, last or MESSAGES) or MESSAGES
    parameters.end()
    if sum(one is not None for one in (start, time, last)) > 1:
        raise InvalidRequest(
            "Messages are read from an offset or a time on, or the last ones: name one of these."
        )
    media = accepted(call.header("accept"), OFFERED)
    if media is None:
        raise HttpProblem(406, f"Messages are {' or '.join(OFFERED)}.")
    topic = _topic(call)
    if time is not None:
        start = await call.verbs.locate(topic, time)
    elif last is not None:
        start = max(topic.back(topic.visible, last), topic.first)
    elif start is None:
        start = topic.first
    if start > topic.visible:
        raise NoSuchOffset(
            f"Topic {topic.name!r} has no message {start} yet; its last is {topic.visible - 1}."
        )
    batches, end = await read(call.verbs, topic, max(start, topic.first), limit)
    head = {"first": topic.first, "end": topic.visible, "next": end}
    return await written(batches, media, {"topic": topic.name, **head})


async def read(verbs: Verbs, topic: Topic, start: int, limit: int) -> tuple[list[Batch], int]:
    """Messages from an offset on, and the offset to go on at. What is skipped in between is passed over."""
    found: list[Batch] = []
    size = SIZE
    while True:
        start = topic.past_skipped(start)
        stop = min(start + limit, topic.visible)
        if start >= stop or size <= 0:
            return found, start
        try:
            some = await verbs.read(topic, start, size, stop, encoding.OVERHEAD)
        except StoreDamaged:
            if found:
                return found, start
            raise
        found += some
        start = some[-1].end if some else stop
        limit -= sum(batch.count for batch in some)
        size -= sum(batch.size + encoding.OVERHEAD * batch.count for batch in some)
        if topic.past_skipped(start) == start:
            return found, start


async def written(batches: list[Batch], media: str, head: dict[str, Any]) -> Response:
    """Messages as they are wanted; what is large is made in a thread."""
    large = sum(batch.size + encoding.OVERHEAD * batch.count for batch in batches) > LARGE
    make = {JSON: _object, NDJSON: _lines, ARROW: _arrow}[media]
    data = await asyncio.to_thread(make, batches, head) if large else make(batches, head)
    headers = {"x-next-offset": str(head["next"])} if "next" in head else {}
    return plain(data, media, headers)


def _object(batches: list[Batch], head: dict[str, Any]) -> bytes:
    return encoding.dumps({**head, "messages": encoding.in_order(batches)})


def _lines(batches: list[Batch], head: dict[str, Any]) -> bytes:
    return encoding.lines(encoding.in_order(batches))


def _arrow(batches: list[Batch], head: dict[str, Any]) -> bytes:
    from stafeta.doors.http.arrow import stream  # only for those who want it

    return stream(batches)


async def damaged(call: Call) -> Response:
    """A page of the ranges of offsets that are damaged: those that everybody passes over, and those that somebody could
    not read since the broker was started."""
    parameters = call.parameters
    filter_, after = parameters.text("filter", "#"), parameters.text("after")
    limit = parameters.number("limit", 1, MOST, PAGE) or PAGE
    parameters.end()
    check_filter(filter_)
    name, _, offset = after.partition(" ")  # which no name has
    reached = int(offset) if offset.isascii() and offset.isdecimal() and len(offset) < 20 else MAX_INT
    some = await call.verbs.listed(filter_, name, LOOKS)
    if name and not is_filter(name) and matcher(filter_)(name):
        some = [*await call.verbs.listed(name, "", 1), *some]  # there may be more of it
    found: list[dict[str, Any]] = []
    async for topic in in_portions(some):
        for start, stop, skipped in _damage(topic):
            if topic.name == name and start <= reached:
                continue
            if len(found) == limit:
                return answer({"damaged": found, "after": f"{found[-1]['topic']} {found[-1]['first']}"})
            found.append({"topic": topic.name, "first": start, "last": stop - 1, "skipped": skipped})
    more = f"{some[-1].name} {MAX_INT}" if len(some) >= LOOKS else None
    return answer({"damaged": found, "after": more})


def _damage(topic: Topic) -> list[tuple[int, int, bool]]:
    skipped = [(*one, True) for one in topic.skipped if one[1] > topic.first]
    return sorted([*skipped, *[(*one, False) for one in topic.unskipped_damage()]])
