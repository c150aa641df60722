"""The Flight door: listens, and holds what its calls share. (docs/protocols/flight.md)

1. Flight gives each call a thread of its own; the broker has one loop. A call asks the loop for what it needs and does
   the rest, checking and making Arrow data, itself.
2. So a stream costs a thread for as long as it lasts, and `max_streams` says how many there may be. These threads go
   behind the loop's where processors are short.
"""

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count, pairwise
from typing import Any, Final, TypeVar

from stafeta import addresses
from stafeta.addresses import EVERY, EVERY_IPV4, Address
from stafeta.broker import DOOR_SHARE, Gate, Topic, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.figures import DoorFigures
from stafeta.doors.flight.actions import client_of
from stafeta.doors.flight.calls import Calls
from stafeta.doors.flight.codec import MAX_PARTITIONS, Description, Ticket
from stafeta.doors.flight.connections import Connections
from stafeta.doors.flight.puts import PutStream
from stafeta.doors.flight.readers import (
    ConsumerReader,
    RangeReader,
    Reader,
    SpansReader,
    Stream,
    TogetherReader,
    edges,
    live_reader,
    unacknowledged,
)
from stafeta.doors.tls import Certificates
from stafeta.errors import BrokerClosed, ConfigError, InvalidRequest, TakenOver, Unavailable
from stafeta.logs import announce
from stafeta.names import FLIGHT_STREAM_PREFIX, check_name
from stafeta.priority import step_back
from stafeta.ranges import without
from stafeta.security import ANYONE
from stafeta.security.authorization import credentials_of

T = TypeVar("T")
log = logging.getLogger("stafeta.flight")

CLOSE_TIMEOUT: Final = 1.0  # seconds that calls have to end by themselves
REBIND_INTERVAL: Final = 0.01  # seconds between two tries to listen where another server did
REBIND_TIMEOUT: Final = 10.0
CLOSED: Final = "The broker is shutting down."
PARTITION: Final = 1_000_000  # messages of an endpoint, unless it is said how many there are to be
ALONE: Final = 2 * DOOR_SHARE  # bytes of a group in which there is nothing but bulk
QUIET: Final = 1.0  # seconds without single messages, until groups are that large
MEASURED: Final = 1000  # topics described together whose bytes are counted


