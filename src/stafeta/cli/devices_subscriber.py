"""`stafeta devices subscriber`: what a person types goes to the server, what comes from it is printed."""

import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from stafeta.cli import exits
from stafeta.cli.output import Output
from stafeta.cli.typed import Typed
from stafeta.clients.devices import Subscriber
from stafeta.doors.devices.codec import ReceivedMessage
from stafeta.errors import ConfigError, InvalidClient, InvalidDelivery, NoReply, StafetaError

if TYPE_CHECKING:
    from stafeta.clients.tls import Tls

_FAREWELL: Final = 0.2  # seconds between `exit` and the end, for what is on its way to either side


def run(client: str, host: str, port: int, *, tls: bool = False) -> int:
    try:
        subscriber = Subscriber(client, host, port, tls=_certificates() if tls else None)
    except InvalidClient as error:
        raise ConfigError(str(error)) from None
    with subscriber:
        return Session(subscriber, Output()).run()


def _certificates() -> "Tls":
    from stafeta import credentials
    from stafeta.clients.tls import Tls

    return credentials.tls() or Tls()


class Session:
    """Reads standard input and the connection by turns, and prints."""

    def __init__(self, subscriber: Subscriber, output: Output) -> None:
        self._subscriber = subscriber
        self._output = output
        self._typed = Typed()
        self._closed = False

    def run(self) -> int:
        """Until `exit`, or until the server has closed and all is printed."""
        while not (self._closed and self._output.empty):
            # A full output holds the server back: what has not been received waits there.
            receiving = not (self._closed or self._output.full)
            sources = [self._output.fileno()]
            sources += [self._subscriber.fileno()] if receiving else []
            sources += [] if self._typed.descriptor is None else [self._typed.descriptor]
            ready = select.select(sources, [], [])[0]
            self._output.check()
            if self._typed.descriptor in ready and not all(map(self._obey, self._typed.read())):
                self._leave()
                break
            if receiving and self._subscriber.fileno() in ready:
                self._receive(0)
        return exits.OK

    def _receive(self, timeout: float) -> None:
        """Prints what has come."""
        try:
            deliveries = self._subscriber.receive(timeout)
        except InvalidDelivery as error:
            self._output.write(_lines(error.before))
            self._output.finish(_FAREWELL)
            raise
        if deliveries is None:
            self._closed = True
        else:
            self._output.write(_lines(deliveries))

    def _leave(self) -> None:
        """Lets the server hear what was said last, and prints what it has already sent."""
        deadline = time.monotonic() + _FAREWELL
        self._subscriber.finish()
        while not (self._closed or self._output.full) and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        self._output.finish(max(0.0, deadline - time.monotonic()))

    def _obey(self, words: list[str]) -> bool:
        """Carries out a line; false where it is `exit`."""
        verb, topic, sf, *_ = [*words, "", "", ""]
        if verb == "exit":
            return False
        try:
            if verb == "subscribe" and topic:
                if sf not in ("", "0", "1"):
                    raise ConfigError(f"SF must be 0 or 1, not {sf!r}.")
                self._tell(lambda: self._subscriber.subscribe(topic, sf == "1"), b"Subscribed to topic.\n")
            elif verb == "unsubscribe" and topic:
                self._tell(lambda: self._subscriber.unsubscribe(topic), b"Unsubscribed from topic.\n")
            elif verb not in ("subscribe", "unsubscribe", ""):
                raise ConfigError(f"'{verb}' is not a command; they are subscribe, unsubscribe and exit.")
        except StafetaError as error:
            print(f"stafeta: {error}", file=sys.stderr, flush=True)
        return True

    def _tell(self, send: Callable[[], None], sentence: bytes) -> None:
        try:
            send()
        except NoReply:
            return  # the server has closed; what it has sent before is still to be read
        self._output.write(sentence)


def _lines(deliveries: Sequence[ReceivedMessage]) -> bytes:
    return "".join(
        [f"{ip}:{port} - {topic} - {kind} - {value}\n" for ip, port, topic, kind, value in deliveries]
    ).encode(errors="surrogateescape")
