"""Checksums of rows: made by the database as it writes a row, looked at when the row is read.

A row in which one bit was flipped is put right: of all the rows that differ from it by that much, one has the checksum.
"""

from collections.abc import Iterator
from typing import Any

from isal.isal_zlib import crc32

Value = Any  # int, str, bytes or None
Row = tuple[Value, ...]


def seal(*values: Value) -> int:
    """The checksum of a table's name and a row's values."""
    return crc32(repr(values).encode())


def opened(table: str, row: Row) -> Row | None:
    """The values of a row that ends with its checksum; None where it is damaged, and not by one bit."""
    values = row[:-1]
    if seal(table, *values) == row[-1]:
        return values
    return mended(table, row)


def mended(table: str, row: Row) -> Row | None:
    *values, expected = row
    if isinstance(expected, int) and (seal(table, *values) ^ expected).bit_count() == 1:
        return tuple(values)  # it is the checksum itself
    for at, value in enumerate(values):
        for near in _near(value):
            candidate = (*values[:at], near, *values[at + 1 :])
            if seal(table, *candidate) == expected:
                return candidate
    return None


def _near(value: Value) -> Iterator[Value]:
    """Whatever becomes of a value when a bit of it is flipped."""
    if isinstance(value, int):
        for bit in range(63):
            yield value ^ 1 << bit
            yield value ^ -(
                1 << bit
            )  # numbers are stored in as few bytes as they need: the highest is a sign
    elif isinstance(value, str | bytes):
        stored = value.encode(errors="surrogateescape") if isinstance(value, str) else value
        for bit in range(8 * len(stored)):
            other = bytearray(stored)
            other[bit // 8] ^= 1 << bit % 8
            yield text(bytes(other)) if isinstance(value, str) else bytes(other)


def text(stored: bytes) -> str:
    """Text as it is stored, which may be damaged."""
    return stored.decode(errors="surrogateescape")
