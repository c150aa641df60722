"""The columns number, decimal and text against Python's own float and Decimal."""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.message import Kind, check_payload
from stafeta.pipeline.connector.decoding import DECIMAL, NUMBER, TEXT, decoded

Row = tuple[str, bytes]
TYPES = {"number": NUMBER, "decimal": DECIMAL, "text": TEXT}
NUMERIC = ("int", "short_real", "float")


def column(name: str, rows: Sequence[Row]) -> Any:
    kind = pa.array([kind for kind, _ in rows], TEXT)
    found = decoded(name, kind, pa.array([payload for _, payload in rows], pa.binary()))
    found.validate(full=True)
    assert found.type == TYPES[name]
    assert len(found) == len(rows)
    return found


def values(name: str, rows: Sequence[Row]) -> list[Any]:
    return list(column(name, rows).to_pylist())


def exact(text: str) -> Decimal | None:
    with localcontext() as context:
        context.prec = 3_000
        found = Decimal(text)
        scaled = found.scaleb(18)
        fits = scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** 38
        return found if fits else None


def expected(name: str, kind: str, payload: bytes) -> object:
    if name == "text":
        return None if kind == "bytes" else payload.decode()
    if kind not in NUMERIC:
        return None
    return float(payload) if name == "number" else exact(payload.decode())


digits = st.one_of(
    st.text("0123456789", min_size=1, max_size=25),
    st.text("09", min_size=15, max_size=60),
    st.text("0123456789", min_size=300, max_size=960),
    st.builds(lambda zeros, rest: "0" * zeros + rest, st.integers(0, 300), st.text("123", min_size=1)),
)
numbers = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}{fraction}".encode(),
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(
        st.just(""), digits.map(".{}".format), digits.map(lambda found: f".{found.rstrip('0')}{'0' * 40}")
    ),
)
messages = st.one_of(
    st.tuples(st.just("float"), numbers),
    st.tuples(st.just("int"), st.integers(-(10**25), 10**25).map(lambda found: str(found).encode())),
    st.tuples(st.just("short_real"), st.integers(0, 10**22).map(lambda found: f"{found}.50".encode())),
    st.tuples(st.sampled_from(["string", "json"]), st.text().map(str.encode)),
    st.tuples(st.just("bytes"), st.binary()),
)
TOO_LONG = ("float", b"9" * 400)


@given(
    st.one_of(st.lists(messages), st.lists(st.tuples(st.just("float"), numbers))), st.sampled_from([*TYPES])
)
@example([("int", b"-0"), ("float", b"-0.0"), ("int", b"007"), ("short_real", b"-00.10")], "number")
@example([("int", b"9" * 39), ("int", b"1" * 57), ("float", b"9." + b"0" * 57)], "decimal")
@example([("float", b"-" + b"9" * 20 + b"." + b"9" * 18), ("float", b"1" + b"0" * 20)], "decimal")
@example([("float", b"0." + b"0" * 330 + b"1"), ("float", b"9007199254740993")], "number")
def test_every_row_is_what_python_makes_of_it(rows: list[Row], name: str) -> None:
    found = values(name, rows)
    assert found == [expected(name, *row) for row in rows]
    if name == "number":  # -0.0 == 0.0, and yet it is another number
        pairs = [(one, payload) for one, (_, payload) in zip(found, rows, strict=True) if one is not None]
        assert all((math.copysign(1, one) < 0) == payload.startswith(b"-") for one, payload in pairs)


@given(numbers)
def test_the_numbers_tried_here_are_numbers_to_the_broker(payload: bytes) -> None:
    check_payload(Kind.FLOAT, payload)


def test_a_number_too_large_for_a_double_is_infinite() -> None:
    assert values("number", [TOO_LONG, ("float", b"-" + b"9" * 400)]) == [math.inf, -math.inf]


@pytest.mark.parametrize(
    "misfit",
    [b"1" * 21, b"9" * 39, b"1" * 57, b"9" * 400, b"0.1234567890123456789", b"1" * 1000 + b"." + b"1" * 1000],
)
def test_a_decimal_that_does_not_fit_is_null_and_costs_no_other(misfit: bytes) -> None:
    assert values("decimal", [("float", b"1.5"), ("float", misfit), ("string", b"x"), ("int", b"-2")]) == [
        Decimal("1.5"),
        None,
        None,
        Decimal(-2),
    ]


@pytest.mark.parametrize("stray", [b"", b"abc", b"1.5.5", b"\xff"])
def test_a_payload_that_is_not_of_its_kind_is_null_and_costs_no_other(stray: bytes) -> None:
    for name in ("number", "decimal"):
        found = decoded(name, pa.array(["float", "float"]), pa.array([b"1.5", stray], pa.binary()))
        assert [one and float(one) for one in found.to_pylist()] == [1.5, None]


@pytest.mark.parametrize("name", TYPES)
def test_no_rows(name: str) -> None:
    assert values(name, []) == []


@pytest.mark.parametrize(
    "rows", [[("string", b"ab"), ("json", b"{}"), ("int", b"12")], [("float", b"1.5")] * 3]
)
def test_a_text_shares_its_bytes_with_the_payload(rows: list[Row]) -> None:
    kind, payload = pa.array([kind for kind, _ in rows]), pa.array([payload for _, payload in rows])
    text = decoded("text", kind, payload)
    assert [one and one.address for one in text.buffers()] == [
        one and one.address for one in payload.buffers()
    ]


@given(st.lists(messages, min_size=3), st.data())
def test_a_slice_is_decoded_like_the_rows_that_it_has(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - start))
    kind, payload = (
        pa.array([kind for kind, _ in rows]),
        pa.array([payload for _, payload in rows], pa.binary()),
    )
    for name in TYPES:
        found = decoded(name, kind.slice(start, length), payload.slice(start, length))
        assert found.to_pylist() == values(name, rows[start : start + length])


@pytest.mark.parametrize("digits", range(17, 45))
@pytest.mark.parametrize("places", [0, 1, 2, 17, 18, 19])
def test_a_decimal_is_exact_or_null_at_every_length(digits: int, places: int) -> None:
    whole = "9" * digits
    text = f"-{whole}.{'7' * places}" if places else whole
    (found,) = decoded("decimal", pa.array(["float"]), pa.array([text.encode()])).to_pylist()
    assert found == (Decimal(text) if digits <= 20 and places <= 18 else None)
