"""What subscribers say: bytes to commands, in both dialects."""

import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.doors.devices import struct_dialect, text_dialect
from stafeta.doors.devices.codec import (
    Command,
    Commands,
    Identify,
    Refused,
    Subscribe,
    Unsubscribe,
    identify,
    subscribe,
    unsubscribe,
)
from stafeta.errors import InvalidClient, InvalidCommand, InvalidName

LONG = "x" * 255
STRUCT_ID = struct_dialect.identify("C1")


def commands(data: bytes, cuts: Sequence[int] = ()) -> tuple[list[Command], str | None]:
    """The commands in a stream that is cut at these places, and why the rest cannot be read."""
    reader = Commands()
    found: list[Command] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        try:
            found += reader.take(data[start:end])
        except InvalidCommand as error:
            return [*found, *error.before], str(error)
    return found, None


def in_struct(kind: int, client: bytes, buffer: bytes) -> bytes:
    return struct.pack("<i10s242s", kind, client, buffer)


# --- streams that cannot be followed


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"id0", "one digit, not b'0'"),
        (b"id;", "one digit, not b';'"),
        (b"idx", "one digit, not b'x'"),
        (b"id2a ", "no client's id"),
        (b"id2\xc3\xa9", "no client's id"),
        (b"id1a" + b"id1a", "again"),
        (b"id1ax", "no command"),
        (b"id1asx", "no command"),
        (b"id1a\n", "no command"),
        (b"id1ass!1", "three digits"),
        (b"id1ass5x", "three digits"),
        (b"id1ass1234!1", "three digits"),
        (b"id1aus-1!a", "three digits"),
        ("id1ass٣!1abc".encode(), "three digits"),
        (b"ss1!1a  ", "no kind of command"),
        (b"GET / HTTP/1.1\r\n\r\n", "no kind of command"),
        (struct.pack("<i", -1), "no kind of command"),
        (STRUCT_ID + struct.pack("<i", 3), "no kind of command"),
        (STRUCT_ID + STRUCT_ID, "again"),
        (in_struct(1, b"C1", b"topic 1\n"), "before the client's id"),
        (in_struct(1, b"C1", b"\0"), "before the client's id"),
        (in_struct(0, b"", b""), "no client's id"),
        (in_struct(0, b"a b", b""), "no client's id"),
    ],
)
def test_a_stream_that_cannot_be_followed_is_told_why(data: bytes, why: str) -> None:
    found, told = commands(data)
    assert told is not None
    assert why in told
    assert all(isinstance(command, Identify) for command in found)


def test_what_came_before_the_bytes_that_are_no_command_is_not_lost() -> None:
    data = b"id2C1ss3!1a/bus1!cGARBAGE"
    with pytest.raises(InvalidCommand) as caught:
        Commands().take(data)
    assert caught.value.before == [Identify("C1"), Subscribe("a/b", True), Unsubscribe("c")]


def test_a_stream_that_could_not_be_followed_stays_so() -> None:
    reader = Commands()
    for data in (b"id2C1??", b"ss3!1a/b", b""):
        with pytest.raises(InvalidCommand, match="no command"):
            reader.take(data)


# --- commands that are wrong


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"ss3!2a/b", "SF is b'2'"),
        (b"ss3!xa/b", "SF is b'x'"),
        (b"ss0!1", "no topic"),
        (b"us0!", "no topic"),
        (b"ss1!0\xff", "not UTF-8"),
        (b"us000!", "no topic"),
    ],
)
def test_in_text_a_wrong_command_is_refused_and_the_next_is_read(wrong: bytes, why: str) -> None:
    found, told = commands(b"id2C1" + wrong + b"ss3!1a/b")
    assert told is None
    identity, refused, after = found
    assert (identity, after) == (Identify("C1"), Subscribe("a/b", True))
    assert isinstance(refused, Refused)
    assert why in refused.why


@pytest.mark.parametrize(
    ("kind", "buffer", "why"),
    [
        (1, b"a/b 2\n", "SF is b'2'"),
        (1, b"a/b 01\n", "SF is b'01'"),
        (1, b"", "no topic"),
        (1, b" \n", "no topic"),
        (1, b"\xff 1\n", "not UTF-8"),
        (2, b"\0a/b", "no topic"),
    ],
)
def test_in_struct_a_wrong_command_is_refused_and_the_next_is_read(
    kind: int, buffer: bytes, why: str
) -> None:
    found, told = commands(STRUCT_ID + in_struct(kind, b"C1", buffer) + in_struct(2, b"C1", b"a/b"))
    assert told is None
    identity, refused, after = found
    assert (identity, after) == (Identify("C1"), Unsubscribe("a/b"))
    assert isinstance(refused, Refused)
    assert why in refused.why


# --- commands


