"""What a broker answers, read from frames of the JSON dialect. (docs/protocols/zeromq.md)"""

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from stafeta.errors import DataLoss, Refused

_T = TypeVar("_T")
_SHOWN = 200


class Message(NamedTuple):
    """A message as a subscriber gets it."""

    topic: str
    id: int
    """Its number in the topic; of a subscription to a filter, its position in the whole log."""
    data: bytes
    kind: str
    """`int`, `short_real`, `float`, `string`, `json` or `bytes`. Numbers are their decimal text."""
    time: datetime
    """When the broker took it, in UTC."""
    subscription: str
    """The topic or filter that it was got by."""

    @property
    def text(self) -> str:
        """The data as text; bytes that are not UTF-8 are written as `\\xNN`."""
        return self.data.decode(errors="backslashreplace")


class TopicInfo(NamedTuple):
    """A topic of the broker: the ids of the first message it still has and of the next one it will get."""

    name: str
    first: int
    next: int
    subscriptions: int


class ClientInfo(NamedTuple):
    """A client, how many subscriptions it has, and how many messages wait for it. `connected` says that it is, or that
    it waits for messages just now."""

    client: str
    subscriptions: int
    connected: bool
    behind: int


class SubscriptionInfo(NamedTuple):
    """Who waits for what: `behind` messages on so many topics, of which the oldest has waited for so many seconds."""

    client: str
    filter: str
    durable: bool
    connected: bool
    topics: int
    behind: int
    seconds: float


class Nak(Refused):
    """The broker answered no; `expected` is the sequence it waits for, where that is the reason, and `retry` tells
    that the same may be accepted later."""

    def __init__(self, sentence: str, expected: int | None = None, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.expected = expected
        self.retry = retry


def done(frame: bytes) -> None:
    """Reads an ACK that says nothing more. Here and below: a NAK is raised."""
    _read(frame, lambda body: None)


def subscribed(frame: bytes) -> tuple[int, str]:
    """The reply to SUB: the last id that the subscription has behind it, and the mark of the log."""
    return _read(frame, lambda body: (int(body["last_publication_id"]), str(body.get("mark", ""))))


def stored(frame: bytes) -> tuple[int, int]:
    """The reply to PUT: the ids of the first and the last message."""
    return _read(frame, lambda body: (int(body["first_publication_id"]), int(body["current_publication_id"])))


def messages(frame: bytes, subscription: str) -> tuple[list[Message], str]:
    """The reply to GET, and the mark of the log."""
    return _read(
        frame,
        lambda body: (
            [_message(one, subscription) for one in body["publications"]],
            str(body.get("mark", "")),
        ),
    )


def topics(frame: bytes) -> list[TopicInfo]:
    """The reply to TOPICS."""
    return _read(frame, lambda body: [_line(TopicInfo, one) for one in body["topics"]])


def ready(frame: bytes) -> list[str]:
    """The reply to WAIT."""
    return _read(frame, lambda body: [str(one) for one in body["ready"]])


def stats(frame: bytes) -> dict[str, Any]:
    """The reply to STATS."""
    return _read(frame, dict)


def clients(frame: bytes) -> list[ClientInfo]:
    """The reply to CLIENTS."""
    return _read(frame, lambda body: [_line(ClientInfo, one) for one in body["clients"]])


def subscriptions(frame: bytes) -> list[SubscriptionInfo]:
    """The reply to SUBSCRIPTIONS."""
    return _read(frame, lambda body: [_line(SubscriptionInfo, one) for one in body["subscriptions"]])


def _line(kind: Callable[..., _T], one: dict[str, Any]) -> _T:
    return kind(**{name: one[name] for name in kind._fields})  # type: ignore[attr-defined]


def _message(one: dict[str, Any], subscription: str) -> Message:
    text = one["text"]
    data = b64decode(text) if one.get("encoding") == "base64" else text.encode()
    time = datetime.fromisoformat(one["time"])
    return Message(one.get("topic", subscription), one["id"], data, one["kind"], time, subscription)


def _read(frame: bytes, reading: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        reply = json.loads(frame)
        body = reply.get("body") or {}
        if reply["type"] == "ACK":
            return reading(body)
        sentence = str(body["error_message"])
        expected, lost = body.get("expected"), body.get("lost") is True
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        shown = frame[:_SHOWN].decode(errors="backslashreplace")
        raise Nak(f"The broker answered what this client cannot read: {shown!r}.") from None
    if lost:
        raise DataLoss(f"{sentence} accept_loss(topic) goes on with what it has.")
    raise Nak(sentence, expected if isinstance(expected, int) else None, retry=body.get("retry") is True)
