"""The ZeroMQ door: moves frames between a ROUTER socket and the broker.

1. The socket's descriptor is watched on the loop, and every wake-up drains the socket: what arrived together becomes
   durable together, with one commit.
2. Replies to a connection leave in the order of its requests. Those that wait for the disk leave with their turn; while
   one takes time, because it reads or is large, later requests of the same connection wait behind it, and nobody else.
3. A connection that does not read its replies is kept from holding memory: once `max_backlog` bytes wait for it, its
   requests wait, and once those are as many bytes, further ones are dropped.
   So are those behind a GET that waits.
4. Large requests, and those behind them, may be `limits.max_pending` bytes; then nothing more is taken from the socket
   for a while. Two of them are parsed and carried out at a time.
"""

import asyncio
import logging
import os
from collections import deque
from functools import partial

import zmq
from zmq.backend import Socket as RawSocket

from stafeta import addresses
from stafeta.addresses import Address
from stafeta.broker import DOOR_SHARE, Gate, Verbs
from stafeta.curve import KeyPair
from stafeta.doors.connection import KEEPALIVE, milliseconds
from stafeta.doors.figures import DoorFigures
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.codec import Dialect, LongPoll, Request
from stafeta.doors.zeromq.curve import Curve
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.monitor import Monitor
from stafeta.doors.zeromq.queues import Unsent, Waiting
from stafeta.doors.zeromq.text_dialect import TextDialect
from stafeta.doors.zeromq.watchers import Watchers
from stafeta.errors import ConfigError, StafetaError, StoreError
from stafeta.logs import announce, fields
from stafeta.security import ANYONE

log = logging.getLogger("stafeta.zeromq")

PORTION = 2000  # requests taken from the socket before others get their turn, unless they are large
RETRY = 0.002  # seconds until a connection that took no more is tried again
MAX_REMEMBERED = 10_000  # addresses remembered
MAX_KEYS = 100_000  # connections whose keys are remembered

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK
RCVMORE = zmq.RCVMORE
EVENTS = zmq.EVENTS
POLLIN = int(zmq.POLLIN)
# ZeroMQ counts what it holds for a connection in messages, whatever their size.
RECEIVED = 16  # requests, before it reads no further: each may be as large as a frame
QUEUED = 1000  # replies, before it takes no more
LARGE = 16 << 10  # bytes from which on a reply is counted until it is sent
LARGE_REQUEST = 320 << 10  # bytes from which on a request is parsed off the loop
LARGE_AT_ONCE = 2  # of these

