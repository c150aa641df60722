"""What a subscriber can say, whichever dialect it says it in.

1. The first command is the client's id, and there is only one. An id is 1 to 10 printable ASCII characters.
2. SF is 0 or 1.
3. A topic is UTF-8. Whether it is allowed is for the broker to say.
"""

import re
from typing import Final, NamedTuple, TypeAlias

from stafeta.errors import InvalidClient, InvalidCommand, InvalidName

MAX_ID: Final = 10

_ID = re.compile(rb"[!-~]{1,10}")
_ID_RULE: Final = f"it has 1 to {MAX_ID} printable ASCII characters and no white space"


class Identify(NamedTuple):
    client: str


class Subscribe(NamedTuple):
    topic: str
    sf: bool


class Unsubscribe(NamedTuple):
    topic: str


class Refused(NamedTuple):
    """A command that was understood but is wrong. It is skipped; the connection goes on."""

    why: str


Command: TypeAlias = Identify | Subscribe | Unsubscribe | Refused


def identification(client: bytes) -> Identify:
    if not _ID.fullmatch(client):
        raise InvalidCommand(f"{client!r} is no client's id: {_ID_RULE}.")
    return Identify(client.decode())


def subscription(topic: bytes, sf: bytes) -> Subscribe | Refused:
    if sf not in (b"0", b"1"):
        return Refused(f"SF is {sf!r}; it must be 0 or 1.")
    name = _name(topic)
    return name if isinstance(name, Refused) else Subscribe(name, sf == b"1")


def unsubscription(topic: bytes) -> Unsubscribe | Refused:
    name = _name(topic)
    return name if isinstance(name, Refused) else Unsubscribe(name)


def id_bytes(client: str) -> bytes:
    """A client's id as it is sent, or `InvalidClient`."""
    sent = client.encode(errors="replace")
    if not _ID.fullmatch(sent) or sent.decode() != client:
        raise InvalidClient(f"{client!r} cannot be a client's id: {_ID_RULE}.")
    return sent


def topic_bytes(topic: str) -> bytes:
    """A topic as it is sent, or `InvalidName`."""
    try:
        return topic.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"The topic {topic[:20]!r} is not UTF-8.") from None


def _name(topic: bytes) -> str | Refused:
    if not topic:
        return Refused("There is no topic.")
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return Refused(f"The topic {topic!r} is not UTF-8.")
