"""Bodies in JSON, XML and pickle: what is refused, what a message is kept as, and there and back."""

import json
import re
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.doors.frames import values
from stafeta.doors.frames.serializers import JSON, PICKLE, SERIALIZERS, XML, Serializer
from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind, check_payload
from tests.doors.frames.attacks import XML_ATTACKS
from tests.doors.frames.plain_data import JSON_VALUES, PLAIN_DATA, WHOLE, alike

BY_NAME = {serializer.name: serializer for serializer in SERIALIZERS}


def published(serializer: Serializer, body: bytes) -> tuple[Kind, bytes]:
    """The kind and payload of a body's message."""
    message: tuple[Kind, bytes] = serializer.read(body)["message"]
    return message


def in_json(text: str) -> bytes:
    return b'{"command": "publish", "topic": "/a", "message": %b}' % text.encode()


# --- JSON


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff", "not UTF-8: byte 1"),
        (b"", "'{' is missing at character 1"),
        (b"[1]", "'{' is missing"),
        (b"{", "a key is missing at character 2"),
        (b"{1: 2}", "a key is missing"),
        (b'{"a"}', "':' is missing at character 5"),
        (b'{"a": }', "Expecting value"),
        (b'{"a": 1', "'}' is missing at character 8"),
        (b'{"a": 1,}', "a key is missing"),
        (b'{"a": 1} x', "something follows the object"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"message": [1, -Infinity]}', "-Infinity is no JSON"),
        (b'{"message": "\n"}', "Invalid control character"),
        (b'{"message": %b}' % (b"[" * 30_000), "nested too deep"),
        (b'{"message": %b}' % (b'{"a":' * 10_000), "nested too deep"),
        (in_json("[" * 201 + "0" + "]" * 201), "nested more than 200 deep"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(InvalidFrame, match=re.escape(why)):
        JSON.read(body)


@pytest.mark.parametrize(
    ("text", "kind", "payload"),
    [
        ('"text"', Kind.STRING, b"text"),
        ('"\\u0219"', Kind.STRING, "ș".encode()),
        ('"\\ud800"', Kind.JSON, b'"\\ud800"'),
        ("12", Kind.INT, b"12"),
        ("12.50", Kind.FLOAT, b"12.50"),
        ("1e3", Kind.FLOAT, b"1000"),
        ("0.1000000000000000055511151231257827", Kind.FLOAT, b"0.1000000000000000055511151231257827"),
        ("9" * 50_000, Kind.JSON, b"9" * 50_000),
        ("null", Kind.JSON, b"null"),
        ("true", Kind.JSON, b"true"),
        ('{"a" :1.50,\n"b":[ ]}', Kind.JSON, b'{"a" :1.50,\n"b":[ ]}'),
        ('["\\ud800", %s]' % ("9" * 5000), Kind.JSON, b'["\\ud800", %b]' % (b"9" * 5000)),
        ("[" * 200 + "]" * 200, Kind.JSON, b"[" * 200 + b"]" * 200),
        ("[" + "[], " * 300 + "0]", Kind.JSON, b"[" + b"[], " * 300 + b"0]"),
        ('{"$set": {"a": 1.50}}', Kind.JSON, b'{"$set": {"a": 1.50}}'),
        ('[{"$tuple": [1.50]}]', Kind.JSON, b'[{"$dict": [["$tuple", [1.5]]]}]'),
        ('{"\\u0024tuple": [1]}', Kind.JSON, b'{"$dict": [["$tuple", [1]]]}'),
    ],
)
def test_json_is_kept_as_the_text_in_which_it_came(text: str, kind: Kind, payload: bytes) -> None:
    assert published(JSON, in_json(text)) == (kind, payload)


def test_members_may_be_in_any_order_and_with_any_white_space_around_them() -> None:
    body = b' \r\n{ "message" :\t[1] , "more" : {"a": 1} , "topic":"/a" } \n'
    assert JSON.read(body) == {"message": (Kind.JSON, b"[1]"), "more": {"a": "1"}, "topic": "/a"}
    assert JSON.read(b" { } ") == {}


@given(JSON_VALUES)
def test_what_json_says_is_what_is_kept(value: Any) -> None:
    kind, payload = published(JSON, in_json(json.dumps(value)))
    check_payload(kind, payload)
    assert alike(values.unpack(kind, payload), value)


# --- XML


@pytest.mark.parametrize("name", XML_ATTACKS)
def test_an_attack_in_xml_is_refused_at_once(name: str) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidFrame, match=r"^The (XML|body) .+\.$"):
        XML.read(XML_ATTACKS[name])
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    "body",
    [
        b'<message command="publish" message="a&#10;b" />',
        b"<?xml version='1.0' encoding='utf-8'?>\n<!-- x --><x command='publish' message='a&#xA;b'> \n</x>\n",
        '\ufeff<é command="publish" message="a&#10;b"></é>'.encode(),
    ],
)
def test_xml_may_be_written_in_any_way(body: bytes) -> None:
    assert XML.read(body) == {"command": "publish", "message": (Kind.STRING, b"a\nb")}


def test_characters_that_xml_does_not_have_are_replaced() -> None:
    assert XML.load(XML.dump({"message": "a\0b\x1fc\ufffe\ud800"})) == {
        "message": "a\ufffdb\ufffdc\ufffd\ufffd"
    }


def test_a_list_of_topics_is_its_json_text_in_xml() -> None:
    assert XML.load(XML.dump({"topics": ["/a", "/b"]})) == {"topics": '["/a", "/b"]'}


# --- pickle


def test_a_pickle_of_no_dictionary_is_refused() -> None:
    with pytest.raises(InvalidFrame, match="of no dictionary"):
        PICKLE.read(b"\x80\x02].")


# --- all


@pytest.mark.parametrize("name", BY_NAME)
@given(body=st.binary())
def test_any_body_is_read_or_refused(name: str, body: bytes) -> None:
    with suppress(InvalidFrame, InvalidMessage):
        BY_NAME[name].read(body)
    with suppress(InvalidFrame):
        BY_NAME[name].load(body)


@given(st.dictionaries(WHOLE, JSON_VALUES, max_size=3))
def test_a_dictionary_comes_back_from_json(fields: dict[str, Any]) -> None:
    assert alike(JSON.load(JSON.dump(fields)), fields)


@given(st.text())
def test_text_comes_back_from_xml(text: str) -> None:
    try:
        XML.check(text)
    except InvalidMessage:
        return
    assert XML.load(XML.dump({"message": text})) == {"message": text}


@given(PLAIN_DATA)
def test_plain_data_comes_back_from_a_pickle(value: Any) -> None:
    PICKLE.check(value)
    assert alike(PICKLE.load(PICKLE.dump({"message": value})), {"message": value})
