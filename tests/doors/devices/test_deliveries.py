"""What subscribers are told: batches to bytes, and back."""

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.doors.devices import struct_dialect, text_dialect
from stafeta.doors.devices.codec import (
    STRUCT_OVERHEAD,
    TEXT_OVERHEAD,
    Deliveries,
    ReceivedMessage,
    struct_frames,
    text_frames,
    text_stream,
)
from stafeta.doors.devices.deliveries import DeliveryReader
from stafeta.errors import InvalidDelivery
from stafeta.message import Batch, Kind, RowBatch
from stafeta.store.blocks import batch_of, decode, encode_rows, make_header

Frames = Callable[[Batch, Callable[[], None]], list[bytes]]
DIALECTS = pytest.mark.parametrize(
    ("frames", "reader"),
    [(text_frames, Deliveries), (struct_frames, struct_dialect.Deliveries)],
    ids=["text", "struct"],
)
SOURCE = "10.1.2.3:40000"


def batch(*messages: tuple[Kind, bytes], topic: str = "a/b", source: str = SOURCE) -> RowBatch:
    return RowBatch(
        topic,
        1,
        [(at, 0, "", source, int(kind), None, payload) for at, (kind, payload) in enumerate(messages)],
    )


def never() -> None:
    raise AssertionError("a message was changed")


def seen(
    reader: DeliveryReader, data: bytes, cuts: Sequence[int] = ()
) -> tuple[list[ReceivedMessage], str | None]:
    """The messages in a stream that is cut at these places, and why the rest cannot be read."""
    found: list[ReceivedMessage] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        try:
            found += reader.take(data[start:end])
        except InvalidDelivery as error:
            return [*found, *error.before], str(error)
    return found, None


# --- streams that cannot be read


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(6) + b"\x00\x32", "50 bytes"),
        (bytes(6) + b"\x06\x10", "1552 bytes"),
        (bytes(6) + b"\x00\x33" + bytes(50) + b"\x04", "type 4"),
        (bytes(6) + b"\x00\x33" + bytes(51), "INT takes 5"),
    ],
)
def test_a_broker_that_makes_no_sense_is_told_why(data: bytes, why: str) -> None:
    good = text_frames(batch((Kind.INT, b"-5")), never)[0]
    found, told = seen(Deliveries(), good + data)
    assert told is not None
    assert why in told
    assert found == [ReceivedMessage("10.1.2.3", 40000, "a/b", "INT", "-5")]


# --- what cannot be carried


@DIALECTS
def test_a_message_under_a_long_topic_comes_as_text_with_the_topic_cut(
    frames: Frames, reader: type[DeliveryReader]
) -> None:
    changed: list[None] = []
    messages = [(Kind.INT, b"5"), (Kind.STRING, b"x"), (Kind.BYTES, b"y" * 2000)]
    made = frames(batch(*messages, topic="x" + "é" * 25), lambda: changed.append(None))
    found, _ = seen(reader(), b"".join(made))
    cut = "x" + "é" * 24
    assert [one[2:] for one in found] == [(cut, "STRING", text) for text in ("5", "x", "y" * 1500)]
    assert len(changed) == 3


@DIALECTS
def test_only_what_had_to_be_changed_is_counted(frames: Frames, reader: type[DeliveryReader]) -> None:
    changed: list[None] = []
    messages = [
        (Kind.INT, b"4294967295"),
        (Kind.INT, b"4294967296"),
        (Kind.JSON, b'{"a": 1}'),
        (Kind.STRING, b"x" * 1501),
    ]
    made = frames(batch(*messages), lambda: changed.append(None))
    found, _ = seen(reader(), b"".join(made))
    assert [one[3:] for one in found] == [
        ("INT", "4294967295"),
        ("STRING", "4294967296"),
        ("STRING", '{"a": 1}'),
        ("STRING", "x" * 1500),
    ]
    assert len(changed) == 2


@pytest.mark.parametrize(
    ("source", "in_text", "in_struct"),
    [
        ("10.1.2.3:40000", ("10.1.2.3", 40000), ("10.1.2.3", 40000)),
        ("10.1.2.3", ("10.1.2.3", 0), ("10.1.2.3", 0)),
        ("", ("0.0.0.0", 0), ("", 0)),
        ("::1", ("0.0.0.0", 0), ("::1", 0)),
        ("[::1]:9", ("0.0.0.0", 0), ("::1", 9)),
        ("[::ffff:10.1.2.3]:9", ("10.1.2.3", 9), ("10.1.2.3", 9)),
        ("::ffff:10.1.2.3", ("10.1.2.3", 0), ("10.1.2.3", 0)),
        ("2001:db8:1111:2222:3333:4444:5555:6666", ("0.0.0.0", 0), ("2001:db8:1111:2222:3333:4444:", 0)),
        ("a host", ("0.0.0.0", 0), ("a host", 0)),
        ("10.1.2.3:65536", ("10.1.2.3", 0), ("10.1.2.3", 0)),
        ("10.1.2.3:x", ("10.1.2.3", 0), ("10.1.2.3", 0)),
    ],
)
def test_a_source_is_told_as_far_as_there_is_room(
    source: str, in_text: tuple[str, int], in_struct: tuple[str, int]
) -> None:
    messages = batch((Kind.INT, b"1"), source=source)
    assert Deliveries().take(text_frames(messages, never)[0])[0][:2] == in_text
    assert struct_dialect.Deliveries().take(struct_frames(messages, never)[0])[0][:2] == in_struct


