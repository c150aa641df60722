"""Messages as subscribers get them, in each serializer."""

import json
import math
import pickle
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.doors.frames.codec import HEAD, MAX_BODY
from stafeta.doors.frames.deliveries import encoder
from stafeta.doors.frames.serializers import JSON, PICKLE, SERIALIZERS, XML, Serializer
from stafeta.message import Kind, Row, RowBatch

DEEP = b"[" * 900 + b"]" * 900
TOPIC = '/s/"ș"&<'


def no_json(word: str) -> object:
    raise AssertionError(f"{word} is no JSON")


def read(body: bytes, code: int) -> dict[str, object]:
    """As strangers do, with Python's own readers."""
    if code == JSON.code:
        return dict(json.loads(body, parse_constant=no_json))
    if code == XML.code:
        return dict(ElementTree.fromstring(body).attrib)
    return dict(pickle.loads(body))


def bodies(
    serializer: Serializer, *messages: tuple[int, bytes], topic: str = TOPIC
) -> tuple[list[bytes], int]:
    """The bodies of the frames of a batch, and how many messages had to be cut."""
    cut: list[str] = []
    rows: list[Row] = [
        (number, 0, "", "", kind, None, payload) for number, (kind, payload) in enumerate(messages)
    ]
    made = encoder(serializer, "type", cut.append)(RowBatch(topic, 1, rows))
    assert set(cut) <= {topic}
    for one in made:
        assert HEAD.unpack_from(one) == (serializer.code, len(one) - HEAD.size)
    return [one[HEAD.size :] for one in made], len(cut)


def delivered(serializer: Serializer, kind: int, payload: bytes) -> object:
    (body,), cut = bodies(serializer, (kind, payload))
    assert not cut
    fields = read(body, serializer.code)
    assert list(fields) == ["type", "topic", "message"]
    assert (fields["type"], fields["topic"]) == ("publish", TOPIC)
    return fields["message"]


# --- messages that no publisher should have sent


@pytest.mark.parametrize(
    ("kind", "payload", "in_json", "in_xml", "in_pickle"),
    [
        (Kind.INT, b"no number", "no number", "no number", "no number"),
        (Kind.FLOAT, b"\xff", "/w==", "\\xff", "\\xff"),
        (Kind.JSON, b"no JSON", "no JSON", "no JSON", "no JSON"),
        (Kind.JSON, b"\xff", "\\xff", "\\xff", "\\xff"),
        (Kind.JSON, b"[NaN]", [None], "[NaN]", [math.nan]),
        (Kind.JSON, '["ș"]'.encode("utf-16"), ["ș"], None, ["ș"]),
        (Kind.JSON, b'"\\ud800"', "\ud800", '"\\ud800"', "\ud800"),
        (Kind.JSON, b"[" * 50_000, "[" * 50_000, "[" * 50_000, "[" * 50_000),
        (Kind.JSON, b'{"$tuple": %b}' % (b"[" * 900), None, None, None),
        (Kind.STRING, b"a\xff", "Yf8=", "a\\xff", "a\\xff"),
        (Kind.STRING, b"a\0\x1b", "a\0\x1b", "a\ufffd\ufffd", "a\0\x1b"),
        (99, b"what", "what", "what", "what"),
    ],
)
def test_a_strange_message_goes_out_all_the_same(
    kind: int, payload: bytes, in_json: object, in_xml: str | None, in_pickle: object
) -> None:
    for serializer, expected in ((JSON, in_json), (XML, in_xml), (PICKLE, in_pickle)):
        found = delivered(serializer, kind, payload)
        assert expected is None or repr(found) == repr(expected)


def test_json_that_is_nested_deep_is_delivered() -> None:
    (body,), _ = bodies(JSON, (Kind.JSON, DEEP))
    assert DEEP in body
    assert delivered(XML, Kind.JSON, DEEP) == DEEP.decode()
    (body,), _ = bodies(PICKLE, (Kind.JSON, DEEP))
    assert pickle.loads(body)["topic"] == TOPIC


