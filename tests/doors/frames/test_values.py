"""What a Python value becomes in the log, and back."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.doors.frames import values
from stafeta.errors import InvalidMessage
from stafeta.message import Kind, check_payload
from tests.doors.frames.plain_data import JSON_VALUES, PLAIN_DATA, alike


class Stranger:
    pass


# --- what cannot be kept


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(InvalidMessage, match="contains itself"):
        values.pack(value)


def test_a_value_is_200_deep_and_no_deeper() -> None:
    value: object = 0
    for _ in range(values.MAX_DEPTH):
        value = [value]
    assert values.unpack(*values.pack(value)) == value
    with pytest.raises(InvalidMessage, match="nested more than 200 deep"):
        values.pack([value])


@pytest.mark.parametrize("part", ["x" * 1000, b"x" * 1000, 10**1000, [[]] * 1000])
def test_a_value_that_grows_when_it_is_written_out_is_refused(part: object) -> None:
    value = part
    for _ in range(4):
        value = [value] * 100
    with pytest.raises(InvalidMessage, match=re.escape("larger than 1,048,576 bytes")):
        values.pack(value)


@pytest.mark.parametrize("value", [Stranger(), frozenset(), bytearray(), 1j, Kind.INT, range(3), Stranger])
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    for whole in (value, [value], {"key": value}, {value} if value != bytearray() else [value]):
        with pytest.raises(InvalidMessage, match=f"{type(value).__name__} is no plain data"):
            values.pack(whole)


def test_a_number_with_too_many_digits_is_refused() -> None:
    for value in (10**4300, -(10**5000), [10**4300], {10**4300: 1}):
        with pytest.raises(InvalidMessage, match=re.escape("more than 4,300 digits")):
            values.pack(value)


# --- what other doors have stored


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (Kind.INT, b"007", 7),
        (Kind.INT, b"no number", "no number"),
        (Kind.INT, b"9" * 5000, "9" * 5000),
        (Kind.FLOAT, b"1" + b"0" * 999, math.inf),
        (Kind.SHORT_REAL, b"12.50", 12.5),
        (Kind.STRING, b"a\xff", "a\\xff"),
        (Kind.JSON, b"{", "{"),
        (Kind.JSON, b"\xff", "\\xff"),
        (Kind.JSON, b"[" * 100_000, "[" * 100_000),
        (Kind.JSON, b"[%b]" % (b"9" * 5000), ["9" * 5000]),
        (Kind.JSON, b"1e400", math.inf),
        (Kind.JSON, b'{"$set": [[1]]}', {"$set": [[1]]}),
        (Kind.JSON, b'{"$dict": [[[1], 2]]}', {"$dict": [[[1], 2]]}),
        (Kind.JSON, b'{"$dict": [1]}', {"$dict": [1]}),
        (Kind.JSON, b'{"$bytes": "!"}', {"$bytes": "!"}),
        (Kind.JSON, b'{"$float": "1"}', {"$float": "1"}),
        (Kind.JSON, b'{"\\u0024tuple": [1]}', (1,)),
        (Kind.JSON, b'{"$new": [1]}', {"$new": [1]}),
        (Kind.BYTES, b"\xff", b"\xff"),
        (99, b"what", "what"),
    ],
)
def test_whatever_is_in_the_log_can_be_read(kind: int, payload: bytes, value: object) -> None:
    assert values.unpack(kind, payload) == value


@given(st.integers(0, 6), st.binary())
def test_any_bytes_of_any_kind_can_be_read(kind: int, payload: bytes) -> None:
    values.unpack(kind, payload)


# --- there and back


@pytest.mark.parametrize(
    ("value", "kind", "payload"),
    [
        ("text", Kind.STRING, b"text"),
        ("", Kind.STRING, b""),
        ("\ud800", Kind.JSON, b'"\\ud800"'),
        (b"\xff", Kind.BYTES, b"\xff"),
        (0, Kind.INT, b"0"),
        (-12, Kind.INT, b"-12"),
        (10**999, Kind.INT, b"1" + b"0" * 999),
        (10**1000, Kind.JSON, b"1" + b"0" * 1000),
        (21.5, Kind.FLOAT, b"21.5"),
        (-0.0, Kind.FLOAT, b"-0.0"),
        (1e22, Kind.FLOAT, b"1" + b"0" * 22),
        (1.5e-7, Kind.FLOAT, b"0.00000015"),
        (math.inf, Kind.JSON, b'{"$float": "inf"}'),
        (True, Kind.JSON, b"true"),
        (None, Kind.JSON, b"null"),
        ({"ș": [1, 2.5]}, Kind.JSON, '{"ș": [1, 2.5]}'.encode()),
        ((1, 2), Kind.JSON, b'{"$tuple": [1, 2]}'),
        ({3, 1, 2}, Kind.JSON, b'{"$set": [1, 2, 3]}'),
        ([b"\xff"], Kind.JSON, b'[{"$bytes": "/w=="}]'),
        ({1: "a"}, Kind.JSON, b'{"$dict": [[1, "a"]]}'),
        ({"$tuple": [1]}, Kind.JSON, b'{"$dict": [["$tuple", [1]]]}'),
        ({"$set": {"name": 1}}, Kind.JSON, b'{"$set": {"name": 1}}'),
    ],
)
def test_each_kind_of_value_has_its_form(value: object, kind: Kind, payload: bytes) -> None:
    assert values.pack(value) == (kind, payload)


@given(PLAIN_DATA)
@example({"$tuple": {"$tuple": []}})
@example({"$tuple": ()})
@example({"$dict": [(1, 2)]})
@example({"$set": [[1]]})
def test_plain_data_comes_back_exactly(value: Any) -> None:
    kind, payload = values.pack(value)
    assert alike(values.unpack(kind, payload), value)
    check_payload(kind, payload)


def test_what_is_not_a_number_comes_back() -> None:
    back = values.unpack(*values.pack([math.nan]))
    assert isinstance(back, list)
    assert math.isnan(back[0])


@pytest.mark.parametrize(
    ("text", "kind", "payload"),
    [
        ("12.50", Kind.FLOAT, b"12.50"),
        ("-0", Kind.INT, b"0"),
        ("1e3", Kind.FLOAT, b"1000"),
        ("1.25E1", Kind.FLOAT, b"12.5"),
        ("1.50e+1", Kind.FLOAT, b"15.0"),
        ("12e-3", Kind.FLOAT, b"0.012"),
        ("-1.5e-1", Kind.FLOAT, b"-0.15"),
        ("0e5", Kind.FLOAT, b"0"),
        ("1e999", Kind.FLOAT, b"1" + b"0" * 999),
        ("1e1000", Kind.JSON, b"1e1000"),
        ("1e-1001", Kind.JSON, b"1e-1001"),
        ("1e99999999999", Kind.JSON, b"1e99999999999"),
        ("0." + "1" * 1001, Kind.JSON, b"0." + b"1" * 1001),
    ],
)
def test_a_number_keeps_its_digits(text: str, kind: Kind, payload: bytes) -> None:
    assert values.number(text) == (kind, payload)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_kept_without_an_exponent(value: float) -> None:
    kind, payload = values.pack(value)
    assert kind is Kind.FLOAT
    check_payload(kind, payload)
    assert repr(float(payload)) == repr(value)


# --- the nearest JSON


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        ([b"text", b"\xff"], ["text", "/w=="]),
        ([math.nan, math.inf, -math.inf, 1.5], [None, None, None, 1.5]),
        ({1: 3, None: 2, b"k": 4, (1, "a"): 5}, {"1": 3, "null": 2, "k": 4, '[1, "a"]': 5}),
        ({"$tuple": [1]}, {"$tuple": [1]}),
    ],
)
def test_what_json_has_no_word_for_becomes_what_is_nearest(value: object, nearest: object) -> None:
    assert values.nearest_json(values.unpack(*values.pack(value))) == nearest


@given(PLAIN_DATA)
def test_the_nearest_json_is_json(value: Any) -> None:
    json.dumps(values.nearest_json(value), allow_nan=False)


@given(JSON_VALUES)
def test_the_nearest_json_of_json_is_itself(value: Any) -> None:
    assert alike(values.nearest_json(value), value)
