"""Datagrams: every value exactly, and whatever else comes is an error of ours."""

import re
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.doors.devices.readings import HEAD, MAX_CONTENT, READERS, TOPIC_BYTES, content, read, write
from stafeta.errors import InvalidDatagram, InvalidMessage, InvalidName
from stafeta.message import Kind
from stafeta.names import check_name

LARGEST = 2**32 - 1

topics = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(
    lambda topic: len(topic.encode()) <= TOPIC_BYTES
)
strings = st.text(st.characters(exclude_characters="\0", codec="utf-8")).filter(
    lambda text: len(text.encode()) <= MAX_CONTENT
)
whole_numbers = st.integers(-LARGEST, LARGEST)


def datagram(type_: int, body: bytes, topic: bytes = b"a/b") -> bytes:
    return topic.ljust(TOPIC_BYTES, b"\0") + bytes((type_,)) + body


# --- what cannot be read


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "0 bytes"),
        (bytes(50), "50 bytes"),
        (datagram(3, bytes(MAX_CONTENT + 1)), "more than 1551 bytes"),
        (datagram(3, b"x", topic=b""), "no topic"),
        (datagram(3, b"x", topic=b"\0later"), "no topic"),
        (datagram(3, b"x", topic=b"\xff"), "not UTF-8"),
        (datagram(3, b"x", topic="é".encode() * 24 + b"\xc3"), "not UTF-8"),
        (datagram(4, b"x"), "type is 4"),
        (datagram(255, b"x"), "type is 255"),
        (datagram(0, b"\0\0\0\1"), "4 bytes"),
        (datagram(1, b"\1"), "1 bytes"),
        (datagram(2, b"\0\0\0\0\1"), "5 bytes"),
        (datagram(0, b"\2\0\0\0\1"), "sign byte is 2"),
        (datagram(2, b"\xff\0\0\0\1\0"), "sign byte is 255"),
    ],
)
def test_a_datagram_that_is_none_is_told_why(bad: bytes, why: str) -> None:
    with pytest.raises(InvalidDatagram, match=why):
        read(bad)


@given(
    st.binary(max_size=MAX_CONTENT + HEAD + 10)
    | st.builds(datagram, st.integers(0, 5), st.binary(max_size=20))
)
def test_any_bytes_are_a_reading_or_no_datagram(data: bytes) -> None:
    try:
        topic, kind, payload = read(data)
    except InvalidDatagram:
        return
    # What was read can be written, and means the same; bytes that mean nothing are gone.
    assert read(write(topic, kind, payload)) == (topic, kind, payload)


@given(st.integers(0, 3), st.binary(max_size=MAX_CONTENT + 1))
def test_a_content_is_a_payload_or_no_datagram(type_: int, body: bytes) -> None:
    try:
        kind, payload = READERS[type_](body)
    except InvalidDatagram:
        return
    assert content(kind, payload)[0] == type_


# --- numbers


@pytest.mark.parametrize(
    ("type_", "body", "text"),
    [
        (0, "00 00000000", "0"),
        (0, "01 00000000", "0"),
        (0, "01 ffffffff", "-4294967295"),
        (0, "00 00000005 ffff", "5"),
        (1, "0000", "0.00"),
        (1, "0005", "0.05"),
        (1, "ffff", "655.35"),
        (1, "0001 ff", "0.01"),
        (2, "00 00bc5c01 04", "1234.4321"),
        (2, "01 00bc5c01 04", "-1234.4321"),
        (2, "00 00000000 00", "0"),
        (2, "01 00000000 02", "0.00"),
        (2, "01 00000007 00", "-7"),
        (2, "00 00000007 09", "0.000000007"),
        (2, "00 ffffffff 09 00", "4.294967295"),
        (2, "01 ffffffff ff", "-0." + "0" * 245 + "4294967295"),
    ],
)
def test_a_number_is_read_exactly(type_: int, body: str, text: str) -> None:
    assert read(datagram(type_, bytes.fromhex(body))) == ("a/b", Kind(type_), text.encode())


@given(st.booleans(), st.integers(0, LARGEST), st.integers(0, 255))
@example(True, 0, 255)
def test_a_float_keeps_its_value_and_its_decimals_there_and_back(
    negative: bool, n: int, decimals: int
) -> None:
    body = struct.pack(">BIB", negative and n > 0, n, decimals)
    topic, kind, text = read(datagram(2, body))
    whole, point, after = text.partition(b".")
    assert int(whole + after) == (-n if negative else n)
    assert (bool(point), len(after)) == (decimals > 0, decimals)
    assert write(topic, kind, text) == datagram(2, body)


@pytest.mark.parametrize("decimals", range(256))
def test_every_number_of_decimals_reads_back(decimals: int) -> None:
    body = struct.pack(">BIB", 1, 12344321, decimals)
    assert content(Kind.FLOAT, read(datagram(2, body))[2]) == (2, body, False)


@given(whole_numbers)
def test_an_int_reads_back(number: int) -> None:
    payload = b"%d" % number
    assert read(write("a", Kind.INT, payload)) == ("a", Kind.INT, payload)


