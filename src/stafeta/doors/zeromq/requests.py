"""What a client asks, as frames of the JSON dialect. (docs/protocols/zeromq.md)"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Parcel(NamedTuple):
    """Messages that are put with one request."""

    length: int
    kind: str
    encoding: str  # "base64", or "" for text
    publications: bytes  # a JSON array of strings


class Entry(NamedTuple):
    """A parcel in the outbox. `number` orders the outbox, `sequence` is the first message's in its topic."""

    number: int
    topic: str
    sequence: int
    parcel: Parcel


def subscribe(client: str, topic: str) -> bytes:
    return _frame("SUB", client, topic)


def unsubscribe(client: str, topic: str) -> bytes:
    return _frame("UNSUB", client, topic)


def put(client: str, entry: Entry) -> bytes:
    # Written around the parcel's own JSON, so that what the outbox holds is not decoded to be sent.
    _, topic, sequence, (_, kind, encoding, publications) = entry
    encoded = f',"encoding":"{encoding}"' if encoding else ""
    head = f'{_opening("PUT", client, topic)}{{"sequence":{sequence},"kind":"{kind}"{encoded},"publications":'
    return b"%b%b}}" % (head.encode(), publications)


def get(client: str, topic: str, after: int, limit: int, wait: float) -> bytes:
    body: dict[str, object] = {"last_publication_id": after, "limit": limit}
    if wait > 0:
        body["wait"] = wait
    return _frame("GET", client, topic, body)


def acknowledge(client: str, topic: str, ids: Sequence[int]) -> bytes:
    return _frame("ACK", client, topic, {"ids": list(ids)})


def acknowledge_up_to(client: str, topic: str, last: int) -> bytes:
    return _frame("ACK", client, topic, {"last_publication_id": last})


def topics(pattern: str, after: str, limit: int) -> bytes:
    return _frame("TOPICS", body={"filter": pattern, "after": after, "limit": limit})


def _frame(kind: str, client: str = "", topic: str = "", body: Mapping[str, object] | None = None) -> bytes:
    return f"{_opening(kind, client, topic)}{json.dumps(body or {})}}}".encode()


def _opening(kind: str, client: str, topic: str) -> str:
    return f'{{"type":"{kind}","topic":{json.dumps(topic)},"client_id":{json.dumps(client)},"body":'
