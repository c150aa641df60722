"""What a payload of each kind may be."""

import pytest

from stafeta.errors import InvalidMessage
from stafeta.message import Kind, check_payload


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.INT, b"-12"),
        (Kind.SHORT_REAL, b"0.07"),
        (Kind.FLOAT, b"1234.4321"),
        (Kind.FLOAT, b"12"),
        (Kind.STRING, "ștafetă".encode()),
        (Kind.JSON, b'{"a": [1, null, "\xc8\x99"]}'),
        (Kind.BYTES, b"\xff\x00"),
    ],
)
def test_what_is_of_its_kind_passes(kind: Kind, payload: bytes) -> None:
    check_payload(kind, payload)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.INT, b"1.0"),
        (Kind.INT, b"+1"),
        (Kind.SHORT_REAL, b"1.5"),
        (Kind.FLOAT, b"1e5"),
        (Kind.FLOAT, b".5"),
        (Kind.STRING, b"\xff"),
        (Kind.JSON, b"{"),
        (Kind.JSON, b"NaN"),
        (Kind.JSON, b"[-Infinity]"),
        (Kind.JSON, '"ș"'.encode("utf-16")),
        (Kind.JSON, b"[" * 100_000),
    ],
)
def test_what_is_not_is_refused_by_its_name(kind: Kind, payload: bytes) -> None:
    with pytest.raises(InvalidMessage, match=f"is not of the kind {kind.word}"):
        check_payload(kind, payload)
