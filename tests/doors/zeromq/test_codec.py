"""What holds for the two dialects whatever is said in them: replies can be read back, and no bytes do harm."""

import json
from base64 import b64decode
from typing import Any, get_args

import psutil
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.doors.zeromq.codec import BadRequest, FetchResult, Get, PutSequence, Request
from stafeta.doors.zeromq.json_dialect import JsonDialect
from stafeta.doors.zeromq.text_dialect import TextDialect
from stafeta.errors import InvalidMessage
from stafeta.message import Kind, Row, RowBatch
from tests.doors.zeromq.peers import read_get

TEXT = TextDialect()
JSON = JsonDialect()
PLENTY = 1 << 30

payloads = st.lists(st.text() | st.text(":/"), max_size=20)
sizes = st.integers(0, 300)


def delivery(messages: list[bytes], *, by_position: bool = False) -> FetchResult:
    """Messages from offset 5 and position 70 on, in batches of three."""
    rows: list[Row] = [
        (70 + 2 * at, 1_700_000_000_000_000 + at, "p", "", int(Kind.STRING), None, message)
        for at, message in enumerate(messages)
    ]
    batches = [RowBatch("t", 5 + at, rows[at : at + 3]) for at in range(0, len(rows), 3)]
    return FetchResult(batches, by_position)


# --- GET replies


@given(payloads)
@example(["", ":", "::", ":/", "/", "a:", "/b", ":/:/"])
def test_a_text_reply_reads_back_as_the_messages(texts: list[str]) -> None:
    reply = TEXT.messages(Get("c", "t"), delivery([text.encode() for text in texts]), PLENTY)
    assert read_get(reply.decode()) == list(enumerate(texts, 5))
    by_position = TEXT.messages(
        Get("c", "+"), delivery([text.encode() for text in texts], by_position=True), PLENTY
    )
    assert read_get(by_position.decode()) == [(70 + 2 * at, text) for at, text in enumerate(texts)]


@given(payloads, sizes)
def test_a_text_reply_is_the_first_messages_and_no_longer_than_it_may(texts: list[str], size: int) -> None:
    reply = TEXT.messages(Get("c", "t"), delivery([text.encode() for text in texts]), size)
    messages = read_get(reply.decode())
    assert messages == list(enumerate(texts, 5))[: len(messages)]
    assert bool(messages) == bool(texts)
    assert len(reply) <= size or len(messages) <= 1
    if len(messages) < len(texts):
        one_more = TEXT.messages(
            Get("c", "t"), delivery([text.encode() for text in texts[: len(messages) + 1]]), PLENTY
        )
        assert len(one_more) > size


@given(st.lists(st.binary(), max_size=10))
def test_bytes_that_are_no_text_can_still_be_read(messages: list[bytes]) -> None:
    reply = TEXT.messages(Get("c", "t"), delivery(messages), PLENTY)
    shown = [message.decode(errors="backslashreplace") for message in messages]
    assert read_get(reply.decode()) == list(enumerate(shown, 5))


@given(st.lists(st.binary() | st.text().map(str.encode), max_size=20), st.integers(1, 20), sizes)
def test_a_json_reply_is_the_first_messages_and_no_longer_than_it_may(
    messages: list[bytes], limit: int, size: int
) -> None:
    reply = JSON.messages(Get("c", "t", 4, limit), delivery(messages), size)
    told = json.loads(reply)
    found = told["body"]["publications"]
    assert told["type"] == "ACK"
    assert [(one["id"], _data(one)) for one in found] == list(enumerate(messages, 5))[: len(found)]
    assert min(len(messages), 1) <= len(found) <= limit
    assert len(reply) <= size or len(found) <= 1


@given(st.binary() | st.text().map(str.encode))
def test_a_json_reply_of_one_message_reads_back(message: bytes) -> None:
    body = json.loads(JSON.messages(Get("c", "t", 4, 1, single=True), delivery([message]), 0))["body"]
    assert body["publication_id"] == 5
    assert _data({"text": body["publication"], **body}) == message


def _data(told: dict[str, Any]) -> bytes:
    text: str = told["text"]
    return b64decode(text) if told.get("encoding") == "base64" else text.encode()


# --- requests

words = st.sampled_from(["LOGIN", "SUB", "UNSUB", "PUT", "GET", "ACK", "1,2", "topic", ""]) | st.text()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
details = st.dictionaries(
    st.sampled_from(
        [
            "counter",
            "publication",
            "publications",
            "sequence",
            "kind",
            "encoding",
            "last_publication_id",
            "limit",
            "wait",
            "ids",
            "filter",
            "after",
        ]
    ),
    values | st.integers(-2, 5) | st.sampled_from(["base64", "json", "int", "bytes", "QQ==", "1"]),
    max_size=5,
)
objects = st.fixed_dictionaries(
    {"type": st.sampled_from(["PUT", "GET", "SUB", "UNSUB", "ACK", "REQUEST_ID", "TOPICS"]) | values},
    optional={"topic": values | st.text(), "client_id": values | st.text(), "body": details | values},
)


@given(st.binary() | st.lists(words, max_size=6).map(lambda parts: " ".join(parts).encode()))
@example(b"ACK a t " + b"9" * 5000)
def test_whatever_is_said_in_the_text_dialect_is_a_request_or_a_bad_one(body: bytes) -> None:
    _is_request_or_refused(TEXT, body)


@given(
    st.binary()
    | st.binary().map(lambda rest: b"{" + rest)
    | (values | objects).map(lambda value: json.dumps(value).encode())
)
@example(b"[1]")
@example(b'{"type":' + b"[" * 1000 + b"]" * 1000 + b"}")
@example(b"{" * 100_000)
@example(b'{"type":"PUT","topic":"t","body":{"publication":' + b"[" * 900 + b"]" * 900 + b"}}")
@example(b'{"type":"PUT","topic":"t","body":{"publication":"","kind":' + b"[" * 900 + b"]" * 900 + b"}}")
@example(b'{"type":"PUT","topic":"t","body":{"kind":"json","publication":"' + b"[" * 100_000 + b'"}}')
@example(b'{"type":"PUT","topic":"t","body":{"kind":"json","publication":"' + b"9" * 100_000 + b'"}}')
@example(b'{"type":"GET","topic":"t","client_id":"c","body":{"last_publication_id":0,"wait":1e999}}')
def test_whatever_is_said_in_the_json_dialect_is_a_request_or_a_bad_one(body: bytes) -> None:
    _is_request_or_refused(JSON, body)


def _is_request_or_refused(dialect: TextDialect | JsonDialect, body: bytes) -> None:
    try:
        request = dialect.read(body)
    except (BadRequest, InvalidMessage) as error:
        reply = dialect.error(None, error)
        assert len(reply) < 1000
        reply.decode()
    else:
        assert isinstance(request, get_args(Request))


@given(st.text() | st.text("\ud800\udfff\x00\n"))
def test_an_error_can_be_sent_whatever_it_quotes(quoted: str) -> None:
    for dialect in (TEXT, JSON):
        dialect.error(None, BadRequest(f"{quoted} is wrong.")).decode()


def test_small_values_of_json_take_little_memory() -> None:
    body = {"kind": "json", "sequence": 1, "publications": [1] * 30_000}
    request = json.dumps({"type": "PUT", "topic": "t", "client_id": "c", "body": body}).encode()
    process = psutil.Process()
    before = process.memory_info().rss
    found = JSON.read(request)
    assert process.memory_info().rss - before < 40 << 20, "that is a kilobyte each"
    assert isinstance(found, PutSequence)
    assert len(found.payloads) == 30_000
