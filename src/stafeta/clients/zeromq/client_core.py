"""What a client does, once for both kinds of client: each verb as a dialogue with the broker."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from stafeta.clients import forks
from stafeta.clients.zeromq import replies, requests
from stafeta.clients.zeromq.client_state import ClientState, open_client_state
from stafeta.clients.zeromq.outbox import Outbox, PutProgress
from stafeta.clients.zeromq.read_position import Reader
from stafeta.clients.zeromq.replies import ClientInfo, Message, Nak, SubscriptionInfo, TopicInfo
from stafeta.clients.zeromq.request_channel import Dialogue, RequestChannel
from stafeta.clients.zeromq.requests import PublishBatch
from stafeta.errors import ConfigError, InvalidName, NoReply, StafetaError

_T = TypeVar("_T")
MAX_WINDOW = 16
_LONGEST_WAIT = 30.0
_PAGE = 1000


class ClientClosed(StafetaError):
    """The client has been closed."""


class ClientCore:
    """The state of a client and its verbs."""

    def __init__(
        self,
        channel: RequestChannel,
        folder: str | os.PathLike[str] | None,
        window: int,
        folder_wait: float,
        name: str,
    ) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ConfigError(f"A window is 1 to {MAX_WINDOW} requests, not {window}.")
        self.channel = channel
        self._process = os.getpid()
        self._folder = folder
        self._window = window
        self._folder_wait = folder_wait
        self._name = name
        self._open: tuple[ClientState, Outbox] | None = None
        self.closed = False
        self._readers: dict[str, Reader] = {}
        self._reading_as = ""

    def opened(self) -> Dialogue[tuple[ClientState, Outbox]]:
        """Opens the client's folder."""
        self.check()
        if self._open is None:
            state = yield from open_client_state(self._folder, self._folder_wait, self._name)
            self._open = state, Outbox(state, self.channel, self._window)
        return self._open

    def check(self) -> None:
        """Raises where the client was closed, or is another process's."""
        forks.check(self._process)
        if self.closed:
            raise ClientClosed("This client has been closed; make a new one.")

    @property
    def is_anothers(self) -> bool:
        """Whether the client is another process's."""
        return os.getpid() != self._process

    def forked(self) -> None:
        """This is another process: nothing is done here any more."""
        self.closed = True
        if self._open is not None:
            self._open[0].let_go()

    def close(self) -> None:
        if self.is_anothers:
            return
        self.closed = True
        self.channel.reset()
        if self._open is not None:
            state, _ = self._open
            self._open = None
            state.close()

    def reset(self) -> None:
        """Goes back to what is on disk: a dialogue ended before its replies came."""
        self.channel.reset()
        self._readers.clear()
        if self._open is not None:
            self._open[1].reset()

    def take(self, topic: str, batch: PublishBatch, progress: PutProgress) -> Dialogue[None]:
        """Keeps a batch in the outbox and sends it when its turn comes."""
        _, outbox = yield from self.opened()
        yield from _kept(outbox.take(_checked(topic), batch, progress))

    def finish(self, topic: str, batch: PublishBatch | None, progress: PutProgress) -> Dialogue[None]:
        """Takes a last batch and waits until the broker has everything."""
        if batch is not None:
            yield from self.take(topic, batch, progress)
        yield from self.flush()

    def flush(self) -> Dialogue[None]:
        """Waits until the outbox is empty."""
        _, outbox = yield from self.opened()
        yield from _kept(outbox.settle())

    def count(self, topic: str) -> Dialogue[int]:
        state, _ = yield from self.opened()
        return state.count(_checked(topic))

    def subscribe(self, topic: str) -> Dialogue[int]:
        reader, client = yield from self._reader(topic)
        frame = yield from self.channel.ask(requests.subscribe(client, topic, reader.mark))
        behind, mark = replies.subscribed(frame)
        if reader.position > behind:  # acknowledged here, but the broker has not heard of it
            yield from self._tell(client, topic, reader)
        reader.mark = mark or reader.mark
        reader.acknowledge_up_to(behind)
        return reader.position

    def accept_loss(self, topic: str) -> Dialogue[int]:
        """Forgets how far a subscription was read, and makes it again."""
        yield from self._reader(topic)
        self._forget(topic)
        return (yield from self.subscribe(topic))

    def unsubscribe(self, topic: str) -> Dialogue[None]:
        _, client = yield from self._reader(topic)
        request = self.channel.send(requests.unsubscribe(client, topic))
        frame = yield from self.channel.reply(request)
        try:
            replies.done(frame)
        except Nak:
            # Not subscribed: no wonder, if the reply to the same request was lost.
            if request.sent == 1:
                raise
        finally:
            self._forget(topic)

    def get(self, topic: str, limit: int, wait: float) -> Dialogue[list[Message]]:
        reader, client = yield from self._reader(topic)
        deadline = time.monotonic() + wait
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            # In short spells, so that a broker which is gone is noticed soon.
            spell = min(left, self.channel.timeout, _LONGEST_WAIT)
            request = requests.get(client, topic, reader.position, limit, spell, reader.mark)
            position = reader.position
            received, mark = replies.messages((yield from self.channel.ask(request, spell)), topic)
            reader.unsent = False
            new = reader.given(received, mark)
            if new or (spell == left and reader.position == position):
                return new

    def acknowledgements(
        self, messages: Message | Iterable[Message] | str, up_to: int | None
    ) -> list[Dialogue[None]]:
        """What `ack` with these arguments has to do."""
        if isinstance(messages, str):
            if up_to is None:
                raise TypeError("To acknowledge a topic, say up to which id: ack(topic, up_to=id).")
            return [self.acknowledge_up_to(messages, up_to)]
        if up_to is not None:
            raise TypeError("up_to goes with a topic: ack(topic, up_to=id).")
        ids: dict[str, list[int]] = {}
        for message in [messages] if isinstance(messages, Message) else messages:
            ids.setdefault(message.subscription, []).append(message.id)
        return [self.acknowledge(topic, some) for topic, some in ids.items()]

    def acknowledge(self, topic: str, ids: Sequence[int]) -> Dialogue[None]:
        """Acknowledges single messages."""
        reader, client = yield from self._reader(topic)
        ahead = reader.acknowledge(ids)
        if reader.unsent:
            yield from self._tell(client, topic, reader)
        if ahead:
            request = requests.acknowledge(client, topic, ahead, reader.mark)
            replies.done((yield from self.channel.ask(request)))

    def acknowledge_up_to(self, topic: str, last: int) -> Dialogue[None]:
        """Acknowledges everything up to an id."""
        reader, client = yield from self._reader(topic)
        if not reader.has_given(last):
            # Perhaps there is no such message: if so the broker says it before it is remembered.
            request = requests.acknowledge_up_to(client, topic, last, reader.mark)
            replies.done((yield from self.channel.ask(request)))
        reader.acknowledge_up_to(last)
        if reader.unsent:
            yield from self._tell(client, topic, reader)

    def note(self, message: Message) -> Dialogue[None]:
        """Acknowledges a message here; the broker hears of it with the next GET, or by `tell`."""
        reader, client = yield from self._reader(message.subscription)
        ahead = reader.acknowledge([message.id])
        if ahead:
            request = requests.acknowledge(client, message.subscription, ahead, reader.mark)
            replies.done((yield from self.channel.ask(request)))

    def tell(self, topic: str) -> Dialogue[None]:
        """Tells the broker what has been acknowledged here only."""
        reader, client = yield from self._reader(topic)
        if reader.unsent:
            yield from self._tell(client, topic, reader)

    def wait(self, topics: Sequence[str], wait: float) -> Dialogue[list[str]]:
        _, client = yield from self._ready()
        for topic in topics:
            _checked(topic)
        return (
            yield from self._patiently(
                wait, lambda spell: requests.wait(client, topics, spell), replies.ready
            )
        )

    def watch(self, filters: Sequence[str], wait: float) -> Dialogue[list[Message]]:
        _, client = yield from self._ready()
        for pattern in filters:
            _checked(pattern)
        return (
            yield from self._patiently(
                wait,
                lambda spell: requests.watch(client, filters, spell),
                lambda frame: replies.messages(frame, "")[0],
            )
        )

    def _patiently(
        self, wait: float, request: Callable[[float], bytes], read: Callable[[bytes], list[_T]]
    ) -> Dialogue[list[_T]]:
        """Asks until the broker has something to say, or the time is over."""
        deadline = time.monotonic() + wait
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            # In short spells, so that a broker which is gone is noticed soon.
            spell = min(left, self.channel.timeout, _LONGEST_WAIT)
            found = read((yield from self.channel.ask(request(spell), spell)))
            if found or spell == left:
                return found

    def last(self, topic: str, count: int) -> Dialogue[list[Message]]:
        yield from self._ready()
        found: list[Message] = []
        while len(found) < count:
            start = found[-1].id + 1 if found else None
            limit = min(count - len(found), _PAGE)
            frame = yield from self.channel.ask(requests.read(_checked(topic), start, count, limit))
            page, _ = replies.messages(frame, topic)
            if not page:
                break
            found += page
        return found

    def stats(self) -> Dialogue[dict[str, Any]]:
        yield from self._ready()
        return replies.stats((yield from self.channel.ask(requests.stats())))

    def clients(self) -> Dialogue[list[ClientInfo]]:
        yield from self._ready()
        found: list[ClientInfo] = []
        while True:
            after = found[-1].client if found else ""
            page = replies.clients((yield from self.channel.ask(requests.clients(after, _PAGE))))
            found += page
            if len(page) < _PAGE:
                return found

    def subscriptions(self, pattern: str) -> Dialogue[list[SubscriptionInfo]]:
        yield from self._ready()
        found: list[SubscriptionInfo] = []
        while True:
            after = (found[-1].client, found[-1].filter) if found else ("", "")
            request = requests.subscriptions(_checked(pattern), after, _PAGE)
            page = replies.subscriptions((yield from self.channel.ask(request)))
            found += page
            if not page:
                return found

    def topics(self, pattern: str) -> Dialogue[list[TopicInfo]]:
        yield from self._ready()
        found: list[TopicInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = replies.topics((yield from self.channel.ask(requests.topics(pattern, after, _PAGE))))
            found += page
            if len(page) < _PAGE:
                return found

    def skip(self, topic: str, first: int, last: int) -> Dialogue[None]:
        yield from self._ready()
        replies.done((yield from self.channel.ask(requests.skip(topic, first, last))))

    def _ready(self) -> Dialogue[tuple[ClientState, str]]:
        state, outbox = yield from self.opened()
        yield from outbox.settle()
        return state, state.identity

    def _reader(self, topic: str) -> Dialogue[tuple[Reader, str]]:
        state, client = yield from self._ready()
        if client != self._reading_as:
            self._readers.clear()
            self._reading_as = client
        if _checked(topic) not in self._readers:
            self._readers[topic] = Reader(state, topic)
        return self._readers[topic], client

    def _forget(self, topic: str) -> None:
        del self._readers[topic]
        if self._open is not None:
            self._open[0].forget(topic)

    def _tell(self, client: str, topic: str, reader: Reader) -> Dialogue[None]:
        request = requests.acknowledge_up_to(client, topic, reader.position, reader.mark)
        replies.done((yield from self.channel.ask(request)))
        reader.unsent = False


def _kept(putting: Dialogue[None]) -> Dialogue[None]:
    try:
        yield from putting
    except NoReply as error:
        raise type(error)(
            f"{error} What was to be put is kept and goes out first: do not put it again."
        ) from None


def _checked(topic: str) -> str:
    try:
        topic.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidName(f"{topic!r} is not the name of a topic.") from None
    return topic
