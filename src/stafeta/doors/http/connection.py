"""The connections of the door: uvicorn's, with the limits that hold at every door.

1. A connection counts from when it comes. Whoever has not said the head of a request in time is ended.
2. What is neither the head of a request nor part of a body is bounded: heads, trailers, what stands beside chunks.
3. What is pushed goes from a consumer into the transport (`doors/delivery.py`), framed as what the connection has
   become: chunks of a response, or frames of a WebSocket.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from stafeta.doors.connection import Connections, PushedConnection
from stafeta.doors.delivery import Encoder, PushSession
from stafeta.doors.http.problems import MEDIA_TYPE, HttpProblem, encoded
from stafeta.security import Principal

if TYPE_CHECKING:
    from stafeta.broker import Verbs
    from stafeta.doors.http.server import HttpDoor

log = logging.getLogger("stafeta.http")

MAX_HEAD: Final = 64 << 10  # bytes of the head of a request
MAX_HEADERS: Final = 100  # of a request
MAX_PIPELINED: Final = 100  # requests that wait behind the one that is being answered
MAX_PONGS: Final = 1000  # that wait to be read by whoever has sent the pings


class Visit(PushedConnection):
    """What the door knows of a connection, whatever it has become."""

    __slots__ = ("principal", "unread")

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self.principal: Principal | None = None  # who comes in by the connection alone
        self.unread = False  # there is more of a body

    def push(
        self, verbs: "Verbs", client: str, encoder: Encoder, wire: asyncio.Transport, *, acknowledges: bool
    ) -> PushSession:
        """Begin to push what the client subscribes to, through this."""
        self._verbs = verbs
        self.session = PushSession(
            self._connections.dispatcher,
            verbs,
            client,
            wire,
            encoder,
            acknowledges=acknowledges,
            unbounded_lag=True,
        )
        if self._paused:
            self.session.pause()
        return self.session


class HttpConnection(HttpToolsProtocol):
    def __init__(self, door: "HttpDoor") -> None:
        self._door = door
        self.visit = Visit(door.connections)
        super().__init__(
            config=door.config, server_state=door.state, app_state={"visit": self.visit}, _loop=door.loop
        )
        self.ws_protocol_class = cast("Any", partial(SocketConnection, self.visit))
        self._cycled = False  # there was a request
        self._answering: RequestResponseCycle | None = None  # which others may be pipelined behind
        self._unused = 0  # bytes that came since the last head or part of a body
        self._in_head = False  # one has begun
        self._refusal = 400, "What came is not a request of HTTP/1.1."  # what the parser does not follow
        self._deadline: asyncio.TimerHandle | None = None  # of a head that has begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self.scheme = "https" if self._door.secure else "http"
        self.visit.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        # That tells the request which came last; the one that is being answered may be before it, and a stream would
        # never end.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        self.visit.connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unused += len(data)
        super().data_received(data)
        if self._unused > MAX_HEAD and not self.transport.is_closing():
            what = "The head of a request" if self._between_requests else "What stands beside a body"
            self._refuse(431, f"{what} is too large; at most 64 KiB are allowed.")
        else:
            self._expect_head()

    def _expect_head(self) -> None:
        """The rest of a head that has begun comes in time, or not at all."""
        if self._in_head and self._deadline is None and self._between_requests:
            self._deadline = self.loop.call_later(self._door.broker.limits.identify_timeout, self._late)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_head()  # part of the next may have come meanwhile

    @property
    def _between_requests(self) -> bool:
        return not self._cycled or self.cycle.response_complete

    def _late(self) -> None:
        self._door.warn(
            "connections are closed that do not finish the head of a request in time (limits.identify_timeout)",
            peer=self.visit.peer,
        )
        self.transport.abort()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_message_begin(self) -> None:
        self._in_head = True
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(429, f"More than {MAX_PIPELINED} requests wait behind one that is not answered.")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            self._stop(431, f"A request has more than {MAX_HEADERS} headers.")
        super().on_header(name, value)

    def _stop(self, status: int, sentence: str) -> NoReturn:
        """Nothing more is read, also of what has come already."""
        self._refusal = status, sentence
        raise HttpProblem(status, sentence)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unused = 0
        self._no_deadline()
        self.visit.has_spoken()
        try:
            super().on_headers_complete()
            self._cycled = True
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._refuse(400, "The URL of a request cannot be read.")

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        if self._cycled:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused = 0
        if self._cycled:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        if self._answering is not None and not self._answering.response_complete:
            self._refuse(400, "A WebSocket begins when all requests before it are answered.")
            return
        super().handle_websocket_upgrade()
        del self.parser  # which knows this connection: they would keep each other

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _refuse(self, status: int, sentence: str) -> None:
        """Ends a connection that cannot be followed any further."""
        self._door.warn(f"a connection is closed: {sentence}", peer=self.visit.peer)
        if self._between_requests:
            body = encoded(HttpProblem(status, sentence))
            head = (
                f"HTTP/1.1 {status} \r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        self._door.warn("a connection asks to become something other than a WebSocket", peer=self.visit.peer)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.visit.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.visit.resume_writing()


class SocketConnection(WebSocketsSansIOProtocol):
    def __init__(self, visit: Visit, **options: Any) -> None:
        super().__init__(**options)
        self._visit = visit
        self._pongs = 0  # since the peer has stopped reading

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._visit.connection_lost(exc)

    def handle_ping(self) -> None:
        if self.transport.is_closing():
            return
        super().handle_ping()
        if not self.writable.is_set():
            self._pongs += 1
            if self._pongs > MAX_PONGS:
                self.transport.abort()  # it pings, and does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._visit.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._pongs = 0
        self._visit.resume_writing()


class Wire(asyncio.Transport):
    """A transport to which whole events are written, each framed; `last` ends what it carries."""

    def __init__(self, wire: asyncio.Transport, framed: Callable[[bytes], bytes], last: bytes) -> None:
        self._wire = wire
        self._framed = framed
        self._last = last

    def write(self, data: Any) -> None:
        if not self._wire.is_closing():
            self._wire.write(self._framed(data))

    def close(self) -> None:
        if not self._wire.is_closing():
            self._wire.write(self._last)
            self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    def is_closing(self) -> bool:
        return self._wire.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._wire.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.set_write_buffer_limits(high, low)


def chunked(wire: asyncio.Transport) -> Wire:
    """As chunks of a response."""
    return Wire(wire, lambda data: b"%x\r\n%b\r\n" % (len(data), data), b"0\r\n\r\n")


def framed(wire: asyncio.Transport) -> Wire:
    """As frames of a WebSocket, which are made already; closed as one that is going away."""
    return Wire(wire, bytes, b"\x88\x02\x03\xe9")
