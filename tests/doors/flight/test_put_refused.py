"""What cannot be put is refused with a sentence, nothing of it is stored, and the broker is well."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Said, numbered, refused, rows_of, works

AHEAD = datetime.now(UTC) + timedelta(hours=2)
MICROSECONDS = pa.timestamp("us", "UTC")
AROUND = (
    1 << 64
) // 1_000_000 + 1_600_000_000  # seconds that, in microseconds and 64 bits, are those of 2020


class Bad(NamedTuple):
    name: str
    batch: pa.RecordBatch
    metadata: Said = b""


def texts(count: int = 3, **columns: Any) -> pa.RecordBatch:
    return rows_of(numbered(count), **columns)


def of_kind(kind: str, *payloads: bytes) -> pa.RecordBatch:
    return rows_of(payloads, pa.binary(), kind=pa.array([kind] * len(payloads)))


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def dictionary(indices: list[int], values: list[str | None]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values))


BAD = [
    Bad("no-payload", batch(kind=pa.array(["string"]))),
    Bad("no-columns", pa.RecordBatch.from_arrays([], names=[])),
    Bad("other-column", texts(colour=pa.array(["red"] * 3))),
    Bad("capital-column", texts(Kind=pa.array(["string"] * 3))),
    Bad("payload-twice", pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["payload", "payload"])),
    Bad("payload-numbers", batch(payload=pa.array([1, 2]))),
    Bad("payload-list", batch(payload=pa.array([["a"]]))),
    Bad("payload-dictionary-null", batch(payload=dictionary([0, 1], ["a", None]))),
    Bad("payload-nothing", batch(payload=pa.nulls(2))),
    Bad("payload-null", batch(payload=pa.array(["a", None]))),
    Bad("payload-null-binary", batch(payload=pa.array([None, b"a"]))),
    Bad("kind-null", texts(kind=pa.array(["string", None, "string"]))),
    Bad("kind-dictionary-null", texts(kind=pa.array(["string", None, "string"]).dictionary_encode())),
    Bad("kind-dictionary-value-null", texts(2, kind=dictionary([0, 1], ["string", None]))),
    Bad("kind-unknown", texts(kind=pa.array(["string", "text", "string"]))),
    Bad("kind-numbers", texts(kind=pa.array([3, 3, 3]))),
    Bad("kind-binary", texts(kind=pa.array([b"string"] * 3))),
    Bad("timestamp-null", texts(timestamp=pa.array([None, AHEAD, AHEAD], MICROSECONDS))),
    Bad("timestamp-ahead", texts(1, timestamp=pa.array([AHEAD], MICROSECONDS))),
    Bad("timestamp-one-ahead", texts(2, timestamp=pa.array([datetime(2020, 1, 1, tzinfo=UTC), AHEAD]))),
    Bad("timestamp-far-ahead", texts(1, timestamp=pa.array([1 << 62], pa.timestamp("s")))),
    Bad("timestamp-around-the-world", texts(1, timestamp=pa.array([AROUND], pa.timestamp("s")))),
    Bad("timestamp-around-in-ms", texts(1, timestamp=pa.array([AROUND * 1000], pa.timestamp("ms")))),
    Bad("timestamp-far-back", texts(1, timestamp=pa.array([-(1 << 62)], pa.timestamp("s")))),
    Bad("timestamp-text", texts(1, timestamp=pa.array(["2020-01-01T00:00:00Z"]))),
    Bad("timestamp-number", texts(1, timestamp=pa.array([1]))),
    Bad("topic-other", texts(1, topic=pa.array(["somewhere/else"]))),
    Bad("topic-null", texts(1, topic=pa.array([None], pa.utf8()))),
    Bad("no-int", of_kind("int", b"1", b"1.5")),
    Bad("int-with-space", of_kind("int", b" 1")),
    Bad("int-with-line-end", of_kind("int", b"1\n")),
    Bad("int-empty", of_kind("int", b"")),
    Bad("int-too-long", of_kind("int", b"9" * 1001)),
    Bad("int-other-digits", of_kind("int", "१२".encode())),
    Bad("no-short-real", of_kind("short_real", b"1.00", b"1.5")),
    Bad("no-float", of_kind("float", b"1e5")),
    Bad("no-float-nan", of_kind("float", b"nan")),
    Bad("no-string", of_kind("string", b"good", b"\xff")),
    Bad("no-json", of_kind("json", b"{}", b"{")),
    Bad("no-json-nan", of_kind("json", b"NaN")),
    Bad("no-json-nested", of_kind("json", b"[" * 100_000)),
    Bad("no-text-in-text", batch(payload=pa.array([b"\xff"]).view(pa.utf8()))),
    Bad("too-large", rows_of([b"x" * ((8 << 20) + 1)], pa.binary())),
    Bad("one-too-large", rows_of([b"x", b"x" * ((8 << 20) + 1), b"x"], pa.large_binary())),
    Bad("metadata-no-json", texts(), b"{"),
    Bad("metadata-no-object", texts(), b"[1]"),
    Bad("metadata-no-text", texts(), b"\xff\xfe"),
    Bad("metadata-unknown-key", texts(), {"sequnce": 1}),
    Bad("metadata-topic-number", texts(), {"topic": 5}),
    Bad("metadata-topic-wildcard", texts(), {"topic": "a/+"}),
    Bad("sequence-without-producer", texts(), {"sequence": 1}),
]

LIKE_GOOD = [bad for bad in BAD if bad.batch.schema == texts().schema]


@pytest.fixture(autouse=True)
def well(flying: BrokerProcess) -> Iterator[None]:
    yield
    assert works(flying)


@pytest.mark.parametrize("bad", BAD, ids=[bad.name for bad in BAD])
def test_a_batch_that_is_wrong_is_refused_whole(peer: Peer, topic: str, bad: Bad) -> None:
    with refused():
        peer.put(topic, bad.batch, bad.metadata)
    assert peer.rows(topic) == 0


@pytest.mark.parametrize("bad", LIKE_GOOD, ids=[bad.name for bad in LIKE_GOOD])
def test_what_came_before_a_batch_that_is_wrong_is_stored_and_nothing_after_it(
    peer: Peer, topic: str, bad: Bad
) -> None:
    with refused(), peer.putting(topic, bad.batch.schema) as stream:
        stream.send(texts(2))
        assert stream.answer() == {"topic": topic, "offset": 1, "rows": 2}
        stream.send(bad.batch, bad.metadata)
        stream.send(texts(1))
        stream.answer()
    assert peer.texts(topic) == numbered(2)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a\n",
        "\x00",
        "x" * 256,
        "ș" * 128,
        "/".join("x" * 65),
        "+",
        "a/+",
        "a/#",
        "*",
        "a#b",
        "a/x+",
    ],
    ids=ascii,
)
def test_a_topic_that_cannot_be_is_refused(peer: Peer, name: str) -> None:
    with refused() as told:
        peer.put_texts({"topic": name}, ["x"])
    assert told.error == "InvalidName"
    with refused():
        peer.put_texts(name, ["x"])


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"t"',
        b"\xff",
        b"{}",
        {"topik": "t"},
        {"topic": "t", "from": 1},
        {"topic": 1},
        {"topic": None},
        {"topic": ["t"]},
        {"topic": "t", "producer": 1},
        {"topic": "t", "producer": "two words"},
        {"topic": "t", "stage": "s"},
        {"topic": "t", "stage": {}},
        {"topic": "t", "stage": {"producer": "p", "counter": 1}},
        {"topic": "t", "stage": {"producer": "p", "counter": "1", "part": "a"}},
        {"topic": "t", "stage": {"producer": "p", "counter": 1, "part": 2}},
        {"topic": "t", "stage": {"producer": "a b", "counter": 1, "part": "a"}},
        {"topic": "t", "stage": {"producer": "p", "counter": 1, "part": "a", "more": 1}},
    ],
    ids=str,
)
def test_a_command_that_is_wrong_is_refused(peer: Peer, command: Said) -> None:
    before = peer.rows("t")
    with refused():
        peer.put_texts(command, ["x"])
    assert peer.rows("t") == before


def test_a_path_has_one_element(peer: Peer, topic: str) -> None:
    for path in ((), (topic, "more")):
        to = flight.FlightDescriptor.for_path(*path)
        with refused(), peer.putting(to, texts().schema) as stream:
            stream.send(texts())
            stream.answer()
    assert peer.rows(topic) == 0


def test_a_topic_column_may_say_the_same_as_the_descriptor_only(peer: Peer, topic: str) -> None:
    same = texts(2, topic=pa.array([topic, topic]))
    assert peer.put(topic, same)["offset"] == 1
    with refused():
        peer.put(topic, texts(2, topic=pa.array([topic, f"{topic}/other"])))
    assert peer.texts(topic) == numbered(2)


def test_metadata_that_no_batch_is_with_hurts_nobody(flying: BrokerProcess, topic: str) -> None:
    with Peer(flying.door("flight")) as peer:
        with suppress(flight.FlightServerError), peer.putting(topic, texts().schema) as stream:
            stream.say(b'{"sequence": 1}')
            stream.done()
        assert peer.rows(topic) == 0
