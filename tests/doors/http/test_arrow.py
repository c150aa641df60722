"""Arrow streams over HTTP, in and out, and those that say more than they are."""

import asyncio
import http.client
import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from stafeta.broker import Broker
from stafeta.doors.http import arrow, arrow_bounds, incoming
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import StafetaError
from stafeta.testing.memory import MemoryStore
from tests.doors.http.peers import Answer, Peer, Place, messages_of
from tests.doors.opened import http as opened
from tests.waiting import PATIENCE, comes_true

ARROW = "application/vnd.apache.arrow.stream"
MOST = 16 << 20
Columns = Mapping[str, Any]


def stream(*tables: Columns, compression: Any = None, batch: int | None = None, **options: Any) -> bytes:
    """An Arrow stream of tables that have the same columns."""
    made = [pa.table(dict(columns)) for columns in tables]
    sink = pa.BufferOutputStream()
    options_ = pa.ipc.IpcWriteOptions(compression=compression, **options)
    with pa.ipc.new_stream(sink, made[0].schema, options=options_) as writer:
        for table in made:
            writer.write_table(table, batch)
    return sink.getvalue().to_pybytes()


def put(peer: Peer, topic: str, body: bytes, key: str = "", **parameters: object) -> Answer:
    headers = {"Content-Type": ARROW, **({"Idempotency-Key": key} if key else {})}
    return peer.ask("POST", messages_of(topic), body, headers, **parameters)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_stream_is_messages(peer: Peer, topic: str, compression: str | None) -> None:
    times = pa.array([1_700_000_000_000_000, 1_700_000_000_000_001], pa.timestamp("us", tz="UTC"))
    body = stream(
        {"payload": ["1", "{}"], "kind": ["int", "json"], "timestamp": times},
        {"payload": ["ș", "x" * 5000], "kind": ["string", "string"], "timestamp": times},
        compression=compression,
    )
    assert put(peer, topic, body).json == {"topic": topic, "first": 1, "last": 4, "count": 4}
    found = peer.get(messages_of(topic))["messages"]
    assert [(one["kind"], one["payload"][:3]) for one in found] == [
        ("int", "1"),
        ("json", "{}"),
        ("string", "ș"),
        ("string", "xxx"),
    ]
    assert found[1]["time"] == "2023-11-14T22:13:20.000001Z"
    assert found[0]["source"].startswith("127.0.0.1:")


def test_what_was_read_is_published_again_as_it_is(peer: Peer, topic: str) -> None:
    peer.publish(topic, "a", "b")
    read = peer.ask("GET", messages_of(topic), None, {"Accept": ARROW}).body
    assert put(peer, topic, read).json["first"] == 3
    table = pa.ipc.open_stream(peer.ask("GET", messages_of(topic), None, {"Accept": ARROW}).body).read_all()
    assert table["payload"].to_pylist() == [b"a", b"b"] * 2
    assert table["timestamp"].to_pylist()[:2] == table["timestamp"].to_pylist()[2:]
    assert put(peer, f"{topic}/other", read).status == 400  # the column topic says another


def test_a_stream_with_a_key_is_stored_once(peer: Peer, topic: str) -> None:
    payloads = [str(number) for number in range(5000)]
    body = stream({"payload": payloads}, batch=1000)
    first, again = put(peer, topic, body, "k"), put(peer, topic, body, "k")
    assert (first.status, again.status) == (201, 200)
    assert first.json == {"topic": topic, "first": 1, "last": 5000, "count": 5000, "repeated": False}
    assert again.json == {**first.json, "repeated": True}
    # The same messages are the same, however they come.
    assert put(peer, topic, stream({"payload": payloads}, compression="lz4"), "k").json == again.json
    lines = [{"payload": text} for text in payloads]
    as_json = peer.ask("POST", messages_of(topic), lines, {"Idempotency-Key": "k"}, batch="true")
    assert as_json.json == again.json
    assert put(peer, topic, stream({"payload": payloads[1:]}), "k").status == 422
    assert peer.texts(topic, last=2) == ["4998", "4999"]


def test_a_stream_may_say_that_the_topic_keeps_its_last(peer: Peer, topic: str) -> None:
    name = f"let-go/{topic}"
    assert put(peer, name, stream({"payload": ["a", "b"]}), keep_last="true").status == 201
    assert peer.get("/api/topics", filter=name)["topics"][0]["keeps_last"]


