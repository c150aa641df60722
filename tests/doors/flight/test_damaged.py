"""Arrow data and names that only somebody malicious, or something broken, would send."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, numbered, refused, rows_of, works
from tests.waiting import PATIENCE

DATA = pa.py_buffer(b"hello world, this is a payload of a view")
LONG = "two words " * 20_000  # more than fits into the head of a reply


@pytest.fixture(autouse=True)
def well(flying: BrokerProcess) -> Iterator[None]:
    yield
    assert works(flying)


def offsets(type_: pa.DataType, *numbers: int) -> Any:
    form = f"<{len(numbers)}{'q' if 'large' in str(type_) else 'i'}"
    return pa.Array.from_buffers(
        type_, len(numbers) - 1, [None, pa.py_buffer(struct.pack(form, *numbers)), DATA]
    )


def view(type_: pa.DataType, length: int, buffer: int, offset: int) -> Any:
    views = pa.py_buffer(struct.pack("<i4sii", length, b"hell", buffer, offset))
    return pa.Array.from_buffers(type_, 1, [None, views, DATA])


def dictionary(*indices: int) -> Any:
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int8()), pa.array(["string", "bytes"]), safe=False
    )


DAMAGED = {
    "decreasing": lambda: offsets(pa.binary(), 0, 5, 3),
    "decreasing-large": lambda: offsets(pa.large_binary(), 0, 5, 3),
    "decreasing-text": lambda: offsets(pa.utf8(), 0, 5, 3),
    "half-a-character": lambda: pa.array([b"\xc8", b"\x99"]).view(pa.utf8()),
    "half-a-character-large": lambda: pa.array([b"\xc8"], pa.large_binary()).view(pa.large_utf8()),
    "surrogate": lambda: pa.array([b"\xed\xa0\x80"]).view(pa.utf8()),
    "view-of-no-buffer": lambda: view(pa.binary_view(), 20, 5, 0),
    "view-beyond": lambda: view(pa.binary_view(), 2000, 0, 0),
    "view-before": lambda: view(pa.string_view(), 20, 0, -5),
    "view-of-other-bytes": lambda: view(pa.binary_view(), 20, 0, 6),
    "struct": lambda: pa.array([{"a": 1}]),
    "uuid": lambda: pa.array([b"x" * 16], pa.uuid()),
    "run-ends": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"])),
    "list-view": lambda: pa.array([["a"]], pa.list_view(pa.utf8())),
}


@pytest.mark.parametrize("make", DAMAGED.values(), ids=DAMAGED)
def test_payloads_that_are_damaged_are_refused(peer: Peer, topic: str, make: Callable[[], Any]) -> None:
    batch = pa.RecordBatch.from_arrays([make()], names=["payload"])
    with refused():
        peer.put(topic, batch)
    assert peer.rows(topic) == 0


@pytest.mark.parametrize("index", [2, 100, -1, -100])
def test_a_dictionary_s_index_that_leads_nowhere_is_refused(peer: Peer, topic: str, index: int) -> None:
    with refused():
        peer.put(topic, rows_of(["a", "b"], kind=dictionary(0, index)))
    with refused():
        peer.put(topic, pa.RecordBatch.from_arrays([dictionary(0, index)], names=["payload"]))
    assert peer.rows(topic) == 0


@pytest.mark.parametrize("column", ["offset", "position", "producer", "source", "counter"])
def test_what_is_set_anew_is_not_looked_at(peer: Peer, topic: str, column: str) -> None:
    nulls: dict[str, Any] = {column: pa.array([None, None], pa.int64())}
    words: dict[str, Any] = {column: pa.array(["anything"])}
    peer.put(topic, rows_of(["a", "b"], **nulls))
    peer.put(topic, rows_of(["c"], **words))
    assert peer.texts(topic) == ["a", "b", "c"]


def test_a_null_without_a_value_is_seen_in_a_slice_too(peer: Peer, topic: str) -> None:
    whole = pa.RecordBatch.from_arrays([pa.array(["a", None, "b", "c"])], names=["payload"])
    with refused():
        peer.put(topic, whole.slice(1, 2))
    assert peer.put(topic, whole.slice(2))["rows"] == 2
    assert peer.texts(topic) == ["b", "c"]


def test_a_name_that_is_far_too_long_is_refused_in_a_short_sentence(peer: Peer, topic: str) -> None:
    odd: dict[str, Any] = {LONG: pa.array(["x"])}
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: peer.put_texts({"topic": LONG}, ["x"]),
        "put-path": lambda: peer.put_texts(LONG, ["x"]),
        "put-metadata": lambda: peer.put_texts(topic, ["x"], {"topic": LONG}),
        "put-producer": lambda: peer.put_texts({"topic": topic, "producer": LONG}, ["x"], {"sequence": 1}),
        "put-column": lambda: peer.put(topic, rows_of(["x"], **odd)),
        "put-topic-column": lambda: peer.put(topic, rows_of(["x"], topic=pa.array([LONG]))),
        "put-kind": lambda: peer.put(topic, rows_of(["x"], kind=pa.array([LONG]))),
        "put-payload": lambda: peer.put(topic, rows_of([LONG], kind=pa.array(["int"]))),
        "put-key": lambda: peer.put_texts({"topic": topic, LONG: 1}, ["x"]),
        "get": lambda: peer.get(LONG),
        "get-topic": lambda: peer.get({"topic": LONG}),
        "get-filter": lambda: peer.get({"filter": LONG}),
        "get-client": lambda: peer.get({"client": LONG, "filter": topic}),
        "get-column": lambda: peer.get({"topic": topic, "columns": [LONG]}),
        "get-from": lambda: peer.get({"topic": topic, "from": LONG}),
        "get-time": lambda: peer.get({"topic": topic, "from_time": LONG}),
        "info": lambda: peer.info(LONG),
        "info-filter": lambda: peer.info({"filter": LONG}),
        "action": lambda: peer.told(LONG, b"{}"),
        "subscribe-client": lambda: peer.subscribe(LONG, topic),
        "subscribe-filter": lambda: peer.subscribe("somebody", LONG),
        "subscribe-from": lambda: peer.subscribe("somebody", topic, **{"from": LONG}),
        "ack": lambda: peer.ack("nobody", LONG),
        "topics": lambda: peer.topics(LONG),
        "sequence": lambda: peer.act("sequence", producer=LONG, topic=topic),
        "sequence-topic": lambda: peer.act("sequence", producer="somebody", topic=LONG),
        "begin": lambda: peer.act("begin", producer=LONG),
        "commit-part": lambda: peer.act("commit", producer="nobody", counter=1, parts=[LONG]),
    }
    wrong = []
    peer.put_texts(topic, ["x"])
    for name, call in calls.items():
        try:
            with refused() as told:
                call()
            assert len(told.message) < 1000
        except (AssertionError, pytest.fail.Exception, pa.ArrowException) as error:  # all are told at once
            wrong.append(f"{name}: {type(error).__name__} {str(error)[:150]}")
    assert not wrong, "\n".join(wrong)
    assert peer.rows(topic) == 1


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_batches_may_come_compressed(peer: Peer, topic: str, codec: Literal["lz4", "zstd"]) -> None:
    batch = rows_of(numbered(1000))
    written = pa.ipc.IpcWriteOptions(compression=codec)
    options = flight.FlightCallOptions(timeout=PATIENCE, write_options=written)
    writer: flight.FlightStreamWriter
    answers: Any
    writer, answers = peer.client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema, options)
    writer.write_batch(batch)
    assert answers.read() is not None
    writer.close()
    assert peer.texts(topic) == numbered(1000)
