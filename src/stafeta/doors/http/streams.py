"""Live subscriptions: server-sent events, and WebSockets.

1. Messages go from a consumer into the transport, as at the other doors that push (`doors/delivery.py`): a reader that
   does not read costs its buffer, and equal readers share what is made for them.
2. Each message has an id, a mark of the broker's log. Whoever comes back with the last that he has goes on behind it:
   one with a name has then acknowledged all up to it, and misses nothing; one without is given what the log still has.
3. One with a name acknowledges by himself, by the id that he comes back with or in requests, unless he leaves it to the
   connection (`ack=auto`): then what his system has received is done with. A name is read by one stream at a time.
4. Users and permissions that change end whoever may not read any more.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.types import Receive, Send

from stafeta.broker import Subscription, Topic, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.delivery import Encoder, PushSession
from stafeta.doors.http import commands, encoding
from stafeta.doors.http.call import Call, ClientGone
from stafeta.doors.http.codec import EVENTS, Parameters, name_of
from stafeta.doors.http.connection import Visit, Wire, chunked, framed
from stafeta.doors.http.problems import problem
from stafeta.errors import BrokerClosed, InvalidRequest, NoSuchOffset, NotSubscribed, StafetaError, TakenOver
from stafeta.names import HTTP_STREAM_PREFIX, check_filter, is_filter

if TYPE_CHECKING:
    from stafeta.doors.http.server import HttpDoor

HEARTBEAT: Final = 15.0  # seconds between two signs of life
TICK: Final = 1.0
RESUMED: Final = 10_000  # topics in which a place is looked for, for one without a name
MAX_FILTERS: Final = 1000  # that one request may name
_PING: Final = b"\x89\x00"


class Wanted(NamedTuple):
    """What a stream is asked for."""

    filters: list[str]
    client: str  # as it calls itself; empty: it has no name
    auto: bool
    start: str  # earliest or latest
    offset: int | None
    time: int | None
    id: str


def wanted(parameters: Parameters, last_id: str = "") -> Wanted:
    filters = parameters.texts("filter") + parameters.texts("topic")
    found = Wanted(
        list(dict.fromkeys(filters)),
        parameters.text("client"),
        parameters.word("ack", ("auto", "explicit"), "explicit") == "auto",
        parameters.word("from", ("earliest", "latest"), "latest"),
        parameters.number("offset", 0),
        parameters.time("time"),
        last_id or parameters.text("last_id"),
    )
    parameters.end()
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"There are {len(filters)} filters; at most {MAX_FILTERS} are allowed.")
    for filter_ in filters:
        check_filter(filter_)
    if found.client:
        name_of(found.client)
        if found.offset is not None or found.time is not None:
            raise InvalidRequest(
                "A client that has a name goes on where it is; move its subscription instead."
            )
    elif found.auto:
        raise InvalidRequest("Only for a client that has a name something is acknowledged.")
    if found.offset is not None and (len(filters) != 1 or is_filter(filters[0])):
        raise InvalidRequest("An offset is one of a topic: name one topic.")
    return found


class Stream:
    """One that is being read."""

    __slots__ = ("_error", "_ping", "client", "session", "verbs", "visit", "wire")

    def __init__(
        self,
        visit: Visit,
        verbs: Verbs,
        client: str,
        session: PushSession,
        wire: Wire,
        error: Callable[[StafetaError], bytes],
        ping: bytes,
    ) -> None:
        self.visit = visit
        self.verbs = verbs
        self.client = client
        self.session = session
        self.wire = wire
        self._error = error
        self._ping = ping

    def ping(self) -> None:
        self.visit.spoken = True
        if not self.wire.get_write_buffer_size():
            self.wire.write(self._ping)

    def end(self, error: StafetaError) -> None:
        self.session.close()
        if not self.wire.is_closing():
            self.wire.write(self._error(error))
            self.wire.close()


class Streams:
    def __init__(self, door: "HttpDoor") -> None:
        self._door = door
        self._all: dict[Stream, None] = {}
        self._clients: dict[str, Stream] = {}  # by the names that clients have at the broker
        self._encoders: dict[tuple[str, bool], Encoder] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def encoder(self, form: str, verbs: Verbs, *, marked: bool = True) -> Encoder:
        """The same for all, so that what is made for one is there for the next."""
        if (form, marked) not in self._encoders:
            make = encoding.events if form == "events" else encoding.frames
            self._encoders[form, marked] = Encoder(make(verbs.mark if marked else None), encoding.OVERHEAD)
        return self._encoders[form, marked]

    def begin(self, call: Call, client: str, form: str, *, auto: bool) -> Stream:
        """Begin to push; what is subscribed to is joined by the caller."""
        visit, verbs = call.visit, call.verbs
        wire = chunked(visit.transport) if form == "events" else framed(visit.transport)
        session = visit.push(verbs, client, self.encoder(form, verbs), wire, acknowledges=auto)
        session.unmarked = self.encoder(form, verbs, marked=False)
        error, ping = (_error_event, b":\n\n") if form == "events" else (_error_frame, _PING)
        stream = Stream(visit, verbs, client, session, wire, error, ping)
        before = self._clients.pop(session.consumer.client, None)
        if before is not None:
            before.end(TakenOver("Another stream of the same client has taken over."))
        self._clients[session.consumer.client] = stream
        self._all[stream] = None
        if self._timer is None:
            self._timer = self._door.loop.call_later(TICK, self._tick)
        return stream

    def ended(self, stream: Stream) -> None:
        self._all.pop(stream, None)
        name = stream.session.consumer.client
        if self._clients.get(name) is stream:
            del self._clients[name]

    def _tick(self) -> None:
        """A sign of life for some of them."""
        interval = min(HEARTBEAT, self._door.broker.limits.idle_timeout / 3)
        for _ in range(min(len(self._all), int(len(self._all) * TICK / interval) + 1)):
            stream = next(iter(self._all))
            del self._all[stream]
            self._all[stream] = None
            stream.ping()
        self._timer = None
        if self._all:
            self._timer = self._door.loop.call_later(min(TICK, interval), self._tick)

    def recheck(self) -> None:
        """Users or permissions have changed."""
        for stream in list(self._all):
            try:
                stream.verbs.check_alive()
                for filter_ in stream.session.consumer.filters:
                    stream.verbs.check_subscribe(stream.client, filter_)
            except StafetaError as error:
                stream.end(error)

    def unsubscribed(self, subscription: Subscription) -> None:
        """It was ended by a request, of whomever."""
        stream = self._clients.get(subscription.client)
        if stream is not None:
            stream.end(NotSubscribed("The subscription was ended."))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._all):
            stream.end(BrokerClosed("The broker is shutting down."))


def _error_event(error: StafetaError) -> bytes:
    return encoding.event(problem(error), "error")


def _error_frame(error: StafetaError) -> bytes:
    return encoding.frame(encoding.dumps({"type": "error", "problem": problem(error)}))


# --- what is subscribed to


async def prepared(call: Call, asked: Wanted) -> tuple[str, list[Subscription]]:
    """Subscribes; returns the client's name, and what is joined when messages begin to be pushed."""
    verbs = call.verbs
    if asked.id:
        verbs.check_mark(asked.id)
    client = name_of(asked.client) if asked.client else f"{HTTP_STREAM_PREFIX}{next(call.door.numbers)}"
    found: list[Subscription] = []
    try:
        earliest = bool(asked.client) and asked.start == "earliest"
        for filter_ in asked.filters:
            one = verbs.subscribe(client, filter_, durable=bool(asked.client), earliest=earliest)
            found += [one]
        for subscription in found:
            await verbs.begun(subscription)
        await call.door.durable()  # if it fails they are undone, and nobody would notice
        for subscription in found:
            await _placed(verbs, subscription, asked)
    except BaseException:
        for subscription in found:
            verbs.leave(subscription)
        raise
    return client, found


