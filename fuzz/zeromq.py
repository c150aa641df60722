"""The ZeroMQ door: requests, GET replies, and what its client reads.

1. A frame is a request or a `BadRequest` whose answer is short and UTF-8.
2. A request written out again is read as the same request.
3. A GET reply is read back as the first messages, and is no longer than it may be.
4. A client reads a reply, or raises `Refused`.
"""

import json
from base64 import b64decode, b64encode
from contextlib import suppress

from fuzz.target import Target
from stafeta.clients.zeromq import replies
from stafeta.doors.zeromq.codec import (
    Ack,
    BadRequest,
    Clients,
    FetchResult,
    Get,
    Login,
    Put,
    PutSequence,
    Read,
    Request,
    Stats,
    Subscribe,
    Subscriptions,
    Topics,
    Unsubscribe,
    Wait,
    Watch,
)
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.text_dialect import TextDialect
from stafeta.errors import DataLoss, InvalidMessage, Refused
from stafeta.message import Kind, Row, RowBatch
from tests.doors.zeromq.peers import read_get

TEXT = TextDialect()
JSON = JsonDialect()


def text_requests(data: bytes) -> None:
    request = _read(TEXT, data)
    if request is not None:
        assert TEXT.read(_as_text(request)) == request


def json_requests(data: bytes) -> None:
    for body in (data, _composed(data)):
        request = _read(JSON, body)
        if request is not None:
            assert JSON.read(_as_json(request)) == request


def get_replies(data: bytes) -> None:
    size, limit, messages = sum(data[:1]), sum(data[1:2]) or 1, data[2:].split(b"\n")
    rows: list[Row] = [(70 + at, at, "p", "", int(Kind.STRING), None, one) for at, one in enumerate(messages)]
    delivery = FetchResult([RowBatch("t", 5 + at, rows[at : at + 3]) for at in range(0, len(rows), 3)], False)
    in_text = TEXT.messages(Get("c", "t"), delivery, size)
    found = read_get(in_text.decode())
    shown = [one.decode(errors="backslashreplace") for one in messages]
    assert found == list(enumerate(shown, 5))[: len(found)]
    assert found
    assert len(in_text) <= size or len(found) == 1
    in_json = JSON.messages(Get("c", "t", 4, limit), delivery, size)
    told = json.loads(in_json)["body"]["publications"]
    texts = [
        b64decode(one["text"]) if one.get("encoding") == "base64" else one["text"].encode() for one in told
    ]
    assert texts == messages[: len(texts)]
    assert 1 <= len(texts) <= limit
    assert len(in_json) <= size or len(texts) == 1


def client_replies(data: bytes) -> None:
    for reading in (
        *(replies.done, replies.subscribed, replies.stored, replies.topics),
        *(replies.ready, replies.stats, replies.clients, replies.subscriptions),
    ):
        with suppress(Refused, DataLoss):
            reading(data)
    with suppress(Refused, DataLoss):
        for message in replies.messages(data, "t")[0]:
            message.text.encode()


def _read(dialect: TextDialect | JsonDialect, data: bytes) -> Request | None:
    try:
        return dialect.read(data)
    except (BadRequest, InvalidMessage) as error:
        answer = dialect.error(None, error)
        assert len(answer.decode()) < 1000
        return None


def _as_text(request: Request) -> bytes:
    match request:
        case Put(topic, payload):
            return b"PUT %b %b" % (topic.encode(), payload)
        case Subscribe(client, filter_):
            return f"SUB {client} {filter_}".encode()
        case Unsubscribe(client, filter_):
            return f"UNSUB {client} {filter_}".encode()
        case Get(client, filter_):
            return f"GET {client} {filter_}".encode()
        case Ack(client, filter_, ids):
            return f"ACK {client} {filter_} {','.join(map(str, ids or ()))}".encode()
        case Login():
            return b"LOGIN"
    raise AssertionError(f"the text dialect has no {request}")


def _as_json(request: Request) -> bytes:
    topic, client = getattr(request, "topic", getattr(request, "filter", "")), getattr(request, "client", "")
    body: dict[str, object] = {}
    match request:
        case Put(_, payload, kind, _, counter):
            body = {"publication": b64encode(payload).decode(), "encoding": "base64", "kind": Kind(kind).word}
            body |= {} if counter is None else {"counter": counter}
        case PutSequence(_, payloads, kind, _, sequence, create):
            body = {"encoding": "base64", "kind": Kind(kind).word, "sequence": sequence, "create": create}
            body["publications"] = [b64encode(payload).decode() for payload in payloads]
        case Get(_, _, after, limit, wait):
            body = {"last_publication_id": after, "wait": wait}
            body |= {} if limit is None or request.single else {"limit": limit}
        case Ack(_, _, ids, up_to):
            body = {"last_publication_id": up_to} if ids is None else {"ids": ids}
        case Topics(filter_, after_name, most):
            body = {"filter": filter_, "after": after_name, "limit": most}
        case Wait(_, filters, wait):
            body = {"topics": filters, "wait": wait}
        case Watch(_, filters, wait):
            body = {"filters": filters, "wait": wait}
        case Read(_, start, last, most):
            body = {"last": last, "limit": most} if start is None else {"from": start, "limit": most}
        case Clients(after_name, most):
            body = {"after": after_name, "limit": most}
        case Subscriptions(after_both, most, filter_):
            body = {"after": after_both, "limit": most, "filter": filter_}
    name = {Login: "REQUEST_ID", Subscribe: "SUB", Unsubscribe: "UNSUB", PutSequence: "PUT"}.get(
        type(request), type(request).__name__.upper()
    )
    return json.dumps({"type": name, "topic": topic, "client_id": client, "body": body}).encode()