ONE: Columns = {"payload": ["a"]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no stream",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        stream(ONE)[:-30],
        stream(ONE) + stream(ONE),
        stream({"payload": []}),
        stream({"payload": [None]}),
        stream({"payload": [1]}),
        stream({"payload": ["a"], "kind": ["int"]}),
        stream({"payload": ["a"], "kind": ["none"]}),
        stream({"payload": ["a"], "colour": ["red"]}),
        stream({"kind": ["int"]}),
        stream({"payload": ["a"], "timestamp": pa.array([1 << 60], pa.timestamp("us"))}),
    ],
)
def test_a_stream_that_is_none_is_refused_with_a_sentence(peer: Peer, topic: str, body: bytes) -> None:
    answer = put(peer, topic, body)
    assert answer.status == 400, answer
    assert answer.json["detail"].endswith(".")
    assert peer.ask("GET", messages_of(topic)).status == 404


def test_a_kind_is_each_message_own(peer: Peer, topic: str) -> None:
    assert put(peer, topic, stream(ONE), kind="int").status == 400


# --- bounds


def refused(body: bytes, most: int = MOST) -> StafetaError:
    with pytest.raises(StafetaError) as caught:
        arrow.taken(body, "t", 1 << 50, most)
    return caught.value


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_would_be_large_without_compression_is_refused(compression: str) -> None:
    body = stream({"payload": [bytes(MOST)]}, compression=compression)
    assert len(body) < 1 << 18
    assert "http.max_body" in str(refused(body))


def test_no_room_is_made_for_a_size_that_lies() -> None:
    body = stream({"payload": ["x" * 10_000]}, compression="zstd")
    before, _, after = body.rpartition(struct.pack("<q", 10_000))
    assert len(before) > len(after)
    for size in (0, 5, 9_999, 10_001, MOST, 1 << 30, 1 << 62, -2, -(1 << 63)):
        refused(before + struct.pack("<q", size) + after)
    assert (pa.default_memory_pool().max_memory() or 0) < 1 << 30


def test_a_body_at_the_limit_is_taken() -> None:
    body = stream({"payload": ["x" * 10_000]}, compression="zstd")
    size = 10_000 + 8  # and where the message begins and ends
    assert arrow.taken(body, "t", 1 << 50, size).count == 1
    assert "http.max_body" in str(refused(body, size - 1))


def test_messages_that_take_no_room_are_counted() -> None:
    many = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(0), incoming.MAX_MESSAGES + 1, [None, pa.py_buffer(b"")]
    )
    error = refused(stream({"payload": many}))
    assert isinstance(error, HttpProblem)
    assert error.status == 413
    assert str(incoming.MAX_MESSAGES) in str(error)
    assert arrow.taken(stream({"payload": many.slice(1)}), "t", 1 << 50, MOST).count == incoming.MAX_MESSAGES


def test_dictionaries_and_views_count_as_what_they_stand_for() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), pa.array([b"x" * 1000]))
    assert "http.max_body" in str(refused(stream({"payload": coded})))
    view = struct.pack("<i4sii", 1000, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * 50_000), pa.py_buffer(b"x" * 1000)]
    views = pa.Array.from_buffers(pa.binary_view(), 50_000, buffers)
    assert "http.max_body" in str(refused(stream({"payload": views})))
    large = pa.DictionaryArray.from_arrays(
        pa.array([0]), pa.array([b"x" * (arrow_bounds.MAX_DICTIONARIES + 1)])
    )
    assert "dictionaries" in str(refused(stream({"payload": large})))


def test_a_dictionary_that_grows_and_too_many_batches_are_refused() -> None:
    grown = pa.array(["a", "b"]).dictionary_encode()
    body = stream(
        {"payload": grown.slice(0, 1).dictionary_decode().dictionary_encode()},
        {"payload": pa.DictionaryArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a", "b"]))},
        emit_dictionary_deltas=True,
    )
    assert "grows" in str(refused(body))
    tiny = stream({"payload": ["a"] * (arrow_bounds.MAX_BATCHES + 1)}, batch=1)
    assert "batches" in str(refused(tiny))
    wide = pa.field("payload", pa.binary(), metadata={"x": "y" * arrow_bounds.MAX_METADATA})
    assert "describes itself" in str(refused(_with(pa.schema([wide]))))


def _with(schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([b"a"], pa.binary())], schema=schema))
    return sink.getvalue().to_pybytes()


def test_half_a_body_stores_nothing() -> None:
    """The client goes in the middle of a stream."""

    async def life() -> None:
        broker = await Broker.open(MemoryStore())
        door, place = await opened(broker)
        connection = await asyncio.to_thread(_half, place, stream({"payload": ["x" * 100_000]}))
        await comes_true(lambda: door.state.tasks)
        connection.close()
        await comes_true(lambda: not door.state.tasks and not door.state.connections)
        assert (list(broker.topics), door.held) == ([], 0)
        await door.close()
        await broker.close()

    asyncio.run(life())


def _half(place: Place, body: bytes) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(*place, timeout=PATIENCE)
    connection.putrequest("POST", messages_of("t"))
    connection.putheader("Content-Type", ARROW)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[: len(body) // 2])
    return connection