class Part:
    """What is described of one topic: the offsets from `start` up to `stop`."""

    def __init__(self, topic: Topic, start: int, stop: int, size: int) -> None:
        self.name = topic.name
        self.first, self.next = topic.first, topic.visible
        self.start, self.stop = start, max(start, stop)
        self.size = size
        self.skipped = topic.skipped
        self._spans = without([(self.start, self.stop)], topic.skipped)

    @property
    def rows(self) -> int:
        return sum(stop - start for start, stop in self._spans)

    def ranges(self, partitions: int | None) -> list[tuple[int, int]]:
        """Offsets that can be read side by side."""
        partitions = partitions or -(-self.rows // PARTITION) or 1
        if len(self._spans) > 1:
            size = max(-(-self.rows // partitions), 1)
            return [
                (at, min(at + size, stop)) for start, stop in self._spans for at in range(start, stop, size)
            ]
        edges = [self.start + self.rows * at // partitions for at in range(partitions + 1)]
        return [(a, b) for a, b in pairwise(edges) if a < b] or [(self.start, self.stop)]


class FlightDoor:
    def __init__(
        self,
        broker: Gate,
        *,
        max_batch: int,
        max_streams: int,
        max_user_streams: int = 0,
        max_connections: int = 15_000,
        certificates: Certificates | None = None,
    ) -> None:
        """Without users, or with 0 for it, a user has as many streams as there may be."""
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.max_batch = max_batch
        self.closing = False
        self.cut_off = False  # calls are left that nothing ends but the end of the process
        self._max_streams = max_streams
        self._max_user_streams = max_user_streams if broker.security.configured else 0
        self._streams_of: Counter[str] = Counter()  # by user
        self.connections = Connections(lambda: broker.limits, max_connections, log)
        self._certificates = certificates
        if certificates is not None:
            certificates.on_reload = self._renew
        self._servers: dict[Address, Calls] = {}
        self._retiring: list[threading.Thread] = []  # which end servers that have been replaced
        self._numbers = count(1)
        self._streams: set[Stream] = set()
        self._clients: dict[tuple[str, str, str], Reader] = {}  # who reads for a user's client's filter
        self._putting: dict[PutStream, None] = {}  # in the order of their turns
        self._yielded = False  # the last group was left to others
        self._single = -QUIET  # when single messages last were in a group
        self._share = broker.share()
        broker.set_bulk_source(self._fill)
        self._anyone = None if broker.security.configured else broker.for_principal(ANYONE)
        broker.security.on_change(self._users_changed)
        self._counting = threading.Lock()
        self.streams = 0
        self._accepted = self._rejected = 0  # streams

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open one more address; returns it, with the port that was chosen where 0 was given."""
        try:
            server = self._serve(Address(addresses.resolve(host), port))
        except ConfigError:
            raise
        except Exception as error:
            log.debug("gRPC says: %s", error)
            raise ConfigError(
                f"The Flight door cannot listen on {Address(host, port)}: the address is in use, or is not this "
                "machine's."
            ) from error
        announce(log, f"listening on {Address(host, server.port)}")
        return host, server.port

    def _serve(self, place: Address) -> Calls:
        scheme = "grpc" if self._certificates is None else "grpc+tls"
        with _ipv6_taken(place.port) if place.host == EVERY_IPV4 else nullcontext(place.port) as number:
            location = f"{scheme}://{place._replace(port=number)}"
            # By a thread that goes behind others: gRPC's own, which move bulk, inherit that.
            with ThreadPoolExecutor(1, "flight-starting", step_back) as starting:
                server = starting.submit(Calls, self, location, self._certificates).result()
        self._servers[place._replace(port=server.port)] = server
        self.connections.ports.add(server.port)
        self.connections.start()
        return server

    def _renew(self) -> None:
        """There are other certificates. gRPC reads them once, so each server is replaced: the old one takes no more
        connections, and lets its calls end by themselves."""
        assert self._certificates is not None
        contents = self._certificates.files.contents()
        for place, server in list(self._servers.items()):
            if server.contents != contents:
                del self._servers[place]
                retiring = threading.Thread(target=server.shutdown, name="flight-retiring", daemon=True)
                self._retiring = [one for one in self._retiring if one.is_alive()] + [retiring]
                retiring.start()
                self._succeed(place, time.monotonic() + REBIND_TIMEOUT)

    def _succeed(self, place: Address, deadline: float) -> None:
        """Listen where a server did that is being shut down, which takes it a moment."""
        if self.closing:
            return
        try:
            self._serve(place)
        except Exception as error:  # noqa: BLE001 - whatever gRPC raises
            if time.monotonic() > deadline:
                log.error("the Flight door cannot listen on %s any more: %s", place, error)
            else:
                self.loop.call_later(REBIND_INTERVAL, self._succeed, place, deadline)

    def figures(self) -> DoorFigures:
        rejected = {"stream_limit": self._rejected}
        return DoorFigures("flight", self.streams, self._accepted, rejected, {})

    async def close(self) -> None:
        """End the calls. One that waits for a client which does not read is left behind."""
        self.closing = True
        self.connections.close()
        self.broker.security.forget_listener(self._users_changed)
        for stream in self._streams:
            stream.reader.fail(BrokerClosed(CLOSED))
        ended = asyncio.Event()
        threading.Thread(target=self._shut_down, args=(ended,), name="flight-closing", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await ended.wait()
        except TimeoutError:
            log.warning("some calls did not end by themselves; they are cut off")
            self.cut_off = True

    def _shut_down(self, ended: asyncio.Event) -> None:
        for server in self._servers.values():
            server.shutdown()
        for thread in self._retiring:
            thread.join()
        with suppress(RuntimeError):  # it took so long that the loop has gone
            self.loop.call_soon_threadsafe(ended.set)

    def check_open(self) -> None:
        """Refuses whatever comes once the door is being closed."""
        if self.closing:
            raise BrokerClosed(CLOSED)

    def _users_changed(self) -> None:
        for stream in self._streams:
            stream.reader.recheck()

    # --- for the threads of calls

    def admit(self, authorization: str | None, peer: str, certificate: str | None) -> Verbs:
        """What the caller may do. Raises `NotAuthenticated`."""
        if self._anyone is not None:
            return self._anyone
        return self.ask(self._admit(authorization, peer, certificate))

    async def _admit(self, authorization: str | None, peer: str, certificate: str | None) -> Verbs:
        password, token = credentials_of(authorization)
        principal = await self.broker.security.authenticate(
            door="flight",
            address=peer,
            password=password,
            token=token,
            certificate_name=certificate,
        )
        verbs = self.broker.for_principal(principal)
        if verbs.pace is not None:
            verbs.pace.check(0)
        return verbs

    def ask(self, what: Coroutine[Any, Any, T]) -> T:
        """Have the loop do it, and wait."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result()

    def enter(self, user: str) -> None:
        """One more stream begins."""
        with self._counting:
            self.check_open()
            if self.streams >= self._max_streams:
                self._rejected += 1
                raise Unavailable(
                    f"There are {self.streams} streams, as many as flight.max_streams allows. Try again later."
                )
            if self._max_user_streams and self._streams_of[user] >= self._max_user_streams:
                raise Unavailable(
                    f"User {user!r} has {self._streams_of[user]} streams, as many as flight.max_user_streams allows. "
                    "Try again later."
                )
            self.streams += 1
            self._accepted += 1
            self._streams_of[user] += 1

    def leave(self, user: str) -> None:
        with self._counting:
            self.streams -= 1
            self._streams_of[user] -= 1
            if not self._streams_of[user]:
                del self._streams_of[user]

    # --- on the loop

    async def durable(self) -> None:
        """Returns when all that was done so far is durable, or raises why it could not be."""
        commit = self.broker.commit()
        await asyncio.wait([commit])
        commit.result()

    async def topics(self, verbs: Verbs, filter_: str | None) -> list[Topic]:
        """Those that match, in the order of their names. The broker's own have to be asked for."""
        return await verbs.listed("#" if filter_ is None else filter_)

    async def describe(self, verbs: Verbs, wanted: Description) -> list[Part]:
        named = wanted.topic is not None
        if named:
            check_name(wanted.topic or "")
        topics = [verbs.topic(wanted.topic or "")] if named else await self.topics(verbs, wanted.filter)
        if len(topics) * (wanted.partitions or 0) > MAX_PARTITIONS:
            raise InvalidRequest(
                f"{len(topics)} topics of {wanted.partitions} partitions make more than {MAX_PARTITIONS} endpoints."
            )
        measured = len(topics) <= MEASURED
        return [await self._part(verbs, one, wanted, measured=measured) async for one in in_portions(topics)]

    async def _part(self, verbs: Verbs, topic: Topic, wanted: Description, *, measured: bool) -> Part:
        start, stop = await edges(verbs, topic, wanted.range)
        size = -1
        if measured:
            measure = verbs.measure
            size = await measure(topic, start) - (await measure(topic, stop) if stop < topic.visible else 0)
        return Part(topic, start, stop, max(size, -1))

    async def open(self, verbs: Verbs, ticket: Ticket) -> Stream:
        """What a ticket stands for; to be closed by `close_stream`."""
        self.check_open()
        if ticket.mark:
            verbs.check_mark(ticket.mark)
        reader: Reader
        if ticket.client is not None:
            reader = await self._take_over(verbs, client_of(ticket.client), ticket)
        elif ticket.spans:
            for name in {span.topic for span in ticket.spans}:
                check_name(name)
            reader = (TogetherReader if ticket.together else SpansReader)(verbs, ticket.spans)
        elif ticket.topic is not None and not ticket.follow:
            check_name(ticket.topic)
            topic = verbs.topic(ticket.topic)
            reader = RangeReader(verbs, topic, *await edges(verbs, topic, ticket.range))
        else:
            reader = await live_reader(verbs, ticket, f"{FLIGHT_STREAM_PREFIX}{next(self._numbers)}")
        stream = Stream(reader)
        self._streams.add(stream)
        return stream

    async def _take_over(self, verbs: Verbs, client: str, ticket: Ticket) -> Reader:
        filter_ = ticket.wanted
        subscription = verbs.subscription(client, filter_)
        if subscription.filter != filter_:
            raise InvalidRequest(f"The client has subscribed to {subscription.filter!r}, not to {filter_!r}.")
        stops = None if ticket.follow else await unacknowledged(verbs, subscription)
        verbs.subscription(client, filter_)  # it may have ended meanwhile
        self.end_stream(
            verbs, client, filter_, "Another stream of the same client and filter has taken over."
        )

        key = verbs.principal.user, client, filter_

        def closed() -> None:
            if self._clients.get(key) is reader:
                del self._clients[key]

        reader = ConsumerReader(verbs, client, subscription, stops, closed)
        self._clients[key] = reader
        return reader

    def end_stream(self, verbs: Verbs, client: str, filter_: str, why: str) -> None:
        reader = self._clients.pop((verbs.principal.user, client, filter_), None)
        if reader is not None:
            reader.fail(TakenOver(why))
            reader.close()

    def take_turns(self, stream: PutStream) -> None:
        """The stream has batches to place: one, and then it is another's turn."""
        self._putting[stream] = None
        self.broker.bulk_ready()

    def _fill(self) -> bool:
        """Add batches to the group that is about to be written; true where there were any."""
        single = self.broker.group.has_single_messages
        if single:
            self._single = self.loop.time()
        putting = self._putting
        if not putting:
            return False
        self._share.size = ALONE if self.loop.time() - self._single > QUIET else DOOR_SHARE
        # Single messages go ahead, every other time: their commit is short if there is no bulk in it.
        self._yielded = single and not self._yielded
        while putting and not self._yielded and not self._share.spent:
            stream = next(iter(putting))
            del putting[stream]
            if self._share.count(stream.place_one):
                putting[stream] = None
        return True

    def close_stream(self, stream: Stream) -> None:
        self._streams.discard(stream)
        stream.close()
        self.broker.commit()  # the subscription of someone without a name goes; nobody waits for that


@contextmanager
def _ipv6_taken(port: int) -> Iterator[int]:
    """Holds a port of IPv6, any that is free for IPv4 too where it is 0: gRPC would listen there as well, if it could,
    when it has to listen on all addresses of IPv4."""
    with ExitStack() as held:
        with suppress(OSError):  # there is no IPv6, or somebody else has the port
            if port == 0:
                with addresses.bind(EVERY, 0, socket.SOCK_STREAM) as free:
                    port = free.getsockname()[1]
            holder = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            holder.bind((EVERY, port))
        yield port