# --- messages


def test_in_text_a_message_is_address_length_and_datagram() -> None:
    topic = b"t" * 50
    made = text_frames(batch((Kind.INT, b"-5"), (Kind.STRING, b""), topic=topic.decode()), never)
    address = bytes([10, 1, 2, 3]) + (40000).to_bytes(2, "big")
    assert made == [address + b"\0\x38" + topic + b"\0\1\0\0\0\5", address + b"\0\x33" + topic + b"\3"]
    assert len(made[1]) == TEXT_OVERHEAD


def test_in_struct_a_message_is_a_structure_of_one_size() -> None:
    (made,) = struct_frames(batch((Kind.FLOAT, b"1234.4321")), never)
    content = bytes.fromhex("00 00bc5c01 04")
    assert made == struct.pack("<30si50sB1500s", b"10.1.2.3", 40000, b"a/b", 2, content)
    assert len(made) == STRUCT_OVERHEAD == 1585


@DIALECTS
def test_a_string_that_is_no_utf_8_keeps_its_bytes(frames: Frames, reader: type[DeliveryReader]) -> None:
    (made,) = frames(batch((Kind.BYTES, b"caf\xe9")), never)
    (found,) = reader().take(made)
    assert found.value.encode(errors="surrogateescape") == b"caf\xe9"


floats = st.builds(
    lambda n, e: f"{'-' if n < 0 else ''}{abs(n) // 10**e}" + (f".{abs(n) % 10**e:0{e}}" if e else ""),
    st.integers(-(2**32) + 1, 2**32 - 1),
    st.integers(0, 255),
)
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=300)
messages = st.lists(
    st.tuples(st.just(Kind.INT), st.integers(-(2**32) + 1, 2**32 - 1).map(str))
    | st.tuples(st.just(Kind.SHORT_REAL), st.integers(0, 65535).map(lambda n: f"{n // 100}.{n % 100:02}"))
    | st.tuples(st.just(Kind.FLOAT), floats)
    | st.tuples(st.just(Kind.STRING), texts),
    min_size=1,
    max_size=10,
)
topics = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12)


@given(messages, topics)
@example([(Kind.FLOAT, "-0." + "0" * 255)], "x" * 50)
def test_what_the_door_writes_is_what_a_client_reads(sent: list[tuple[Kind, str]], topic: str) -> None:
    made = batch(*((kind, text.encode()) for kind, text in sent), topic=topic)
    expected = [
        ReceivedMessage(
            "10.1.2.3", 40000, topic, kind.name, text if float_is_not_zero(kind, text) else text.lstrip("-")
        )
        for kind, text in sent
    ]
    assert seen(Deliveries(), b"".join(text_frames(made, never))) == (expected, None)
    assert seen(struct_dialect.Deliveries(), b"".join(struct_frames(made, never))) == (expected, None)


def float_is_not_zero(kind: Kind, text: str) -> bool:
    return kind is not Kind.FLOAT or text.strip("-0.") != ""


@given(
    messages | st.lists(st.tuples(st.just(Kind.STRING), texts), min_size=1), st.sampled_from(["a", "x" * 51])
)
@example([(Kind.STRING, "")], "a")
@example([(Kind.JSON, "1"), (Kind.JSON, "x" * 1501)], "a")
def test_a_batch_made_at_once_is_its_messages_one_by_one(sent: list[tuple[Kind, str]], topic: str) -> None:
    """Whether they came one by one or out of the store."""
    rows = batch(*((kind, text.encode()) for kind, text in sent), topic=topic)
    told, body = encode_rows(rows.rows)
    header = make_header(1, rows.count, told, [(1, 1, rows.count, 0, 0)])
    block, (run,) = decode(1, header, bytes(body))
    stored = batch_of(topic, block, run)
    one_by_one, at_once = Counter[str](), Counter[str]()
    expected = b"".join(text_frames(rows, lambda: one_by_one.update(["changed"])))
    assert text_stream(rows, lambda: at_once.update(["changed"])) == expected
    assert text_stream(stored, lambda: at_once.update(["changed"])) == expected
    assert at_once["changed"] == 2 * one_by_one["changed"]


@given(messages, st.binary(max_size=100), st.data())
def test_any_cut_of_a_stream_makes_the_same_messages(
    sent: list[tuple[Kind, str]], noise: bytes, data: st.DataObject
) -> None:
    made = batch(*((kind, text.encode()) for kind, text in sent))
    for frames, reader in ((text_frames, Deliveries), (struct_frames, struct_dialect.Deliveries)):
        stream = b"".join(frames(made, never)) + noise
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
        assert seen(reader(), stream, cuts) == seen(reader(), stream)


@given(st.binary(max_size=4000))
def test_any_bytes_are_messages_or_no_delivery(data: bytes) -> None:
    for reader in (text_dialect.Deliveries(), struct_dialect.Deliveries()):
        seen(reader, data)
