"""The way to one broker: its address, TLS, Flight clients on it, actions that are tried again until they are answered,
and what a Flight error means. (docs/protocols/flight.md, Errors)

1. A Flight client is a connection of its own: gRPC would otherwise share one, and with it one flow control, and the
   time that it waits before it connects again.
2. A call that hangs cannot be interrupted, not even by Ctrl-C. So every call is made on a thread of its own, and who
   wants the answer waits for that.
3. A token is a password: it goes with each call, and over a network only inside TLS.
4. Who answers and is not trusted will hardly be so a second later: the first call says so at once. After that it is
   trouble like any other, since certificates are renewed while programs run.
5. What the door says comes with `extra_info`. Where it names a class of `stafeta.errors`, that one is raised; otherwise
   it is `Refused`. What can be done later is `Unavailable`.
6. Without `extra_info` it was not the door who spoke: either the connection is gone (`Disconnected`), or something
   between the program and the door, Arrow or gRPC, said no (`Refused`).
7. Where TLS is why the connection is gone, it is `Untrusted`, if that can be known.
8. `Disconnected` and `Unavailable` are worth another try, the others are not.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from stafeta import addresses, credentials, errors
from stafeta.backoff import Backoff
from stafeta.clients import forks
from stafeta.clients.closing import EXIT_TIMEOUT, Finishing
from stafeta.clients.tls import Tls
from stafeta.errors import (
    ConfigError,
    Disconnected,
    NoReply,
    OutOfSequence,
    Refused,
    StafetaError,
    Unavailable,
    Untrusted,
)

_OPTIONS: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt to connect may take
]
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
TROUBLE = (pa.ArrowException, OSError)
"""What pyarrow raises where a call does not go well."""
_GONE = (
    flight.FlightUnavailableError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
    OSError,
)
LATE = "no answer came in time"
_WRAPPING = re.compile(
    r"^Flight (returned|cancelled)[^,]*, with message: |\.? (Detail|gRPC client debug context): .*$",
    re.DOTALL,
)
_FIRST_REASON = re.compile(r"^failed to connect to all addresses; last error: (UNKNOWN: )?")
# What gRPC and OpenSSL, or BoringSSL, say where a handshake fails.
_UNTRUSTED = (
    (
        re.compile(r"certificate[ _]verify[ _]failed(?:: )?([^:]*)", re.IGNORECASE),
        r"its certificate is not accepted (\1). The TLS roots say which authorities are trusted",
    ),
    (
        re.compile(r"Peer name (\S+) is not in peer certificate"),
        r"its certificate is not for \1. If it is the broker all the same, the name in it is the TLS hostname to give",
    ),
    (
        re.compile(r"wrong[ _]version[ _]number", re.IGNORECASE),
        "it does not speak TLS. Without that, its address begins with grpc://",
    ),
)
_T = TypeVar("_T")
_numbers = count(1)

log = logging.getLogger("stafeta.client")


class Pauses(Backoff):
    """How long to wait before the next try: 0.1 s, doubled with each one up to 2 s."""

    def __init__(self) -> None:
        super().__init__(_FIRST_PAUSE, _LONGEST_PAUSE)


class Channel:
    def __init__(
        self,
        address: str,
        timeout: float,
        token: str | None = None,
        tls: Tls | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        header = credentials.login(user, password, token).header
        self.address = addresses.read_flight(address, token=header is not None, tls=tls is not None)
        self.timeout = _positive(timeout)
        secure = self.address.startswith("grpc+tls:")
        self._tls = (tls or credentials.tls() or Tls()).grpc_options() if secure else {}
        # Arrow takes bytes only, its types know text only.
        self._headers: Any = [] if header is None else [(b"authorization", header)]
        self._trusted = False
        self.closed = threading.Event()
        self._client: flight.FlightClient | None = None
        self._lock = threading.Lock()

    def open(self) -> flight.FlightClient:
        """A connection of its own. It is made when it is first used."""
        self.check()
        forks.use_grpc()
        return flight.FlightClient(self.address, generic_options=list(_OPTIONS), **self._tls)

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """What every call on a connection has to be made with."""
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    def check(self) -> None:
        """Raises where the channel was closed, or is another process's."""
        forks.check_grpc()
        if self.closed.is_set():
            raise Disconnected(f"The connection to the broker at {self.address} was closed; make a new one.")

    def close(self) -> None:
        self.closed.set()
        self._drop(self._client)

    def ask(self, action: str, body: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        """The results of an action, as soon as the broker gives them."""
        return self.start(action, body).result()

    def start(self, action: str, body: Mapping[str, object] | None = None) -> "Future[list[dict[str, Any]]]":
        """The same, to be waited for in another way."""
        self.check()
        return spawn(self.insist, action, body or {})

    def ping(self, timeout: float) -> None:
        """Raises where the broker does not answer at once, or within the time given."""
        self._call(partial(_act, "stats", b"{}"), timeout)

    def no_reply(self, last: StafetaError | None, timeout: float | None = None) -> NoReply:
        """What to raise when the patience is over; `last` is what went wrong last."""
        seconds = self.timeout if timeout is None else timeout
        if isinstance(last, Unavailable):
            return last
        why = f": {str(last).rstrip('.')}" if last is not None else ""
        return NoReply(
            f"The broker at {self.address} has not answered for {seconds:g} s{why}. Does it run, with its Flight door "
            "open there?"
        )

    def log_trouble(self, error: StafetaError, pause: float) -> None:
        log.warning("%s: %s. Trying again in %.1f s.", self.address, str(error).rstrip("."), pause)

    def describe(self, command: Mapping[str, object]) -> "Future[flight.FlightInfo]":
        """What the broker says of a topic or filter (get_flight_info)."""
        self.check()
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        return spawn(self._insist, lambda client, options: client.get_flight_info(descriptor, options))

    def insist(self, action: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        """The same for a thread that nobody interrupts."""
        data = json.dumps(body).encode()
        return self._insist(partial(_act, action, data))

    def _insist(self, call: Callable[[flight.FlightClient, flight.FlightCallOptions], _T]) -> _T:
        deadline = time.monotonic() + self.timeout
        pauses = Pauses()
        last: StafetaError | None = None
        while True:
            try:
                found = self._call(call, max(0.001, deadline - time.monotonic()))
                self._trusted = True
                if last is not None:
                    log.info("%s: connected again.", self.address)
                return found
            except StafetaError as error:
                if not may_pass(error):
                    raise
                if isinstance(error, Untrusted) and not self._trusted:
                    raise Untrusted(f"The broker at {self.address} is not trusted: {error}.") from None
                if last is None or str(error) != LATE:  # which says less than what came before
                    last = error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.no_reply(last) from None
                pause = min(pauses.longer(), left)
                self.log_trouble(error, pause)
            self.closed.wait(pause)
            self.check()

    def _call(
        self, call: Callable[[flight.FlightClient, flight.FlightCallOptions], _T], timeout: float
    ) -> _T:
        client = self._shared()
        try:
            return call(client, self.options(timeout))
        except TROUBLE as error:
            found = translated(error)
            if isinstance(found, Disconnected):
                self._drop(client)
            raise found from None

    def _shared(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                self._client = self.open()
            return self._client

    def _drop(self, client: flight.FlightClient | None) -> None:
        # Others may be in the middle of a call on it: it goes when the last of them is done.
        with self._lock:
            if client is self._client:
                self._client = None


class OpenOnChannel(Finishing):
    """What was opened on a channel: `with` closes it, and waits for what is on its way."""

    _channel: Channel

    def close(self, timeout: float | None = None) -> None:
        raise NotImplementedError

    def _complete(self) -> None:
        self.close()

    def _abandon(self) -> None:
        self.close(min(EXIT_TIMEOUT, self._channel.timeout))


def _act(
    action: str, body: bytes, client: flight.FlightClient, options: flight.FlightCallOptions
) -> list[dict[str, Any]]:
    answers = client.do_action(flight.Action(action, body), options)
    return [json.loads(answer.body.to_pybytes() or b"{}") for answer in answers]


def spawn(function: Callable[..., _T], *arguments: object) -> "Future[_T]":
    """Runs a function on a thread of its own, which nobody has to wait for when the program ends."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"stafeta-{next(_numbers)}", daemon=True).start()
    return future


def _positive(timeout: float) -> float:
    if not 0 < timeout < 1e9:
        raise ConfigError(f"A timeout is a number of seconds above 0, not {timeout!r}.")
    return timeout


def translated(error: BaseException) -> StafetaError:
    """The error of `stafeta.errors` that an error of pyarrow's stands for."""
    if isinstance(error, StafetaError):
        return error
    said = _said(error)
    if said is not None:
        return _of_the_door(error, said)
    if isinstance(error, flight.FlightTimedOutError):
        return Disconnected(LATE)
    if isinstance(error, _GONE) and not getattr(error, "extra_info", None):
        return _untrusted(error) or Disconnected(sentence(error))
    return Refused(sentence(error))


def may_pass(error: StafetaError) -> bool:
    """Whether the same may go well later."""
    return isinstance(error, Disconnected | Unavailable)


def sentence(error: BaseException) -> str:
    """What an error of Arrow or gRPC says, without what they wrap it in."""
    words = _FIRST_REASON.sub("", _WRAPPING.sub("", str(error))).strip()
    return words.rstrip(".") or type(error).__name__


def _said(error: BaseException) -> dict[str, Any] | None:
    if not isinstance(error, flight.FlightError) or not error.extra_info:
        return None
    try:
        said = json.loads(error.extra_info)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("message"), str) else None


def _untrusted(error: BaseException) -> Untrusted | None:
    for sign, meaning in _UNTRUSTED:
        if (found := sign.search(sentence(error))) is not None:
            return Untrusted(found.expand(meaning))
    return None


def _of_the_door(error: BaseException, said: dict[str, Any]) -> StafetaError:
    message: str = said["message"]
    if isinstance(error, flight.FlightUnavailableError):
        return Unavailable(message)
    if said.get("error") == "OutOfSequence":
        return OutOfSequence(message, int(said.get("expected", 0)))
    kind = getattr(errors, str(said.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, StafetaError):
        return kind(message)
    return Refused(message)