def _composed(data: bytes) -> bytes:
    """A request whose parts the bytes choose: few bytes that are chosen blindly are JSON."""
    kind, topic, client, *choices = (*data[:9], *bytes(3))
    told: dict[str, object] = {"type": _TYPES[kind % len(_TYPES)], "topic": _NAMES[topic % len(_NAMES)]}
    told |= {
        "client_id": _NAMES[client % len(_NAMES)],
        "body": dict(_DETAILS[at % len(_DETAILS)] for at in choices),
    }
    return json.dumps(told).encode()


_TYPES = [
    *("REQUEST_ID", "SUB", "UNSUB", "PUT", "GET", "ACK", "TOPICS"),
    *("WAIT", "WATCH", "READ", "STATS", "CLIENTS", "SUBSCRIPTIONS"),
]
_NAMES: list[object] = ["t", "a/#", "", 12, None, "ș"]
_NUMBERS: list[object] = [0, 1, 7, -1, 1 << 62, 1 << 63, 0.25, 1e300, None, True, "1"]
_TEXTS: list[object] = ["", "1", "-1.50", "[1]", "QQ==", "\ud800", "ș", 1, 2.5, None, [[]], {"a": [None]}]
_DETAILS: list[tuple[str, object]] = [
    *((key, value) for key in ("counter", "last_publication_id") for value in _NUMBERS),
    *((key, value) for key in ("limit", "wait", "sequence", "from", "last", "create") for value in _NUMBERS),
    *(
        (key, names)
        for key in ("topics", "filters", "after")
        for names in [[], ["t"], ["t", "a/#"], [1], None]
    ),
    *(("publication", text) for text in _TEXTS),
    *(("publications", texts) for texts in [[], ["a", "b"], ["1"], *([text] for text in _TEXTS)]),
    *(("kind", kind) for kind in ["", None, *(kind.word for kind in Kind)]),
    *(("ids", ids) for ids in [[], [1], [3, 2], [0], ["1"], None]),
    *((key, name) for key in ("filter", "after") for name in _NAMES),
    ("encoding", "base64"),
    ("encoding", None),
]

_REQUESTS: list[Request] = [
    Login(),
    Subscribe("c", "a/+/#"),
    Unsubscribe("c", "t"),
    Put("t", "ștafetă: a b".encode()),
    Get("c", "t", 7),
    Ack("c", "t", [1, 22, 333]),
]
_MORE: list[Request] = [
    Put("t", b"-12.50", Kind.SHORT_REAL, "c", 9_999_999),
    Put("t", b"\xff\0", Kind.BYTES, "c", -3),
    Put("t", b'{"a": [1, null]}', Kind.JSON),
    PutSequence("t", [b"1", b"-0"], Kind.INT, "c", 4),
    Get("c", "t", 7, 5, 0.25),
    Ack("c", "t", None, 5),
    Topics("a/#", "a/b", 10),
    Wait("c", ("t", "a/#"), 0.25),
    Watch("c", (), 0.0),
    Read("t", 5, 0, 10),
    Read("t", None, 10, 1000),
    Stats(),
    Clients("c", 10),
    Subscriptions(("c", "t"), 10, "t"),
]

TARGETS = [
    Target("zeromq.text", text_requests, [_as_text(request) for request in _REQUESTS]),
    Target(
        "zeromq.json",
        json_requests,
        [
            *(_as_json(request) for request in [*_REQUESTS, *_MORE]),
            b'{"type":"PUT","topic":"t","client_id":12,"body":{"publication":{"a":[1,2.5,null,true]}}}',
            b'{"type":"PUT","topic":"t","client_id":"c","body":{"sequence":1,"publications":["a","b"]}}',
            b'{"type":"PUT","topic":"t","client_id":"c","body":{"sequence":1,"kind":"int","publications":[[]]}}',
        ],
    ),
    Target("zeromq.get", get_replies, [b"\x40\x02one\n:/\nthree:\n\xff\n\x01", b"\xff\xff" + b"\n" * 30]),
    Target(
        "zeromq.client",
        client_replies,
        [
            b'{"type":"ACK"}',
            b'{"type":"ACK","body":{"last_publication_id":3}}',
            b'{"type":"ACK","body":{"first_publication_id":1,"current_publication_id":2}}',
            b'{"type":"ACK","body":{"last_publication_id":Infinity}}',
            b'{"type":"NAK","body":{"error_message":"no","expected":3,"retry":true}}',
            b'{"type":"ACK","body":{"topics":[{"name":"a","first":1,"next":2,"subscriptions":3}]}}',
            b'{"type":"ACK","body":{"publications":[{"id":1,"text":"/w==","encoding":"base64","kind":"bytes","time":"2026-01-02T03:04:05.678901+00:00","topic":"a"}]}}',
            b'{"type":"ACK","body":{"publications":' + b"[" * 2000,
        ],
    ),
]