def test_the_first_two_bytes_settle_the_dialect() -> None:
    for data, struct_ in ((b"id2C1", False), (STRUCT_ID, True), (b"is", True)):
        reader = Commands()
        reader.take(data[:1])
        assert reader.struct is None
        reader.take(data[1:2])
        assert reader.struct is struct_


def test_an_id_of_ten_characters_has_a_colon_for_its_length() -> None:
    assert identify("ABCDEFGHIJ") == b"id:ABCDEFGHIJ"
    assert commands(b"id:ABCDEFGHIJ") == ([Identify("ABCDEFGHIJ")], None)
    assert commands(in_struct(0, b"ABCDEFGHIJ", b"")) == ([Identify("ABCDEFGHIJ")], None)


def test_a_topic_may_be_longer_than_a_device_could_publish_on() -> None:
    assert commands(b"id2C1ss255!1" + LONG.encode())[0][1] == Subscribe(LONG, True)


@pytest.mark.parametrize(
    ("buffer", "command"),
    [
        (b"a/b 1\n", Subscribe("a/b", True)),
        (b"a/b 0\n", Subscribe("a/b", False)),
        (b"a/b\n", Subscribe("a/b", False)),
        (b"a/b", Subscribe("a/b", False)),
        (b"  a/b\t1 more words\n", Subscribe("a/b", True)),
        (b"a/b 1\n\0old bytes \xff", Subscribe("a/b", True)),
        (b"x" * 242, Subscribe("x" * 242, False)),
    ],
)
def test_in_struct_a_subscription_is_what_its_user_typed(buffer: bytes, command: Command) -> None:
    assert commands(STRUCT_ID + in_struct(1, b"", buffer)) == ([Identify("C1"), command], None)


def test_in_struct_an_unsubscription_may_have_a_newline() -> None:
    assert commands(STRUCT_ID + in_struct(2, b"", b"a/b\n"))[0][1] == Unsubscribe("a/b")


@pytest.mark.parametrize("client", ["", "ABCDEFGHIJK", "a b", "é", "a\0", "\udcff"])
def test_a_client_cannot_have_such_an_id(client: str) -> None:
    for dialect in (text_dialect, struct_dialect):
        with pytest.raises(InvalidClient, match="1 to 10 printable ASCII"):
            dialect.identify(client)


def test_a_topic_that_does_not_fit_a_command_is_refused_with_a_sentence() -> None:
    for topic in ("", "x" * 1000):
        with pytest.raises(InvalidName, match="1 to 999"):
            subscribe(topic, sf=True)
        with pytest.raises(InvalidName, match="1 to 999"):
            unsubscribe(topic)
    for surrogate in ("\ud800", "\udcff"):
        with pytest.raises(InvalidName, match="not UTF-8"):
            subscribe(surrogate, sf=True)
        with pytest.raises(InvalidName, match="not UTF-8"):
            struct_dialect.subscribe("C1", surrogate, sf=True)
    for topic in ("", "x" * 243, "a b", "a\0"):
        with pytest.raises(InvalidName, match="white space"):
            struct_dialect.unsubscribe("C1", topic)


# --- whatever is said, however it is cut

ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=10)
words = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=60)
asked = st.lists(st.builds(Subscribe, words, st.booleans()) | st.builds(Unsubscribe, words), max_size=8)


def text_stream(client: str, asked: Sequence[Subscribe | Unsubscribe]) -> bytes:
    return identify(client) + b"".join(
        subscribe(*one) if isinstance(one, Subscribe) else unsubscribe(*one) for one in asked
    )


def struct_stream(client: str, asked: Sequence[Subscribe | Unsubscribe]) -> bytes:
    return struct_dialect.identify(client) + b"".join(
        struct_dialect.subscribe(client, *one)
        if isinstance(one, Subscribe)
        else struct_dialect.unsubscribe(client, *one)
        for one in asked
    )


streams = (
    st.builds(text_stream, ids, asked)
    | st.builds(struct_stream, ids, asked)
    | st.builds(bytes.__add__, st.builds(text_stream, ids, asked), st.binary(max_size=20))
    | st.builds(bytes.__add__, st.sampled_from([b"id", b"id1a", STRUCT_ID, b""]), st.binary(max_size=600))
)


@given(ids, asked)
@example("0123456789", [Subscribe(LONG[:238], True)])
def test_what_a_client_writes_is_what_the_door_reads(
    client: str, asked: list[Subscribe | Unsubscribe]
) -> None:
    expected = [Identify(client), *asked]
    assert commands(text_stream(client, asked)) == (expected, None)
    assert commands(struct_stream(client, asked)) == (expected, None)


@given(streams, st.data())
def test_any_cut_of_a_stream_makes_the_same_commands(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    whole, why = commands(stream)
    for places in (cuts, range(len(stream))):
        found, told = commands(stream, places)
        assert (found, told is None) == (whole, why is None)
