"""What can be put, and what it is then."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import (
    EVERY_COLUMN,
    Peer,
    Place,
    column,
    numbered,
    rows_of,
    works,
)

TEXTS = ["plain", "", "ștafetă 🙂", "x" * 20_000, "12"]
MANY = 1_000_001
KINDS = {"int": b"-12", "short_real": b"21.50", "float": b"1234.4321", "string": b"text"} | {
    "json": b'{"a": [1]}',
    "bytes": b"\xff\x00",
}


def test_a_batch_is_answered_by_its_topic_its_first_offset_and_its_rows(peer: Peer, topic: str) -> None:
    assert peer.put_texts(topic, numbered(3)) == {"topic": topic, "offset": 1, "rows": 3}
    assert peer.put_texts({"topic": topic}, numbered(2)) == {"topic": topic, "offset": 4, "rows": 2}


def test_the_broker_sets_what_only_it_knows(peer: Peer, topic: str) -> None:
    begin = datetime.now(UTC)
    peer.put_texts(topic, ["one", "two"])
    found = peer.get(topic)
    assert column(found, "topic") == [topic] * 2
    assert column(found, "offset") == [1, 2]
    assert column(found, "producer") == ["", ""]
    assert column(found, "kind") == ["string"] * 2
    assert column(found, "payload") == [b"one", b"two"]
    assert all("127.0.0.1" in source for source in column(found, "source"))
    assert all(begin - timedelta(seconds=1) <= at <= datetime.now(UTC) for at in column(found, "timestamp"))


@pytest.mark.parametrize("type_", [pa.utf8(), pa.large_utf8(), pa.string_view()], ids=str)
def test_text_of_any_width_is_a_string_unless_its_kind_is_said(
    peer: Peer, topic: str, type_: pa.DataType
) -> None:
    peer.put(topic, rows_of(TEXTS, type_))
    found = peer.get(topic)
    assert column(found, "payload") == [text.encode() for text in TEXTS]
    assert set(column(found, "kind")) == {"string"}


def test_binary_of_a_fixed_width_is_bytes_too(peer: Peer, topic: str) -> None:
    payloads = [b"\xff\x00\xfe\x01", b"1234", b"\0\0\0\0"]
    peer.put(topic, rows_of(payloads, pa.binary(4)))
    assert column(peer.get(topic), "payload") == payloads


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_binary_of_any_width_is_bytes_unless_its_kind_is_said(
    peer: Peer, topic: str, type_: pa.DataType
) -> None:
    payloads = [b"\xff\x00\xfe", b"", *(text.encode() for text in TEXTS)]
    peer.put(topic, rows_of(payloads, type_))
    found = peer.get(topic)
    assert column(found, "payload") == payloads
    assert set(column(found, "kind")) == {"bytes"}


@pytest.mark.parametrize(
    "type_",
    [
        pa.utf8(),
        pa.large_utf8(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.utf8()),
        pa.dictionary(pa.int32(), pa.large_utf8()),
        pa.dictionary(pa.uint16(), pa.utf8()),
    ],
    ids=str,
)
def test_every_kind_may_be_said_in_one_batch(peer: Peer, topic: str, type_: Any) -> None:
    words = pa.array(list(KINDS), pa.utf8())
    kinds: Any = words.dictionary_encode() if isinstance(type_, pa.DictionaryType) else words
    peer.put(topic, rows_of(KINDS.values(), pa.binary(), kind=kinds.cast(type_)))
    found = peer.get(topic)
    assert column(found, "kind") == list(KINDS)
    assert column(found, "payload") == list(KINDS.values())


@pytest.mark.parametrize("type_", [pa.utf8(), pa.large_binary(), pa.string_view()], ids=str)
def test_numbers_may_be_text_or_binary(peer: Peer, topic: str, type_: pa.DataType) -> None:
    digits = ["0", "-12", "9" * 1000, "007"]
    payloads = digits if type_ != pa.large_binary() else [text.encode() for text in digits]
    peer.put(topic, rows_of(payloads, type_, kind=pa.array(["int"] * 4)))
    assert column(peer.get(topic), "payload") == [text.encode() for text in digits]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Bucharest"])
def test_a_time_in_any_unit_is_the_same_instant(peer: Peer, topic: str, unit: str, zone: str | None) -> None:
    told = [datetime(2020, 2, 29, 12, 30, second, tzinfo=UTC) for second in (1, 0, 2)]
    local = [at.replace(tzinfo=None) if zone is None else at.astimezone(ZoneInfo(zone)) for at in told]
    times: Any = pa.array(local, pa.timestamp(unit, zone))  # type: ignore[call-overload]
    peer.put(topic, rows_of(numbered(3), timestamp=times))
    assert column(peer.get(topic), "timestamp") == told


def test_a_time_may_lie_a_little_ahead_and_far_back(peer: Peer, topic: str) -> None:
    told = [datetime.now(UTC) + timedelta(minutes=50), datetime(1970, 1, 2, tzinfo=UTC)]
    peer.put(topic, rows_of(numbered(2), timestamp=pa.array(told, pa.timestamp("us", "UTC"))))
    assert column(peer.get(topic), "timestamp") == told


def test_slices_and_views_of_larger_arrays_are_put_as_what_they_show(peer: Peer, topic: str) -> None:
    payloads = [f"{number}".encode() * 5 for number in range(1000)]
    kinds = pa.array(["bytes", "string"] * 500).dictionary_encode()
    for type_ in (pa.binary(), pa.large_binary(), pa.binary_view()):
        whole = rows_of(payloads, type_, kind=kinds)
        peer.put(topic, whole.slice(313, 7))
        found = peer.get({"topic": topic, "from": peer.topics(topic)[0]["next"] - 7})
        assert column(found, "payload") == payloads[313:320]
        assert column(found, "kind") == ["string", "bytes"] * 3 + ["string"]


def test_what_was_read_can_be_put_again(peer: Peer, topic: str, name: str) -> None:
    times = pa.array([datetime(2021, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC"))
    peer.put({"topic": topic, "producer": name}, rows_of(numbered(3), timestamp=times), {"sequence": 1})
    peer.put_texts(topic, ["by nobody"])
    (read,) = peer.batches({"topic": topic, "columns": EVERY_COLUMN})
    assert column(read, "counter") == [1, 2, 3, None]
    assert peer.put(topic, read) == {"topic": topic, "offset": 5, "rows": 4}
    again = peer.get({"topic": topic, "from": 5, "columns": EVERY_COLUMN})
    for same in ("topic", "timestamp", "kind", "payload"):
        assert column(again, same) == column(read, same)
    assert column(again, "offset") == [5, 6, 7, 8]
    assert column(again, "producer") == [""] * 4
    assert column(again, "counter") == [None] * 4
    assert column(again, "position")[0] > column(read, "position")[-1]


def test_the_topic_may_stand_in_the_metadata_of_each_batch(peer: Peer, topic: str) -> None:
    batch = rows_of(["x"])
    with peer.putting({}, batch.schema) as stream:
        for number in (1, 2, 1):
            stream.send(batch, {"topic": f"{topic}/{number}"})
        offsets = [(answer["topic"], answer["offset"]) for answer in stream.answers(3)]
    assert offsets == [(f"{topic}/1", 1), (f"{topic}/2", 1), (f"{topic}/1", 2)]
    with peer.putting(f"{topic}/1", batch.schema) as stream:
        stream.send(batch, {"topic": f"{topic}/2"})
        stream.send(batch)
        offsets = [(answer["topic"], answer["offset"]) for answer in stream.answers(2)]
    assert offsets == [(f"{topic}/2", 2), (f"{topic}/1", 3)]


def test_an_empty_batch_is_answered_and_stores_nothing(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, ["first"])
    batch = rows_of([])
    with peer.putting(topic, batch.schema) as stream:
        stream.send(batch)
        stream.send(rows_of(["second"]))
        empty, full = stream.answers(2)
    assert (empty["topic"], empty["rows"]) == (topic, 0)
    assert full == {"topic": topic, "offset": 2, "rows": 1}
    assert peer.texts(topic) == ["first", "second"]


def test_a_stream_without_batches_stores_nothing(peer: Peer, topic: str) -> None:
    with peer.putting(topic, rows_of([]).schema):
        pass
    assert peer.rows(topic) == 0


def test_a_thousand_batches_may_be_on_their_way(peer: Peer, topic: str) -> None:
    with peer.putting(topic, rows_of([]).schema) as stream:
        for number in range(1000):
            stream.send(rows_of([f"{number}", "and one more"]))
        answers = stream.answers(1000)
    assert [answer["offset"] for answer in answers] == list(range(1, 2001, 2))
    assert peer.texts(topic)[::2] == [f"{number}" for number in range(1000)]


def test_what_was_sent_before_the_stream_was_left_is_stored(peer: Peer, topic: str) -> None:
    with peer.putting(topic, rows_of([]).schema) as stream:
        for number in range(100):
            stream.send(rows_of([f"{number}"]))
        stream.done()
        assert len(stream.answers(100)) == 100
    assert peer.texts(topic) == [f"{number}" for number in range(100)]


def test_a_million_rows_may_be_one_batch(flying: BrokerProcess, peer: Peer, topic: str) -> None:
    payloads: Any = pa.array(range(MANY)).cast(pa.utf8())
    batch = pa.RecordBatch.from_arrays([payloads], names=["payload"])
    assert peer.put(topic, batch) == {"topic": topic, "offset": 1, "rows": MANY}
    found = peer.get({"topic": topic, "columns": ["payload"]}).column("payload")
    assert found.cast(pa.utf8()).combine_chunks().equals(payloads)
    assert len(peer.info(topic).endpoints) == 2  # one for each million
    assert works(flying)


def test_several_producers_put_side_by_side(place: Place, peer: Peer, topic: str) -> None:
    peers = [Peer(place) for _ in range(4)]
    streams = [one.putting(topic, rows_of([]).schema) for one in peers]
    for number in range(50):
        for at, stream in enumerate(streams):
            stream.send(rows_of([f"{at} {number} {row}" for row in range(3)]))
    offsets: list[int] = []
    for stream in streams:
        with stream:
            offsets += [answer["offset"] for answer in stream.answers(50)]
    assert sorted(offsets) == list(range(1, 601, 3))
    found = peer.texts(topic)
    for at in range(4):
        mine = [text for text in found if text.startswith(f"{at} ")]
        assert mine == [f"{at} {number} {row}" for number in range(50) for row in range(3)]
    for one in peers:
        one.close()