@given(st.integers(0, 6), st.binary() | st.from_regex(rb'[\[\]{}",:$tuple0-9.\\-]+'))
def test_any_bytes_of_any_kind_go_out(kind: int, payload: bytes) -> None:
    for serializer in SERIALIZERS:
        delivered(serializer, kind, payload)


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda serializer: serializer.name)
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.STRING, "ș😀".encode() * 20_000),
        (Kind.STRING, b'"&\n' * 30_000),
        (Kind.STRING, b"\x01" * 60_000),
        (Kind.BYTES, b"\xff" * 65_530),
        (Kind.JSON, b'["%b"]' % (b"x" * 70_000)),
        (Kind.JSON, b'{"$tuple": ["%b"]}' % (b"x" * 70_000)),
        (Kind.STRING, b"x" * (5 << 20)),
        (Kind.INT, b"9" * 70_000),
    ],
)
def test_a_message_that_is_too_large_is_cut_between_two_characters(
    serializer: Serializer, kind: int, payload: bytes
) -> None:
    (body, after), cut = bodies(serializer, (kind, payload), (Kind.STRING, b"after"))
    if not cut:
        assert (serializer, kind) in ((XML, Kind.STRING), (PICKLE, Kind.STRING), (PICKLE, Kind.BYTES))
        return
    text = payload.decode(errors="backslashreplace")
    message = read(body, serializer.code)["message"]
    assert isinstance(message, str)
    assert text.replace("\x01", "\ufffd").startswith(message.replace("\x01", "\ufffd"))
    assert MAX_BODY - 8 < len(body) <= MAX_BODY, "as much as fits"
    assert read(after, serializer.code)["message"] == "after"


# --- messages as they should be


@pytest.mark.parametrize(
    ("kind", "payload", "in_json"),
    [
        (Kind.INT, b"-12", b"-12"),
        (Kind.INT, b"007", b"7"),
        (Kind.INT, b"-0", b"0"),
        (Kind.INT, b"-00", b"0"),
        (Kind.INT, b"9" * 1000, b"9" * 1000),
        (Kind.SHORT_REAL, b"12.50", b"12.50"),
        (Kind.SHORT_REAL, b"00.50", b"0.50"),
        (Kind.FLOAT, b"1234.4321", b"1234.4321"),
        (Kind.FLOAT, b"-0.10", b"-0.10"),
        (Kind.FLOAT, b"0.1000000000000000055511151231257827", b"0.1000000000000000055511151231257827"),
        (Kind.JSON, b'{"a" :1.50}', b'{"a" :1.50}'),
        (Kind.JSON, b"9" * 5000, b"9" * 5000),
    ],
)
def test_a_number_in_json_has_the_digits_that_were_published(
    kind: int, payload: bytes, in_json: bytes
) -> None:
    (body,), _ = bodies(JSON, (kind, payload), topic="/a")
    assert body == b'{"type":"publish","topic":"/a","message":%b}' % in_json


@pytest.mark.parametrize(
    ("kind", "payload", "in_json", "in_xml", "in_pickle"),
    [
        (Kind.INT, b"-12", -12, "-12", -12),
        (Kind.SHORT_REAL, b"12.50", 12.5, "12.50", 12.5),
        (Kind.FLOAT, b"1234.4321", 1234.4321, "1234.4321", 1234.4321),
        (Kind.FLOAT, b"5", 5, "5", 5.0),
        (Kind.STRING, 'ș\n\t"&<'.encode(), 'ș\n\t"&<', 'ș\n\t"&<', 'ș\n\t"&<'),
        (Kind.JSON, b'{"a": [1, null]}', {"a": [1, None]}, '{"a": [1, null]}', {"a": [1, None]}),
        (Kind.JSON, b"true", True, "true", True),
        (Kind.JSON, b'{"$tuple": [1, {"$set": [2]}]}', [1, [2]], "[1, [2]]", (1, {2})),
        (Kind.JSON, b'{"$dict": [[1, {"$float": "nan"}]]}', {"1": None}, '{"1": null}', {1: math.nan}),
        (Kind.JSON, b'{"$set": {"a": 1}}', {"$set": {"a": 1}}, '{"$set": {"a": 1}}', {"$set": {"a": 1}}),
        (Kind.BYTES, b"text", "text", "text", b"text"),
        (Kind.BYTES, b"a\xff", "Yf8=", "a\\xff", b"a\xff"),
    ],
)
def test_each_kind_in_each_serializer(
    kind: int, payload: bytes, in_json: object, in_xml: str, in_pickle: object
) -> None:
    assert repr(delivered(JSON, kind, payload)) == repr(in_json)
    assert delivered(XML, kind, payload) == in_xml
    assert repr(delivered(PICKLE, kind, payload)) == repr(in_pickle)
