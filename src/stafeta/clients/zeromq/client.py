"""A client of a Stafeta broker, through the ZeroMQ door."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from stafeta.clients import forks
from stafeta.clients.closing import Closing
from stafeta.clients.zeromq.batching import MAX_PAYLOAD, Batcher
from stafeta.clients.zeromq.client_core import MAX_WINDOW, ClientClosed, ClientCore
from stafeta.clients.zeromq.outbox import PutProgress, Receipt
from stafeta.clients.zeromq.replies import ClientInfo, Message, SubscriptionInfo, TopicInfo
from stafeta.clients.zeromq.request_channel import Dialogue, RequestChannel
from stafeta.errors import NoReply, Refused

if TYPE_CHECKING:
    from stafeta.clients.curve import Curve
    from stafeta.clients.zeromq.async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClientInfo",
    "Message",
    "Receipt",
    "SubscriptionInfo",
    "TopicInfo",
]

ADDRESS = "tcp://127.0.0.1:9001"
_T = TypeVar("_T")


class Client(Closing):
    """A publisher and subscriber that loses nothing and repeats nothing.

    `folder` is where it keeps what it must remember; a client that was killed and is made anew with the same folder
    goes on where it was. Without one it remembers for as long as it lives. Only one client uses a folder at a time:
    a second one waits `folder_wait` seconds for it.

    A request is sent up to `retries` times, waiting `timeout` seconds for the reply each time and between them
    `backoff` seconds, doubled with each; then `NoReply` is raised. What the broker does not accept raises `Refused`
    with its reason. `put_many` has up to `window` requests on their way. A `name` is for people who look at the
    broker's clients: the id, which is drawn when the folder is made, begins with it.

    `curve` is for a broker that takes nothing but CURVE. Where it does not know the key, `NotAuthenticated` is raised.

    Not for several threads at once: make a client for each.
    """

    def __init__(
        self,
        address: str = ADDRESS,
        folder: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 5.0,
        retries: int = 3,
        backoff: float = 0.1,
        window: int = MAX_WINDOW,
        max_payload: int = MAX_PAYLOAD,
        folder_wait: float = 5.0,
        name: str = "",
        curve: "Curve | None" = None,
    ) -> None:
        self._channel = RequestChannel(address, timeout, retries, backoff, curve)
        self._core = ClientCore(self._channel, folder, window, folder_wait, name)
        self._max_payload = max_payload
        forks.guard(self)
        self._run(self._core.opened())

    def put(self, topic: str, data: str | bytes, kind: str | None = None, *, create: bool = False) -> int:
        """Puts a message on a topic and returns its id, once the broker has it on disk.

        `kind` is `int`, `short_real`, `float`, `string` (text, unless said otherwise), `json` or `bytes` (bytes,
        unless said otherwise). With `create` a topic that does not exist is made. After `NoReply` the message is kept,
        and sent before anything else: do not put it again. After `Refused` it is not kept.
        """
        batcher = Batcher(kind, self._max_payload, create=create)
        batcher.add(data)
        progress = PutProgress()
        self._run(self._core.finish(topic, batcher.rest(), progress))
        return progress.last

    def put_many(
        self, topic: str, data: Iterable[str | bytes], kind: str | None = None, *, create: bool = False
    ) -> Receipt:
        """Puts messages on a topic, many at a time; returns how many, and the ids of the first and last.

        `data` is read as the messages are sent. If it raises, what it gave before is put. After `NoReply` all that
        was read is kept and will be sent (`count` tells how many that is). After `Refused`, what the broker has not
        stored by then is not kept.
        """
        batcher = Batcher(kind, self._max_payload, create=create)
        progress = PutProgress()
        items = iter(data)
        while True:
            try:
                batch = batcher.fill(items)
            except Exception:
                self._run(self._core.finish(topic, batcher.rest(), progress))
                raise
            if batch is None:
                break
            self._run(self._core.take(topic, batch, progress))
        self._run(self._core.finish(topic, batcher.rest(), progress))
        return progress.receipt

    def flush(self) -> None:
        """Waits until the broker has everything that this client has put, in earlier runs too."""
        self._run(self._core.flush())

    def count(self, topic: str) -> int:
        """How many messages this client has ever taken on for a topic, those in its outbox included.

        A program that was killed while it put a list of messages goes on from there.
        """
        return self._run(self._core.count(topic))

    def subscribe(self, topic: str) -> int:
        """Subscribes to a topic, which is made where it does not exist, or to a filter (`a/+`, `a/#`).

        Returns the id that the subscription begins after. To repeat it changes nothing.
        """
        return self._run(self._core.subscribe(topic))

    def accept_loss(self, topic: str) -> int:
        """After `DataLoss`, goes on with what the broker has: forgets how far the topic or filter was read, and
        subscribes again. Returns the id that the subscription goes on after."""
        return self._run(self._core.accept_loss(topic))

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription; what it held is released."""
        self._run(self._core.unsubscribe(topic))

    def get(self, topic: str, wait: float = 0.0) -> Message | None:
        """The first message that has not been acknowledged: the same one, until it is.

        Where there is none, waits `wait` seconds for one (`math.inf`: for ever), then returns None.
        """
        found = self.get_many(topic, 1, wait)
        return found[0] if found else None

    def get_many(self, topic: str, limit: int = 1000, wait: float = 0.0) -> list[Message]:
        """The first messages that have not been acknowledged: at most `limit`, and what fits one reply."""
        return self._run(self._core.get(topic, limit, wait))

    def ack(self, messages: Message | Iterable[Message] | str, *, up_to: int | None = None) -> None:
        """Acknowledges a message, several in any order, or everything of a topic up to an id."""
        for dialogue in self._core.acknowledgements(messages, up_to):
            self._run(dialogue)

    def messages(self, topic: str) -> Iterator[Message]:
        """Every message of a subscription, those to come included. Each is acknowledged when the next is asked for."""
        try:
            while True:
                for message in self.get_many(topic, wait=math.inf):
                    yield message
                    self._run(self._core.note(message))
        except GeneratorExit:
            if not self._core.closed:
                with suppress(NoReply):  # then the next get tells it
                    self._run(self._core.tell(topic))
            raise

    def wait(self, topics: Sequence[str], wait: float = math.inf) -> list[str]:
        """Waits until some of these subscriptions have messages that are not acknowledged; returns which those are:
        none of them after `wait` seconds."""
        return self._run(self._core.wait(topics, wait))

    def watch(self, *filters: str, wait: float = 0.0) -> list[Message]:
        """What is published from now on, or was since this was last asked for. Where there is nothing, waits `wait`
        seconds for it. Nothing is kept: what is lost on its way is lost, and whoever does not ask for a minute watches
        no more. `watch()` ends it."""
        return self._run(self._core.watch(filters, wait))

    def last(self, topic: str, count: int = 1) -> list[Message]:
        """The last messages that a topic holds, acknowledged or not. Nobody's acknowledgements change."""
        return self._run(self._core.last(topic, count))

    def stats(self) -> dict[str, Any]:
        """What the broker is doing: `version`, `topics`, `subscriptions`, `clients`, `messages`, `pending`, …"""
        return self._run(self._core.stats())

    def clients(self) -> list[ClientInfo]:
        """The clients that have subscriptions, through any door, and connected devices."""
        return self._run(self._core.clients())

    def subscriptions(self, filter: str = "") -> list[SubscriptionInfo]:
        """The subscriptions of all clients that match a topic, or are to this filter; all, if it is empty."""
        return self._run(self._core.subscriptions(filter))

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        """The broker's topics that match a filter, by name."""
        return self._run(self._core.topics(filter))

    def skip(self, topic: str, first: int, last: int) -> None:
        """Lets everybody pass over messages that are damaged in the store, `last` included. Those that can be read are
        refused."""
        self._run(self._core.skip(topic, first, last))

    def close(self) -> None:
        """Ends the connection and lets the folder go. May be repeated. Does nothing in a process that was forked
        meanwhile."""
        self._core.close()

    def _forked(self) -> None:
        self._core.forked()

    def _run(self, dialogue: Dialogue[_T]) -> _T:
        self._core.check()
        try:
            while True:
                seconds = next(dialogue)
                sockets = self._channel.sockets
                if sockets:
                    zmq.zmq_poll([(socket, zmq.POLLIN) for socket in sockets], math.ceil(seconds * 1000))
                else:
                    time.sleep(seconds)
        except StopIteration as end:
            result: _T = end.value
            return result
        except Refused:
            raise
        except BaseException:
            self._core.reset()
            raise


def __getattr__(name: str) -> Any:
    # asyncio takes as long to import as all the rest, and most programs need one kind of client.
    if name == "AsyncClient":
        from stafeta.clients.zeromq.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
