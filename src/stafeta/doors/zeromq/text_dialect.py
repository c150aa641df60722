"""The text dialect: words separated by one space."""

import re

from stafeta.doors.zeromq.codec import (
    MAX_IDS,
    Ack,
    BadRequest,
    FetchResult,
    Get,
    Login,
    Put,
    Request,
    Subscribe,
    Unsubscribe,
)
from stafeta.errors import (
    InvalidClient,
    InvalidMessage,
    InvalidName,
    NoSuchOffset,
    NoSuchTopic,
    NotSubscribed,
    StafetaError,
)

VERBS = "LOGIN, SUB, UNSUB, PUT, GET and ACK"
_IDS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")


class TextDialect:
    def read(self, body: bytes) -> Request:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"The request is not UTF-8: byte {error.start + 1} cannot be read.") from None
        verb, _, rest = text.partition(" ")
        if verb == "PUT":
            topic, space, _ = rest.partition(" ")
            if not space:
                raise BadRequest("PUT takes a topic and data: PUT <topic> <data>.")
            return Put(topic, body[len(topic.encode()) + 5 :])
        words = rest.split(" ") if rest else []
        match verb, words:
            case "LOGIN", []:
                return Login()
            case "SUB", [client, *name]:
                # A topic with a space in it is a name that is not allowed, which has an answer of its own.
                return Subscribe(client, " ".join(name))
            case "UNSUB", [client, topic]:
                return Unsubscribe(client, topic)
            case "GET", [client, topic]:
                return Get(client, topic)
            case "ACK", [client, topic, ids]:
                return Ack(client, topic, _numbers(ids))
            case "LOGIN" | "SUB" | "UNSUB" | "GET" | "ACK", _:
                raise BadRequest(f"{verb} takes {_TAKES[verb]}, and got {len(words)} words.")
        raise BadRequest(f"{verb[:20]!r} is not a request; the requests are {VERBS}.")

    def logged_in(self, id_: int) -> bytes:
        return b"LOGIN:%d" % id_

    def subscribed(self, last: int, mark: str | None) -> bytes:
        return b"ACK"

    def done(self) -> bytes:
        return b"ACK"

    def stored(self, offset: int) -> bytes:
        return b"ACK"

    def messages(self, request: Get, fetched: FetchResult, size: int) -> bytes:
        entries: list[bytes] = []
        for batch in fetched.batches:
            ids = batch.positions if fetched.by_position else range(batch.base, batch.end)
            for id_, payload in zip(ids, batch.payloads, strict=True):
                entry = (b"%d:%b" % (id_, _utf8(payload))).replace(b":", b"::")
                size -= len(entry) + 2
                if size < -2 and entries:
                    return b":/".join(entries)
                entries.append(entry)
        return b":/".join(entries) or b"NO_MESSAGES"

    def error(self, request: Request | None, error: StafetaError) -> bytes:
        match error:
            case BadRequest() | InvalidClient() | InvalidMessage() | NoSuchOffset():
                return f"BAD_REQUEST {error}".encode(errors="backslashreplace")
            case InvalidName():
                return b"INVALID_TOPIC" if isinstance(request, Subscribe) else b"NON_EXISTENT"
            case NoSuchTopic():
                return b"NON_EXISTENT"
            case NotSubscribed():
                return b"NOT_SUBSCRIBED"
        return f"ERROR {error}".encode(errors="backslashreplace")


_TAKES = {
    "LOGIN": "nothing more",
    "SUB": "an id and a topic",
    "UNSUB": "an id and a topic",
    "GET": "an id and a topic",
    "ACK": "an id, a topic and message ids separated by commas",
}


def _numbers(text: str) -> list[int]:
    count = text.count(",") + 1
    if count > MAX_IDS:
        raise BadRequest(f"ACK has {count} ids; at most {MAX_IDS} are allowed at once.")
    ids = list(map(int, text.split(","))) if _IDS.fullmatch(text) else [0]
    if 0 in ids:
        wrong = next(word for word in text.split(",") if not _IDS.fullmatch(word) or not int(word))
        raise BadRequest(f"{wrong[:20]!r} is not a message id; ACK takes numbers separated by commas.")
    return ids


def _utf8(payload: bytes) -> bytes:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode(errors="backslashreplace").encode()
    return payload
