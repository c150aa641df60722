"""The ZeroMQ door: moves frames between a ROUTER socket and the broker.

1. The socket's descriptor is watched on the loop, and every wake-up drains the socket: what arrived together becomes
   durable together, with one receipt.
2. Replies to a connection leave in the order of its requests. Those that wait for the disk leave with their turn; while
   one waits for reading, later requests of the same connection wait behind it.
3. A connection that does not read its replies is kept from holding memory: once `max_backlog` bytes wait for it, its
   requests are dropped.
"""

import asyncio
import logging
import os
from collections import deque

import zmq
from zmq.backend import Socket as RawSocket

from stafeta.broker import Broker
from stafeta.doors.zeromq import verbs
from stafeta.doors.zeromq.codec import Ack, Dialect, Get, Request
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.monitor import Monitor
from stafeta.doors.zeromq.text_dialect import TextDialect
from stafeta.errors import ConfigError, StafetaError, StoreError
from stafeta.logs import fields

log = logging.getLogger("stafeta.zeromq")

PORTION = 2000  # requests taken from the socket before others get their turn
RETRY = 0.002  # seconds until a connection that took no more is tried again
KNOWN = 10_000  # addresses remembered

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK
RCVMORE = zmq.RCVMORE
EVENTS = zmq.EVENTS
POLLIN = int(zmq.POLLIN)
QUEUED = 10_000  # replies that ZeroMQ holds for a connection before it takes no more

TEXT: Dialect = TextDialect()
JSON: Dialect = JsonDialect()

# What the plain socket class does without pyzmq's layer for pickling, tracking and named options: half the cost.
_send = RawSocket.send
_get = RawSocket.get


class Turn:
    """What one draining of the socket has to answer once it is durable."""

    __slots__ = ("connections", "replies")

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, bytes, Dialect | None, Request | None]] = []
        self.connections: set[bytes] = set()


