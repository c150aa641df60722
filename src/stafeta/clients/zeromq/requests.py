"""What a client asks, as frames of the JSON dialect. (docs/protocols/zeromq.md)"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class PublishBatch(NamedTuple):
    """Messages that are put with one request."""

    length: int
    kind: str
    encoding: str  # "base64", or "" for text
    publications: (
        bytes  # a JSON array of strings, and where the topic is to be made, `,"create":true` behind it
    )


class Entry(NamedTuple):
    """A batch in the outbox. `number` orders the outbox, `sequence` is the first message's in its topic."""

    number: int
    topic: str
    sequence: int
    batch: PublishBatch


def subscribe(client: str, topic: str, mark: str) -> bytes:
    return _frame("SUB", client, topic, {"mark": mark})


def unsubscribe(client: str, topic: str) -> bytes:
    return _frame("UNSUB", client, topic)


def put(client: str, entry: Entry) -> bytes:
    # Written around the batch's own JSON, so that what the outbox holds is not decoded to be sent.
    _, topic, sequence, (_, kind, encoding, publications) = entry
    encoded = f',"encoding":"{encoding}"' if encoding else ""
    head = f'{_opening("PUT", client, topic)}{{"sequence":{sequence},"kind":"{kind}"{encoded},"publications":'
    return b"%b%b}}" % (head.encode(), publications)


def get(client: str, topic: str, after: int, limit: int, wait: float, mark: str) -> bytes:
    body: dict[str, object] = {"last_publication_id": after, "limit": limit, "mark": mark}
    if wait > 0:
        body["wait"] = wait
    return _frame("GET", client, topic, body)


def acknowledge(client: str, topic: str, ids: Sequence[int], mark: str) -> bytes:
    return _frame("ACK", client, topic, {"ids": list(ids), "mark": mark})


def acknowledge_up_to(client: str, topic: str, last: int, mark: str) -> bytes:
    return _frame("ACK", client, topic, {"last_publication_id": last, "mark": mark})


def topics(pattern: str, after: str, limit: int) -> bytes:
    return _frame("TOPICS", body={"filter": pattern, "after": after, "limit": limit})


def wait(client: str, topics: Sequence[str], seconds: float) -> bytes:
    return _frame("WAIT", client, body={"topics": list(topics), "wait": seconds})


def watch(client: str, filters: Sequence[str], seconds: float = 0.0) -> bytes:
    return _frame("WATCH", client, body={"filters": list(filters), "wait": seconds})


def read(topic: str, start: int | None, last: int, limit: int) -> bytes:
    where = {"last": last} if start is None else {"from": start}
    return _frame("READ", topic=topic, body={**where, "limit": limit})


def stats() -> bytes:
    return _frame("STATS")


def clients(after: str, limit: int) -> bytes:
    return _frame("CLIENTS", body={"after": after, "limit": limit})


def subscriptions(pattern: str, after: Sequence[str], limit: int) -> bytes:
    return _frame("SUBSCRIPTIONS", body={"filter": pattern, "after": list(after), "limit": limit})


def skip(topic: str, first: int, last: int) -> bytes:
    return _frame("SKIP", topic=topic, body={"first": first, "last": last})


def _frame(kind: str, client: str = "", topic: str = "", body: Mapping[str, object] | None = None) -> bytes:
    return f"{_opening(kind, client, topic)}{json.dumps(body or {})}}}".encode()


def _opening(kind: str, client: str, topic: str) -> str:
    return f'{{"type":"{kind}","topic":{json.dumps(topic)},"client_id":{json.dumps(client)},"body":'
