"""A target: something that takes any bytes, and keeps its promise or raises what is no promise of anybody's."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_CUTS = 4
_MOST_PIECES = 60


class Target(NamedTuple):
    name: str
    run: Callable[[bytes], None]
    """Asserts what holds for these bytes. Whatever it raises is a bug."""
    seeds: Sequence[bytes]
    """Inputs to begin with: valid ones, and those that have been a bug."""
    longest: int = 4096
    """As long as inputs get where more would say nothing new."""


def streamed(stream: bytes, cuts: bytes = b"\x01\x02\x07\x00") -> bytes:
    """The input of a target that reads a stream: how to cut it, and the stream."""
    return cuts[:_CUTS].ljust(_CUTS, b"\0") + stream


def unstreamed(data: bytes) -> tuple[bytes, list[bytes]]:
    """A stream, and the same in pieces."""
    stream = data[_CUTS:]
    return stream, list(_pieces(stream, data[:_CUTS]))


def _pieces(stream: bytes, lengths: bytes) -> Iterator[bytes]:
    """Pieces of these lengths, many of the last one, and what is left. 0 is a piece with nothing in it."""
    at = 0
    for length in (*lengths, *(lengths[-1:] * _MOST_PIECES)):
        yield stream[at : at + length]
        at += length
    yield stream[at:]