async def _placed(verbs: Verbs, subscription: Subscription, asked: Wanted) -> None:
    """Let a subscription begin where it is asked to."""
    position = int(asked.id.rpartition(".")[2]) if asked.id else None
    if asked.client:
        if position is not None:
            async for topic, floor in verbs.unacknowledged(subscription):
                end = await verbs.offset_at(topic, position + 1, floor)
                if subscription.has_seen(topic, end):  # else the id is older than the move
                    verbs.ack(subscription, topic, 0, end)
            await asyncio.wait([verbs.commit()])
        return
    if position is None and asked.offset is None and asked.time is None and asked.start == "latest":
        return
    topics = await verbs.matched_by(subscription)
    if position is not None and len(topics) > RESUMED:
        raise InvalidRequest(
            f"{len(topics)} topics match, too many to look for a place in; a client with a name goes on in any number."
        )
    async for topic in in_portions(topics):
        verbs.rewind(subscription, topic, await _start(verbs, topic, asked, position))


async def _start(verbs: Verbs, topic: Topic, asked: Wanted, position: int | None) -> int:
    if position is not None:
        last = max(topic.visible - 1, topic.first)  # mostly all of it came before
        if last < topic.visible and await verbs.offset_at(topic, position + 1, last) < topic.visible:
            return await verbs.offset_at(topic, position + 1, topic.first)
        return topic.visible
    if asked.time is not None:
        return await verbs.locate(topic, asked.time)
    if asked.offset is not None:
        if asked.offset > topic.visible:
            raise NoSuchOffset(
                f"Topic {topic.name!r} has no message {asked.offset} yet; its last is {topic.visible - 1}."
            )
        return asked.offset
    return topic.first


