"""What a client does, once for both kinds of client: each verb as a dialogue with the broker."""

import os
import time
from collections.abc import Iterable, Sequence

from stafeta.doors.zeromq import replies, requests
from stafeta.doors.zeromq.exchange import Dialogue, Exchange
from stafeta.doors.zeromq.notebook import Notebook, open_notebook
from stafeta.doors.zeromq.outbox import Outbox, Tally
from stafeta.doors.zeromq.replies import Message, Nak, TopicInfo
from stafeta.doors.zeromq.requests import Parcel
from stafeta.errors import ConfigError, InvalidName, StafetaError

MAX_WINDOW = 16
_LONGEST_WAIT = 30.0
_PAGE = 1000


class ClientClosed(StafetaError):
    """The client has been closed."""


class Dialogues:
    """The state of a client and its verbs."""

    def __init__(
        self,
        exchange: Exchange,
        folder: str | os.PathLike[str] | None,
        window: int,
        folder_wait: float,
    ) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ConfigError(f"A window is 1 to {MAX_WINDOW} requests, not {window}.")
        self.exchange = exchange
        self._folder = folder
        self._window = window
        self._folder_wait = folder_wait
        self._open: tuple[Notebook, Outbox] | None = None
        self.closed = False
        # What the last GET of each subscription gave: id, and whether it has been acknowledged since.
        self._given: dict[str, dict[int, bool]] = {}
        self._untold: set[str] = set()

    def opened(self) -> Dialogue[tuple[Notebook, Outbox]]:
        """Opens the client's folder."""
        if self.closed:
            raise ClientClosed("This client has been closed; make a new one.")
        if self._open is None:
            notebook = yield from open_notebook(self._folder, self._folder_wait)
            self._open = notebook, Outbox(notebook, self.exchange, self._window)
        return self._open

    def close(self) -> None:
        self.closed = True
        self.exchange.reset()
        if self._open is not None:
            notebook, _ = self._open
            self._open = None
            notebook.close()

    def reset(self) -> None:
        """Forgets what is on its way: a dialogue ended before its replies came."""
        self.exchange.reset()
        if self._open is not None:
            self._open[1].reset()

    def take(self, topic: str, parcel: Parcel, tally: Tally) -> Dialogue[None]:
        """Keeps a parcel in the outbox and sends it when its turn comes."""
        _, outbox = yield from self.opened()
        yield from outbox.take(_checked(topic), parcel, tally)

    def finish(self, topic: str, parcel: Parcel | None, tally: Tally) -> Dialogue[None]:
        """Takes a last parcel and waits until the broker has everything."""
        if parcel is not None:
            yield from self.take(topic, parcel, tally)
        _, outbox = yield from self.opened()
        yield from outbox.settle()

    def count(self, topic: str) -> Dialogue[int]:
        notebook, _ = yield from self.opened()
        return notebook.count(_checked(topic))

    def subscribe(self, topic: str) -> Dialogue[int]:
        notebook, client = yield from self._ready()
        frame = yield from self.exchange.ask(requests.subscribe(client, _checked(topic)))
        behind = replies.last_id(frame)
        position = notebook.position(topic)
        if position > behind:
            # Acknowledged here, but the broker has not heard of it; or it has lost the topic, and says so.
            try:
                yield from self._tell(client, topic, position)
            except Nak:
                position = behind
        notebook.move(topic, max(position, behind))
        self._given.pop(topic, None)
        return max(position, behind)

    def unsubscribe(self, topic: str) -> Dialogue[None]:
        notebook, client = yield from self._ready()
        request = self.exchange.send(requests.unsubscribe(client, _checked(topic)))
        frame = yield from self.exchange.reply(request)
        try:
            replies.done(frame)
        except Nak:
            # Not subscribed: no wonder, if the reply to the same request was lost.
            if request.sent == 1:
                raise
        notebook.forget(topic)
        self._given.pop(topic, None)
        self._untold.discard(topic)

    def get(self, topic: str, limit: int, wait: float) -> Dialogue[list[Message]]:
        notebook, client = yield from self._ready()
        position = notebook.position(_checked(topic))
        deadline = time.monotonic() + wait
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            # In short spells, so that a broker which is gone is noticed soon.
            spell = min(left, self.exchange.timeout, _LONGEST_WAIT)
            frame = yield from self.exchange.ask(requests.get(client, topic, position, limit, spell), spell)
            found = replies.messages(frame, topic)
            self._untold.discard(topic)
            if found or spell == left:
                self._given[topic] = dict.fromkeys([message.id for message in found], False)
                return found

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
        notebook, client = yield from self._ready()
        position = self._advance(notebook, topic, ids)
        if position:
            yield from self._tell(client, topic, position)
        rest = [one for one in ids if one > position]
        if rest:
            replies.done((yield from self.exchange.ask(requests.acknowledge(client, topic, rest))))

    def acknowledge_up_to(self, topic: str, last: int) -> Dialogue[None]:
        """Acknowledges everything up to an id."""
        notebook, client = yield from self._ready()
        given = self._given.get(_checked(topic), {})
        if last in given:
            self._advance(notebook, topic, [one for one in given if one <= last])
            yield from self._tell(client, topic, last)
        else:
            yield from self._tell(client, topic, last)
            if last > notebook.position(topic):
                notebook.move(topic, last)
            self._given[topic] = {one: done for one, done in given.items() if one > last}

    def note(self, message: Message) -> Dialogue[None]:
        """Acknowledges a message here; the broker hears of it with the next GET, or by `tell`."""
        notebook, _ = yield from self.opened()
        if self._advance(notebook, message.subscription, [message.id]):
            self._untold.add(message.subscription)
        else:
            yield from self.acknowledge(message.subscription, [message.id])

    def tell(self, topic: str) -> Dialogue[None]:
        """Tells the broker what has been acknowledged here only."""
        if topic in self._untold:
            notebook, client = yield from self._ready()
            yield from self._tell(client, topic, notebook.position(topic))

    def topics(self, pattern: str) -> Dialogue[list[TopicInfo]]:
        yield from self._ready()
        found: list[TopicInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = replies.topics((yield from self.exchange.ask(requests.topics(pattern, after, _PAGE))))
            found += page
            if len(page) < _PAGE:
                return found

    def _ready(self) -> Dialogue[tuple[Notebook, str]]:
        notebook, outbox = yield from self.opened()
        yield from outbox.settle()
        return notebook, (yield from outbox.introduce())

    def _advance(self, notebook: Notebook, topic: str, ids: Sequence[int]) -> int:
        """Marks messages as acknowledged. The id up to which all are, on disk by then; 0 where that is as before."""
        given = self._given.get(topic, {})
        for one in ids:
            if one in given:
                given[one] = True
        position = 0
        for one, done in list(given.items()):
            if not done:
                break
            position = one
            del given[one]
        if position:
            notebook.move(topic, position)
        return position

    def _tell(self, client: str, topic: str, position: int) -> Dialogue[None]:
        frame = yield from self.exchange.ask(requests.acknowledge_up_to(client, topic, position))
        replies.done(frame)
        self._untold.discard(topic)


def _checked(topic: str) -> str:
    try:
        topic.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidName(f"{topic!r} is not the name of a topic.") from None
    return topic
