"""Asking a broker and insisting on the answer: the lazy pirate.

1. Replies come in the order of the requests, and nothing else tells which is whose. So a socket that has lost its
   connection is never used again, and ZeroMQ is not allowed to reconnect it: a request lost in between would shift
   every reply after it.
2. A new socket starts with everything that has no reply yet, in order.
3. A try lasts until nothing has come for `timeout` seconds (and for as long as the request itself asked to wait). A
   connection that fails within a try is made anew within it.
4. Any reply is progress: tries are counted from the last one.
"""

import struct
import time
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import zmq

from stafeta import credentials
from stafeta.addresses import Address, read
from stafeta.errors import ConfigError, NoReply, NotAuthenticated

if TYPE_CHECKING:
    from stafeta.clients.curve import Curve

_T = TypeVar("_T")

# Does its work without blocking, and yields the seconds that it would wait for one of `RequestChannel.sockets` to
# become readable (merely the seconds, where there are none). It may be resumed early.
Dialogue: TypeAlias = Generator[float, None, _T]

_GONE = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_MADE = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_EVENT = struct.Struct("=H")
_TERMS = (
    "It ends connections before they are agreed on: either side wants CURVE, and not both, or it has another key than "
    "the one that was given for it."
)
_ADDRESSES = "one is tcp://127.0.0.1:9001, tcp://[::1]:9001 or tcp://localhost:9001."
_LONGEST_PAUSE = 1.0
_DOUBLINGS = 16


class Request:
    """A request on its way, and its reply once that is there."""

    __slots__ = ("body", "reply", "sent", "wait")

    def __init__(self, body: bytes, wait: float) -> None:
        self.body = body
        self.wait = wait
        self.sent = 0
        self.reply: bytes | None = None


class RequestChannel:
    """Requests to one broker, each sent until it is answered."""

    def __init__(
        self, address: str, timeout: float, retries: int, backoff: float, curve: "Curve | None" = None
    ) -> None:
        if timeout <= 0 or retries < 1 or backoff < 0:
            raise ConfigError(
                "A timeout is more than 0 seconds, retries at least 1, and backoff not negative."
            )
        place = _place(address)
        self.address = address if place is None else f"tcp://{place}"
        self._is_name = place is not None and place.is_name
        self._ipv6 = place is not None and ":" in place.host
        self.timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._curve = curve or credentials.curve()
        self._waiting: deque[Request] = deque()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._broken = False
        self._agreed = True  # on what the socket's connection is; not yet, once it is made
        self._terms = False  # a connection was ended before that
        self._answered = False  # on this socket
        self._breaks = 0
        self._tries = 0
        self._since = 0.0

    @property
    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """The sockets that a dialogue waits for."""
        return [socket for socket in (self._socket, self._monitor) if socket is not None]

    def ask(self, body: bytes, wait: float = 0.0) -> Dialogue[bytes]:
        """Sends a request and waits for its reply."""
        return (yield from self.reply(self.send(body, wait)))

    def send(self, body: bytes, wait: float = 0.0) -> Request:
        """Sends a request. `wait` is how long the broker may take on purpose."""
        request = Request(body, wait)
        if not self._waiting:
            self._progress()
        self._waiting.append(request)
        if self._socket is not None:
            self._transmit(self._socket, request)
        return request

    def reply(self, request: Request) -> Dialogue[bytes]:
        """Waits for the reply to a request. Gives up with `NoReply`, on all that is waiting."""
        while request.reply is None:
            yield from self._turn()
        return request.reply

    def reset(self) -> None:
        """Forgets what is waiting, and the connection."""
        self._waiting.clear()
        self._discard()

    def _turn(self) -> Dialogue[None]:
        if self._socket is None:
            self._open()
        if self._receive():
            self._progress()
            return
        if self._is_gone():
            self._discard()
        left = self._since + self.timeout + self._waiting[0].wait - time.monotonic()
        if left <= 0:
            yield from self._next_try()
        elif self._socket is None:
            self._breaks += 1
            if self._breaks > 1:  # the first time at once: the broker was restarted since the last request
                yield min(self._pause(self._breaks - 2), _LONGEST_PAUSE, left)
        else:
            yield left

    def _next_try(self) -> Dialogue[None]:
        self._discard()
        self._tries += 1
        if self._tries == self._retries:
            self.reset()
            why = _TERMS if self._terms else "Is it running, and is this its address?"
            times = "once" if self._retries == 1 else f"{self._retries} times"
            raise NoReply(
                f"No reply from the broker at {self.address}: tried {times}, for {self.timeout:g} s each. "
                f"{why}"
            )
        yield self._pause(self._tries - 1)
        self._since = time.monotonic()

    def _pause(self, doublings: int) -> float:
        return float(self._backoff * 2 ** min(doublings, _DOUBLINGS))

    def _progress(self) -> None:
        self._since = time.monotonic()
        self._tries = self._breaks = 0
        self._terms = False

    def _open(self) -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.IPV6, self._ipv6)
        if self._curve is not None:
            self._curve.secure(socket)
        self._monitor = socket.get_monitor_socket(_GONE | _MADE)
        self._socket = socket
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            self.reset()
            raise ConfigError(
                f"'{self.address}' is not an address of a broker ({error.strerror}); {_ADDRESSES}"
            ) from None
        for request in self._waiting:
            self._transmit(socket, request)

    def _transmit(self, socket: "zmq.Socket[bytes]", request: Request) -> None:
        request.sent += 1
        try:
            socket.send_multipart((b"", request.body), zmq.NOBLOCK)
        except zmq.Again:
            self._broken = True

    def _receive(self) -> bool:
        assert self._socket is not None
        came = False
        while self._waiting:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._waiting.popleft().reply = frames[-1]
            came = self._answered = True
        return came

    def _is_gone(self) -> bool:
        assert self._monitor is not None
        gone = self._broken
        try:
            while True:
                data, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
                event: int = _EVENT.unpack_from(data)[0]
                gone = gone or bool(event & _GONE)
                if event == zmq.EVENT_CONNECTED:
                    self._agreed = False
                elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._agreed = True
                elif not self._agreed:
                    self._terms = True
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self.reset()
                    raise NotAuthenticated(
                        f"The broker at {self.address} does not know this client's key, or takes it from nobody."
                    )
        except zmq.Again:
            return gone

    def _discard(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
            # ZeroMQ looks for addresses of one kind only: where nobody answers at a name's, the others are next.
            self._ipv6 ^= self._is_name and not self._answered
        if self._monitor is not None:
            self._monitor.close()
        self._socket = self._monitor = None
        self._broken = self._answered = False
        self._agreed = True


def _place(address: str) -> Address | None:
    """Host and port of an address; None where it is of another kind than TCP."""
    scheme, _, place = address.rpartition("://")
    try:
        return read(place) if scheme in ("", "tcp") else None
    except ConfigError:
        raise ConfigError(f"{address!r} is not an address of a broker; {_ADDRESSES}") from None