class ZeroMQDoor:
    def __init__(self, broker: Broker, *, max_frame: int, get_reply: int, max_backlog: int) -> None:
        self._broker = broker
        self._get_reply = get_reply
        self._max_backlog = max_backlog
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.maxmsgsize = max_frame
        self._socket.router_mandatory = True
        self._socket.router_handover = True
        self._socket.linger = 1000
        self._socket.sndhwm = self._socket.rcvhwm = QUEUED
        self._monitor = Monitor(self._socket, log)
        self._turns: deque[Turn] = deque()
        self._waiting: dict[bytes, deque[bytes]] = {}  # requests behind one that reads, by connection
        self._readers: set[asyncio.Task[None]] = set()
        self._blocked: dict[bytes, Backlog] = {}  # replies that a connection does not take
        self._warned: set[bytes] = set()  # connections whose requests are being dropped
        self._sources: dict[bytes, str] = {}
        self._draining = False
        self._closed = False

    def listen(self, host: str, port: int) -> str:
        """Bind one more address; returns it, with the port that was chosen where 0 was given."""
        place = f"[{host}]" if ":" in host else host
        self._socket.ipv6 = ":" in host
        try:
            self._socket.bind(f"tcp://{place}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ConfigError(
                f"The ZeroMQ door cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}."
            ) from error
        address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        log.info("listening on %s", address)
        return address

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._monitor.start()
        self._drain()

    async def close(self) -> None:
        """Answer what was taken, then let everybody go."""
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        for reader in self._readers:
            reader.cancel()
        if self._turns:
            await asyncio.wait([self._broker.receipt()])
            await asyncio.sleep(0)
        self._monitor.close()
        self._socket.close()
        await self._loop.run_in_executor(None, self._context.term)

    # --- requests

    def _drain(self) -> None:
        if self._draining or self._closed:
            return
        if self._broker.congested:
            self._broker.receipt().add_done_callback(lambda _: self._drain())
            return
        self._draining = True
        turn = Turn()
        socket, receive = self._socket, self._socket.recv
        try:
            for _ in range(PORTION):
                connection = receive(NOBLOCK)
                if connection not in self._sources:
                    self._meet(connection)
                elif receive(NOBLOCK):
                    self._skip("its first frame is not empty", connection)
                    continue
                if not _get(socket, RCVMORE):
                    self._skip("it has no body", connection)
                    continue
                body = receive(NOBLOCK)
                if _get(socket, RCVMORE):
                    self._skip("it has more than one frame", connection)
                    continue
                if connection in self._waiting or connection in self._blocked:
                    self._queue(connection, body)
                else:
                    self._take(turn, connection, body)
            self._loop.call_soon(self._drain)
        except zmq.Again:
            pass
        finally:
            self._draining = False
        self._finish(turn)

    def _meet(self, connection: bytes) -> None:
        """The second frame of a new connection's first request, which tells the address it comes from."""
        if len(self._sources) >= KNOWN:
            self._sources.clear()
        delimiter = self._socket.recv(NOBLOCK, copy=False)
        try:
            self._sources[connection] = str(delimiter.get("Peer-Address"))
        except zmq.ZMQError:
            self._sources[connection] = ""

    def _skip(self, why: str, connection: bytes) -> None:
        while _get(self._socket, RCVMORE):
            self._socket.recv(NOBLOCK)
        log.warning("a request was dropped: %s", why, extra=fields(peer=self._sources.get(connection)))

    def _take(self, turn: Turn, connection: bytes, body: bytes) -> None:
        dialect = JSON if body[:1] == b"{" else TEXT
        request: Request | None = None
        try:
            request = dialect.read(body)
            if isinstance(request, Get | Ack) and verbs.needs_reading(self._broker, request):
                self._read(turn, connection, dialect, request)
                return
            reply = verbs.act(self._broker, dialect, request, self._sources.get(connection, ""))
        except StafetaError as error:
            turn.replies.append((connection, dialect.error(request, error), None, None))
        else:
            turn.replies.append((connection, reply, dialect, request))
        turn.connections.add(connection)

    def _finish(self, turn: Turn) -> None:
        if turn.replies:
            self._turns.append(turn)
            self._broker.receipt().add_done_callback(self._settle)

    def _settle(self, receipt: "asyncio.Future[None]") -> None:
        """A turn is durable, or could not be made so: send its replies."""
        turn = self._turns.popleft()
        error = receipt.exception()
        if error is None:
            for connection, reply, _, _ in turn.replies:
                self._reply(connection, reply)
        else:
            failure = error if isinstance(error, StafetaError) else StoreError(str(error))
            for connection, reply, dialect, request in turn.replies:
                self._reply(connection, dialect.error(request, failure) if dialect else reply)
        self._look_again()

    # --- requests that read

    def _read(self, turn: Turn, connection: bytes, dialect: Dialect, request: Get | Ack) -> None:
        self._waiting[connection] = deque()
        answered_before = connection in turn.connections or any(
            connection in t.connections for t in self._turns
        )
        work = self._answer(connection, dialect, request, wait=answered_before)
        reader = self._loop.create_task(work)
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _answer(self, connection: bytes, dialect: Dialect, request: Get | Ack, *, wait: bool) -> None:
        if wait:
            await asyncio.wait([self._broker.receipt()])
            await asyncio.sleep(0)  # the turn's replies leave in a callback of the same receipt
        try:
            reply = await verbs.read(self._broker, dialect, request, self._get_reply)
        except StafetaError as error:
            reply = dialect.error(request, error)
            if isinstance(error, StoreError):
                log.error("%s", error)
        self._reply(connection, reply)
        self._resume(connection)
        self._look_again()

    def _queue(self, connection: bytes, body: bytes) -> None:
        waiting = self._waiting.setdefault(connection, deque())
        backlog = self._blocked.get(connection)
        size = sum(map(len, waiting)) if len(waiting) < 100 else len(waiting) * len(body)
        if size + (backlog.size if backlog else 0) > self._max_backlog:
            if connection not in self._warned:
                log.warning(
                    "requests are dropped: the connection sends more than it reads of replies",
                    extra=fields(peer=self._sources.get(connection), max_backlog=self._max_backlog),
                )
            self._warned.add(connection)
            return
        waiting.append(body)

    def _resume(self, connection: bytes) -> None:
        """Take the requests that waited, up to the next one that reads."""
        if connection in self._blocked:
            return
        self._warned.discard(connection)
        waiting = self._waiting.pop(connection, None)
        turn = Turn()
        while waiting:
            self._take(turn, connection, waiting.popleft())
            if connection in self._waiting:
                self._waiting[connection].extend(waiting)
                break
        self._finish(turn)

    # --- replies

    def _reply(self, connection: bytes, reply: bytes) -> None:
        backlog = self._blocked.get(connection)
        if backlog is not None:
            backlog.add(reply)
            return
        if not self._try(connection, reply):
            self._blocked[connection] = Backlog(reply)
            self._waiting.setdefault(connection, deque())
            if len(self._blocked) == 1:
                self._loop.call_later(RETRY, self._retry)

    def _try(self, connection: bytes, reply: bytes) -> bool:
        """False where the connection takes no more now. One that is gone takes everything."""
        socket = self._socket
        try:
            _send(socket, connection, MORE)
            _send(socket, b"", MORE)
            _send(socket, reply, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return True

    def _retry(self) -> None:
        if self._closed:
            return
        for connection, backlog in list(self._blocked.items()):
            while backlog.replies and self._try(connection, backlog.replies[0]):
                backlog.pop()
            if not backlog.replies:
                del self._blocked[connection]
                self._resume(connection)
        if self._blocked:
            self._loop.call_later(RETRY, self._retry)
        self._look_again()

    def _look_again(self) -> None:
        # The descriptor tells of changes, not of a state, and sending swallows them (zmq_getsockopt, ZMQ_FD).
        if not self._closed and int(_get(self._socket, EVENTS)) & POLLIN:
            self._loop.call_soon(self._drain)


class Backlog:
    """Replies that wait for a connection to take them."""

    __slots__ = ("replies", "size")

    def __init__(self, reply: bytes) -> None:
        self.replies = deque([reply])
        self.size = len(reply)

    def add(self, reply: bytes) -> None:
        self.replies.append(reply)
        self.size += len(reply)

    def pop(self) -> None:
        self.size -= len(self.replies.popleft())
