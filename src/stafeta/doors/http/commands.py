"""What a WebSocket says: one JSON object a message, and one in reply to each."""

from typing import TYPE_CHECKING, Any

from stafeta.doors.http.call import Call
from stafeta.doors.http.codec import Parameters, ranges_of
from stafeta.doors.http.encoding import dumps
from stafeta.doors.http.incoming import message_of
from stafeta.doors.http.problems import problem
from stafeta.errors import InvalidRequest, NoSuchOffset, StafetaError
from stafeta.names import HTTP_STREAM_PREFIX, check_filter, check_name

if TYPE_CHECKING:
    from stafeta.doors.http.streams import Stream

TYPES = "subscribe, unsubscribe, ack and publish"


async def carry_out(call: Call, stream: "Stream", client: str, text: str | bytes) -> dict[str, Any]:
    """Does what is said, and returns the reply; one that cannot be done has a problem in it."""
    ref: object = None
    try:
        if call.verbs.pace is not None:
            call.verbs.pace.check(len(text))
        body = Parameters.of_body(text.encode(errors="replace") if isinstance(text, str) else text)
        ref = _ref(body)
        kind = body.needed_text("type")
        match kind:
            case "subscribe":
                reply = await _subscribe(call, stream, client, body)
            case "unsubscribe":
                filter_ = body.needed_text("filter")
                body.end()
                stream.session.consumer.unsubscribe(filter_)
                reply = {"filter": filter_}
            case "ack":
                reply = _ack(call, client, body)
            case "publish":
                reply = await _publish(call, body)
            case _:
                raise InvalidRequest(f"'type' is {kind[:50]!r}; it must be one of {TYPES}.")
        await call.door.durable()
    except StafetaError as error:
        return {"type": "error", "problem": problem(error), "ref": ref}
    return {"type": f"{kind}d" if kind.endswith("e") else f"{kind}ed", **reply, "ref": ref}


def _ref(body: Parameters) -> object:
    """What the reply has in it, too."""
    value = body.one("ref")
    try:
        dumps({"ref": value})
    except TypeError:  # deeper nesting is read than written
        raise InvalidRequest("'ref' is nested too deeply.") from None
    return value


async def _subscribe(call: Call, stream: "Stream", client: str, body: Parameters) -> dict[str, Any]:
    filter_ = body.needed_text("filter")
    start = body.word("from", ("earliest", "latest"), "latest")
    body.end()
    check_filter(filter_)
    durable = not client.startswith(HTTP_STREAM_PREFIX)
    subscription = call.verbs.subscribe(client, filter_, durable=durable, earliest=start == "earliest")
    await call.verbs.begun(subscription)
    stream.session.consumer.subscribe(filter_, durable=durable)
    return {"filter": filter_}


def _ack(call: Call, client: str, body: Parameters) -> dict[str, Any]:
    filter_ = body.needed_text("filter")
    ranges = ranges_of(body.need("ranges"))
    body.end()
    verbs = call.verbs
    subscription = verbs.subscription_named(client, filter_)
    for name, first, last in ranges:
        check_name(name)
        topic = verbs.topic(name)
        if last >= topic.visible:
            raise NoSuchOffset(f"Topic {name!r} has no message {last} yet; its last is {topic.visible - 1}.")
        verbs.ack(subscription, topic, first, last + 1)
    return {"filter": filter_}


async def _publish(call: Call, body: Parameters) -> dict[str, Any]:
    topic = body.needed_text("topic")
    check_name(topic)
    kind, payload = message_of(
        {name: body.one(name) for name in ("payload", "kind", "encoding", "value") if body.has(name)}
    )
    body.end()
    await call.door.room()
    offset = call.door.share.count(
        lambda: call.verbs.publish(topic, payload, kind, call.visit.peer, create=True)
    )
    return {"topic": topic, "offset": offset}
