"""The text dialect: words separated by one space."""

from stafeta.doors.zeromq.codec import (
    Ack,
    BadRequest,
    Delivery,
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
MAX_IDS = 100_000


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

    def subscribed(self, last: int) -> bytes:
        return b"ACK"

    def done(self) -> bytes:
        return b"ACK"

    def stored(self, offset: int) -> bytes:
        return b"ACK"

    def messages(self, request: Get, delivery: Delivery, size: int) -> bytes:
        entries: list[bytes] = []
        for batch in delivery.batches:
            ids = batch.positions if delivery.by_position else range(batch.base, batch.end)
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
    words = text.split(",")
    if len(words) > MAX_IDS:
        raise BadRequest(f"ACK has {len(words)} ids; at most {MAX_IDS} are allowed at once.")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 19 and word.strip("0")):
            raise BadRequest(f"{word[:20]!r} is not a message id; ACK takes numbers separated by commas.")
    return [int(word) for word in words]


def _utf8(payload: bytes) -> bytes:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode(errors="backslashreplace").encode()
    return payload