@given(st.integers(0, 65535))
def test_a_short_real_reads_back(hundredths: int) -> None:
    payload = b"%d.%02d" % divmod(hundredths, 100)
    assert read(write("a", Kind.SHORT_REAL, payload)) == ("a", Kind.SHORT_REAL, payload)


@pytest.mark.parametrize(
    ("kind", "payload", "body"),
    [
        (Kind.INT, b"-0", "00 00000000"),
        (Kind.INT, b"007", "00 00000007"),
        (Kind.INT, b"-007", "01 00000007"),
        (Kind.SHORT_REAL, b"-0.00", "0000"),
        (Kind.SHORT_REAL, b"00655.35", "ffff"),
        (Kind.FLOAT, b"-0.0", "00 00000000 01"),
        (Kind.FLOAT, b"1.500", "00 000005dc 03"),
        (Kind.FLOAT, b"-0.5", "01 00000005 01"),
    ],
)
def test_a_number_of_another_door_is_written_as_a_device_has_it(
    kind: Kind, payload: bytes, body: str
) -> None:
    assert content(kind, payload) == (kind, bytes.fromhex(body), False)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.INT, b"4294967296"),
        (Kind.INT, b"-4294967296"),
        (Kind.INT, b"9" * 1000),
        (Kind.SHORT_REAL, b"-0.01"),
        (Kind.SHORT_REAL, b"655.36"),
        (Kind.FLOAT, b"4294967296"),
        (Kind.FLOAT, b"42949672.96"),
        (Kind.FLOAT, b"0." + b"0" * 256),
        (Kind.FLOAT, b"1" * 1000 + b"." + b"2" * 499),
    ],
)
def test_a_number_that_a_device_cannot_hold_becomes_its_digits(kind: Kind, payload: bytes) -> None:
    assert content(kind, payload) == (Kind.STRING, payload, True)
    with pytest.raises(InvalidMessage, match=f"does not fit {kind.name}"):
        write("a", kind, payload)


# --- strings and topics


@given(topics, strings)
@example("t" * TOPIC_BYTES, "x" * MAX_CONTENT)
@example("é" * 25, "")
def test_a_string_reads_back_under_its_topic(topic: str, text: str) -> None:
    made = write(topic, Kind.STRING, text.encode())
    try:
        check_name(topic)
    except InvalidName as error:
        with pytest.raises(InvalidDatagram, match=re.escape(str(error))):
            read(made)
    else:
        assert read(made) == (topic, Kind.STRING, text.encode())


def test_a_string_ends_at_the_first_nul() -> None:
    assert read(datagram(3, b"abc\0def")) == ("a/b", Kind.STRING, b"abc")
    assert read(datagram(3, b"\0")) == ("a/b", Kind.STRING, b"")


@given(st.binary(max_size=MAX_CONTENT).map(lambda data: data.replace(b"\0", b"")))
@example(b"caf\xe9")
def test_a_string_in_another_encoding_keeps_its_bytes(text: bytes) -> None:
    _, kind, payload = read(datagram(3, text))
    assert content(kind, payload) == (Kind.STRING, text, False)


@pytest.mark.parametrize("kind", [Kind.STRING, Kind.JSON, Kind.BYTES])
def test_what_is_too_long_is_cut_between_two_characters(kind: Kind) -> None:
    assert content(kind, b"x" * 1500) == (Kind.STRING, b"x" * 1500, False)
    assert content(kind, b"x" * 1501) == (Kind.STRING, b"x" * 1500, True)
    assert content(kind, b"x" * 1499 + "é".encode()) == (Kind.STRING, b"x" * 1499, True)
    assert content(kind, b"x" * 1498 + "€".encode() * 9) == (Kind.STRING, b"x" * 1498, True)


def test_bytes_that_are_no_text_are_cut_anywhere() -> None:
    assert content(Kind.BYTES, b"\xff" * 2000) == (Kind.STRING, b"\xff" * 1500, True)


@pytest.mark.parametrize(
    ("topic", "kind", "payload", "why"),
    [
        ("", Kind.INT, b"1", "1 to 50 bytes"),
        ("é" * 26, Kind.INT, b"1", "1 to 50 bytes"),
        ("a\0b", Kind.INT, b"1", "no NUL"),
        ("\udcff", Kind.INT, b"1", "UTF-8"),
        ("a", Kind.JSON, b"{}", "not json"),
        ("a", Kind.INT, b"1.5", "not of the kind int"),
        ("a", Kind.STRING, b"\xff", "not of the kind string"),
        ("a", Kind.STRING, b"x\0y", "NUL"),
        ("a", Kind.STRING, b"x" * 1501, "at most 1500 bytes"),
    ],
)
def test_what_a_datagram_cannot_carry_is_refused_with_a_sentence(
    topic: str, kind: Kind, payload: bytes, why: str
) -> None:
    with pytest.raises(InvalidMessage, match=why):
        write(topic, kind, payload)