# --- server-sent events


async def events(call: Call, receive: Receive, send: Send) -> None:
    asked = wanted(call.parameters, call.header("last-event-id"))
    if not asked.filters and not asked.client:
        raise InvalidRequest("The parameter 'filter' is missing.")
    headers = [
        (b"content-type", EVENTS.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ]
    if call.method == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    client, subscriptions = await prepared(call, asked)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
    streams = call.door.streams
    _check_there(call, subscriptions)
    stream = streams.begin(call, client, "events", auto=asked.auto)
    try:
        _join(stream, subscriptions, asked)
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        streams.ended(stream)


def _check_there(call: Call, subscriptions: list[Subscription]) -> None:
    """Whoever has gone meanwhile leaves nothing behind."""
    if call.visit.transport.is_closing():
        for subscription in subscriptions:
            call.verbs.leave(subscription)
        raise ClientGone


def _join(stream: Stream, subscriptions: list[Subscription], asked: Wanted) -> None:
    consumer = stream.session.consumer
    for subscription in subscriptions:
        consumer.subscribe(subscription.filter, durable=subscription.durable)
    if asked.client and not subscriptions:
        consumer.resume()


# --- WebSockets


async def sockets(call: Call, receive: Receive, send: Send) -> None:
    asked = wanted(call.parameters)
    client, subscriptions = await prepared(call, asked)
    await receive()  # that it wants to connect
    await send({"type": "websocket.accept"})
    streams = call.door.streams
    _check_there(call, subscriptions)
    stream = streams.begin(call, client, "frames", auto=asked.auto)
    try:
        _join(stream, subscriptions, asked)
        while (message := await receive())["type"] == "websocket.receive":
            stream.visit.spoken = True
            text = message.get("text")
            reply = await commands.carry_out(
                call, stream, client, text if text is not None else message["bytes"]
            )
            stream.wire.write(encoding.frame(encoding.dumps(reply)))
            await _drained(stream)
    finally:
        streams.ended(stream)


async def _drained(stream: Stream) -> None:
    """Whoever does not read the replies is asked for no more commands."""
    while (  # noqa: ASYNC110 - the transport tells the connection, which pushes meanwhile
        stream.wire.get_write_buffer_size() > (1 << 20) and not stream.wire.is_closing()
    ):
        await asyncio.sleep(0.05)
