"""The other side of the broker: clients in a process of their own, as little in the way as Python allows."""

import math
import signal
from array import array
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import zmq
from zmq.backend import Socket as RawSocket

from benchmarks.frames import Frames
from benchmarks.percentiles import percentile
from stafeta.clients.closing import Closing

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PATIENCE = 120_000  # milliseconds for a reply
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE)
_GREETING = b"GET nobody nowhere"

# The plain socket's: without pyzmq's layer for pickling and tracking, which costs as much as all the rest.
_send = RawSocket.send


class LoadFailed(Exception):
    """The broker answered something else than it should."""


class Pace(NamedTuple):
    """How fast something went."""

    total: int
    seconds: float
    p50: float | None = None  # seconds from a request to its reply
    p99: float | None = None

    @property
    def rate(self) -> float:
        return self.total / self.seconds


class Load(Closing):
    """A process that runs functions: clients that share no interpreter with whoever measures."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What the function returns, or raises, over there."""
        return self.start(function, *args, **kwargs)()

    def start(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Callable[[], _T]:
        """Has the function begun; what this returns waits for its result."""
        self._here.send((function, args, kwargs))
        return self._result

    def _result(self) -> Any:
        result, error = self._here.recv()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._here.close()


def _work(there: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who measures hears of it, and ends this process
    while True:
        try:
            function, args, kwargs = there.recv()
        except EOFError:
            return
        try:
            there.send((function(*args, **kwargs), None))
        except Exception as error:  # noqa: BLE001 - it is raised on the other side
            there.send((None, error))


def pace(
    address: str, frames: Frames, *, clients: int = 1, window: int = 1, seconds: float = math.inf
) -> Pace:
    """Sends frames until the time is over or they are, each client with so many at a time on their way.

    A client with one at a time is a REQ socket, one with more a DEALER.
    """
    with zmq.Context() as context:
        lines = [_Line(context, address, frames, number, window) for number in range(clients)]
        try:
            for line in lines:
                line.greet()
            start = perf_counter()
            for line in lines:
                line.deadline = start + seconds
            _drive(lines)
            took = perf_counter() - start
        finally:
            for line in lines:
                line.socket.close(linger=0)
    latencies = sorted(b - a for line in lines for a, b in zip(line.sent, line.got, strict=True))
    if not latencies:
        raise LoadFailed("Not one request was sent: there was no time.")
    return Pace(len(latencies), took, percentile(latencies, 50), percentile(latencies, 99))


def _drive(lines: "list[_Line]") -> None:
    for line in lines:
        line.fill()
    if len(lines) == 1:
        (line,) = lines
        while line.busy:
            line.drain(wait=True)
            line.fill()
        return
    by_socket: dict[RawSocket, _Line] = {line.socket: line for line in lines}
    while by_socket:
        ready = zmq.zmq_poll([(socket, zmq.POLLIN) for socket in by_socket], _PATIENCE)
        if not ready:
            raise LoadFailed("The broker does not answer.")
        for socket, _ in ready:
            line = by_socket[socket]
            line.drain(wait=False)
            line.fill()
            if not line.busy:
                del by_socket[socket]


class _Line:
    """One client: its connection, and when it sent and got what."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        frames: Frames,
        number: int,
        window: int,
    ) -> None:
        self.socket = context.socket(zmq.REQ if window == 1 else zmq.DEALER)
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.rcvtimeo = _PATIENCE
        self.socket.connect(address)
        self.deadline = math.inf
        self.sent = array("d")
        self.got = array("d")
        self._frames: Iterator[bytes] = frames.of(number)
        self._accepted = frames.accepted
        self._window = window
        self._open = True

    @property
    def busy(self) -> bool:
        return self._open or len(self.got) < len(self.sent)

    def greet(self) -> None:
        """Makes sure of the connection, so that making it is not measured."""
        if self._window > 1:
            _send(self.socket, b"", _MORE)
        _send(self.socket, _GREETING, 0)
        self.socket.recv_multipart()

    def fill(self) -> None:
        """Sends as many as may be on their way."""
        socket, sent, delimited = self.socket, self.sent, self._window > 1
        room = self._window - (len(sent) - len(self.got)) if self._open else 0
        for _ in range(room):
            now = perf_counter()
            frame = next(self._frames, None) if now < self.deadline else None
            if frame is None:
                self._open = False
                return
            if delimited:
                _send(socket, b"", _MORE)
            _send(socket, frame, 0)
            sent.append(now)

    def drain(self, *, wait: bool) -> None:
        """Takes the replies that are there; waits for the first one."""
        receive, got, delimited, accepted = self.socket.recv, self.got, self._window > 1, self._accepted
        if len(got) == len(self.sent):
            return
        flags = 0 if wait else _NOBLOCK
        try:
            while True:
                if delimited:
                    receive(flags)
                    flags = _NOBLOCK
                reply = receive(flags)
                got.append(perf_counter())
                if not reply.startswith(accepted):
                    raise LoadFailed(f"The broker answered {reply[:200]!r} instead of {accepted!r}.")
                if not delimited:
                    return
        except zmq.Again:
            if flags == 0:
                raise LoadFailed("The broker does not answer.") from None