OWN_NAME = b"\0"  # what the names begin with that ZeroMQ gives to connections, each once

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
    def __init__(
        self,
        broker: Gate,
        *,
        max_frame: int,
        get_reply: int,
        max_backlog: int,
        max_connections: int,
        peer_timeout: float,
        handshake_timeout: float = 10.0,
        keys: KeyPair | None = None,
    ) -> None:
        """With keys it takes nothing but CURVE, of users whose keys are known, where there are users."""
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
        self._socket.tcp_keepalive = 1
        for option, value in KEEPALIVE.items():
            self._socket.set(getattr(zmq, option.replace("KEEP", "KEEPALIVE_")), value)
        self._socket.tcp_maxrt = milliseconds(peer_timeout)  # which is TCP_USER_TIMEOUT
        self._socket.handshake_ivl = milliseconds(handshake_timeout)
        self._curve = None if keys is None else Curve(self._context, keys, self._admit, log)
        if self._curve is not None:
            self._curve.secure(self._socket)
        self._socket.rcvhwm = RECEIVED
        self._socket.sndhwm = QUEUED
        self._monitor = Monitor(
            self._socket, log, max_connections, lambda: broker.limits.max_address_connections
        )
        self._share = broker.share()
        self._turns: deque[Turn] = deque()
        self._waiting: dict[bytes, Waiting] = {}  # requests behind one that takes time, by connection
        self._queued = 0  # bytes of large requests that are carried out, and of those behind them
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocked: dict[bytes, deque[bytes]] = {}  # replies that a connection does not take
        self._unsent: dict[bytes, Unsent] = {}  # large replies that ZeroMQ has
        self._sources: dict[bytes, str] = {}
        self._why_skipped = "the first frame is not empty" + (
            ""
            if keys is None
            else ", or the connection has a name of its own, which it may not have with CURVE"
        )
        self._invalid_senders: set[bytes] = set()  # connections that the log names for sending no requests
        self._dropped = 0  # requests
        self._watchers = Watchers()
        self._verbs: Verbs | None = None  # everybody's, where no users are configured
        self._keys_of: dict[bytes, str] = {}  # public ones, by connection, with CURVE
        self._verbs_of: dict[tuple[str, str | None], Verbs] = {}  # by address and key, where they are
        if not broker.security.configured:
            self._verbs = broker.for_principal(ANYONE)
        broker.security.on_change(self._verbs_of.clear)
        self._draining = False
        self._resting = False  # until the next group
        self._closed = False

    def listen(self, host: str, port: int) -> str:
        """Bind one more address; returns it, with the port that was chosen where 0 was given."""
        try:
            ip = addresses.resolve(host)
            self._socket.ipv6 = ":" in ip
            self._socket.bind(f"tcp://{Address(ip, port)}")
        except (OSError, zmq.ZMQError) as error:
            reason = os.strerror(error.errno or 0) if isinstance(error, zmq.ZMQError) else error.strerror
            raise ConfigError(f"The ZeroMQ door cannot listen on {Address(host, port)}: {reason}.") from error
        _, _, chosen = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")
        address = f"tcp://{Address(host, int(chosen))}"
        announce(log, f"listening on {address}")
        return address

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._monitor.start()
        self._drain()

    def figures(self) -> DoorFigures:
        monitor = self._monitor
        return DoorFigures(
            "zeromq", monitor.connections, monitor.accepted, monitor.rejected, {"requests": self._dropped}
        )

    async def close(self) -> None:
        """Answer what was taken, then let everybody go."""
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        for task in self._tasks:
            task.cancel()
        self._watchers.close()
        if self._turns:
            await asyncio.wait([self._broker.commit()])
        self._monitor.close()
        self._socket.close()
        if self._curve is not None:
            self._curve.close()
        await self._loop.run_in_executor(None, self._context.term)

    # --- requests

    def _drain(self) -> None:
        if self._draining or self._resting or self._closed:
            return
        if self._broker.congested or self._share.spent:
            self._resting = True
            self._share.when_free(self._go_on)
            return
        if self._queued > self._broker.limits.max_pending:
            return  # until one of them is answered
        self._draining = True
        self._finish(self._share.count(self._take_several))

    def _go_on(self) -> None:
        self._resting = False
        self._drain()

    def _take_several(self) -> Turn:
        turn = Turn()
        socket, receive = self._socket, self._socket.recv
        left = DOOR_SHARE
        try:
            for _ in range(PORTION):
                connection = receive(NOBLOCK)
                if receive(NOBLOCK) if connection in self._sources else self._meet(connection):
                    self._skip(self._why_skipped, connection)
                    continue
                if not _get(socket, RCVMORE):
                    self._skip("they have no body", connection)
                    continue
                body = receive(NOBLOCK)
                if _get(socket, RCVMORE):
                    self._skip("they have more than one frame", connection)
                    continue
                if connection in self._waiting or connection in self._blocked:
                    self._queue(connection, body)
                else:
                    self._take(turn, connection, body)
                left -= len(body)
                if left < 0:
                    break
            self._loop.call_soon(self._drain)
        except zmq.Again:
            pass
        finally:
            self._draining = False
        return turn

    def _meet(self, connection: bytes) -> bytes:
        """The second frame of a new connection's first request, which tells the address it comes from."""
        if len(self._sources) >= MAX_REMEMBERED:
            self._sources.clear()
        delimiter = self._socket.recv(NOBLOCK, copy=False)
        if self._curve is not None and connection[:1] != OWN_NAME:
            # Another key's connection could come to have the same one, and with it what is still to be answered.
            return connection
        try:
            if self._curve is not None:
                if len(self._keys_of) >= MAX_KEYS:
                    del self._keys_of[next(iter(self._keys_of))]
                self._keys_of[connection] = str(delimiter.get("User-Id"))
            self._sources[connection] = addresses.unmapped(str(delimiter.get("Peer-Address")))
        except zmq.ZMQError:
            self._sources[connection] = ""
        return delimiter.bytes

    def _skip(self, why: str, connection: bytes) -> None:
        self._dropped += 1
        while _get(self._socket, RCVMORE):
            self._socket.recv(NOBLOCK)
        if connection in self._invalid_senders:
            return
        if len(self._invalid_senders) >= MAX_REMEMBERED:
            self._invalid_senders.clear()
        self._invalid_senders.add(connection)
        log.warning("requests are dropped: %s", why, extra=fields(peer=self._sources.get(connection)))

    def _take(self, turn: Turn, connection: bytes, body: bytes) -> None:
        dialect = JSON if body[:1] == b"{" else TEXT
        request: Request | None = None
        if len(body) > LARGE_REQUEST and actions.has_many(body):
            self._take_time(turn, connection, dialect, body)
            return
        try:
            request = dialect.read(body)
            verbs = self._verbs or self._identify(connection)
            if actions.takes_time(verbs, request):
                self._take_time(turn, connection, dialect, request)
                return
            reply = actions.act(verbs, dialect, request, self._sources.get(connection, ""))
        except StafetaError as error:
            turn.replies.append((connection, dialect.error(request, error), None, None))
        except Exception as error:  # noqa: BLE001 - the other requests of the turn must not suffer for it
            turn.replies.append((connection, dialect.error(request, _fault(error)), None, None))
        else:
            turn.replies.append((connection, reply, dialect, request))
        turn.connections.add(connection)

    def _identify(self, connection: bytes) -> Verbs:
        """What a connection's user may do: that of its key, or without CURVE the door's own. Raises `NotAuthenticated`
        where there is none."""
        address = self._sources.get(connection, "")
        key = None if self._curve is None else self._keys_of.get(connection, "")
        verbs = self._verbs_of.get((address, key))
        if verbs is None:
            principal = self._broker.security.identify(door="zeromq", address=address, curve_key=key)
            if len(self._verbs_of) >= MAX_REMEMBERED:
                self._verbs_of.clear()
            verbs = self._verbs_of[address, key] = self._broker.for_principal(principal)
        return verbs

    def _admit(self, key: str, address: str) -> None:
        self._broker.security.identify(door="zeromq", address=address, curve_key=key)

    def _finish(self, turn: Turn) -> None:
        if turn.replies:
            self._turns.append(turn)
            self._broker.answer(self._settle)

    def _settle(self, error: StafetaError | None) -> None:
        """A turn is durable, or could not be made so: send its replies."""
        turn = self._turns.popleft()
        if error is None:
            for connection, reply, _, _ in turn.replies:
                self._reply(connection, reply)
        else:
            for connection, reply, dialect, request in turn.replies:
                self._reply(connection, dialect.error(request, error) if dialect else reply)
        self._look_again()

    # --- requests that take time

    def _take_time(self, turn: Turn, connection: bytes, dialect: Dialect, request: Request | bytes) -> None:
        """Carry out a request in a task of its own; bytes are one that has to be parsed first."""
        waiting = self._waiting.setdefault(connection, Waiting())
        waiting.busy = True
        waiting.working = not isinstance(request, LongPoll)
        if isinstance(request, bytes):
            self._queued += len(request)
        answered_before = connection in turn.connections or any(
            connection in t.connections for t in self._turns
        )
        task = self._loop.create_task(self._answer(connection, dialect, request, wait=answered_before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, connection: bytes, dialect: Dialect, request: Request | bytes, *, wait: bool
    ) -> None:
        if wait:
            await asyncio.wait([self._broker.commit()])  # the turn's replies have left by then
        parsed: Request | None = None
        source = self._sources.get(connection, "")
        try:
            if isinstance(request, bytes):
                async with self._large:
                    parsed = await asyncio.to_thread(dialect.read, request)
                    reply = await self._carry_out(connection, dialect, parsed, source)
            else:
                parsed = request
                reply = await self._carry_out(connection, dialect, parsed, source)
        except StafetaError as error:
            reply = dialect.error(parsed, error)
            if isinstance(error, StoreError):
                log.error("%s", error)
        except Exception as error:  # noqa: BLE001 - or the connection would wait for ever
            reply = dialect.error(parsed, _fault(error))
        finally:
            if isinstance(request, bytes):
                self._queued -= len(request)
        self._waiting[connection].busy = False
        self._reply(connection, reply)
        self._resume(connection)
        self._look_again()

    async def _carry_out(self, connection: bytes, dialect: Dialect, request: Request, source: str) -> bytes:
        verbs = self._verbs or self._identify(connection)
        if actions.takes_time(verbs, request):
            return await actions.act_in_portions(
                verbs, self._watchers, dialect, request, source, self._get_reply
            )
        reply = actions.act(verbs, dialect, request, source)
        await asyncio.shield(self._broker.commit())
        return reply

    def _queue(self, connection: bytes, body: bytes) -> None:
        waiting = self._waiting[connection]
        if waiting.working and connection not in self._blocked:
            waiting.add(body)
            waiting.counted += len(body)
            self._queued += len(body)
        elif waiting.size <= self._max_backlog:
            waiting.add(body)
        else:
            self._dropped += 1
            if not waiting.warned:
                waiting.warned = True
                log.warning(
                    "requests are dropped: the connection sends more than it reads of replies",
                    extra=fields(peer=self._sources.get(connection), max_backlog=self._max_backlog),
                )

    def _resume(self, connection: bytes) -> None:
        """Take the requests that waited, up to the next one that takes time."""
        waiting = self._waiting.get(connection)
        if waiting is None or connection in self._blocked or self._closed:
            return
        turn = Turn()
        if not self._share.spent:
            self._share.count(partial(self._take_waiting, turn, connection, waiting))
        if waiting.ready and self._share.spent:
            self._share.when_free(partial(self._resume, connection))
        elif waiting.ready:
            self._loop.call_soon(self._resume, connection)
        elif not waiting.busy:
            del self._waiting[connection]
        self._finish(turn)

    def _take_waiting(self, turn: Turn, connection: bytes, waiting: Waiting) -> None:
        left = DOOR_SHARE
        for _ in range(PORTION):
            if not waiting.ready or left < 0:
                break
            body = waiting.pop()
            counted = min(waiting.counted, len(body))
            waiting.counted -= counted
            self._queued -= counted
            self._take(turn, connection, body)
            left -= len(body)

    # --- replies

    def _reply(self, connection: bytes, reply: bytes) -> None:
        blocked = self._blocked.get(connection)
        if blocked is not None:
            blocked.append(reply)
            return
        if not self._try(connection, reply):
            self._blocked[connection] = deque([reply])
            self._waiting.setdefault(connection, Waiting())
            if len(self._blocked) == 1:
                self._loop.call_later(RETRY, self._retry)

    def _try(self, connection: bytes, reply: bytes) -> bool:
        """False where the connection takes no more now. One that is gone takes everything."""
        socket = self._socket
        large = len(reply) >= LARGE
        if large and self._unsent_to(connection).size > self._max_backlog:
            return False
        try:
            _send(socket, connection, MORE)
            _send(socket, b"", MORE)
            if large:
                frame = zmq.Frame(reply, track=True, copy=False)
                _send(socket, frame, NOBLOCK, False)
                self._unsent[connection].add(frame.tracker, len(reply))
            else:
                _send(socket, reply, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unsent.pop(connection, None)
        return True

    def _unsent_to(self, connection: bytes) -> Unsent:
        unsent = self._unsent.get(connection)
        if unsent is None:
            if len(self._unsent) >= MAX_REMEMBERED:
                self._unsent = {known: one for known, one in self._unsent.items() if one.settled().size}
            unsent = self._unsent[connection] = Unsent()
        return unsent.settled()

    def _retry(self) -> None:
        if self._closed:
            return
        for connection, replies in list(self._blocked.items()):
            while replies and self._try(connection, replies[0]):
                replies.popleft()
            if not replies:
                del self._blocked[connection]
                self._resume(connection)
        if self._blocked:
            self._loop.call_later(RETRY, self._retry)
        self._look_again()

    def _look_again(self) -> None:
        # The descriptor tells of changes, not of a state, and sending swallows them (zmq_getsockopt, ZMQ_FD).
        if not self._closed and int(_get(self._socket, EVENTS)) & POLLIN:
            self._loop.call_soon(self._drain)


def _fault(error: Exception) -> StafetaError:
    log.error("a request failed for a reason that it should not have", exc_info=error)
    return StafetaError(f"The broker has a fault and could not do this: {error!r:.200}.")
