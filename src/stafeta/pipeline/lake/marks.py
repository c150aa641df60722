"""Checksums of messages, by which a log is known again as the one that was archived.

Of each topic the lake has that of the last message that was archived. A log that is another one, or was put back from a
copy and written to since, has another message at that offset: it is at or behind the place where the two part.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

Marks = dict[str, tuple[int, int]]
"""By topic: an offset, and the checksum of the message there."""
COLUMNS: Final = ("timestamp", "producer", "source", "kind", "payload", "counter")
_TIME: Final = pa.timestamp("us", "UTC")


def checksums(rows: pa.RecordBatch) -> list[int]:
    """A checksum for each message, of these columns."""
    times = rows.column("timestamp").cast(_TIME).cast(pa.int64()).to_pylist()
    others = [rows.column(name).to_pylist() for name in COLUMNS if name != "timestamp"]
    return [zlib.crc32(repr(one).encode()) for one in zip(times, *others, strict=True)]


def newest(one: Marks, other: Mapping[str, tuple[int, int]]) -> Marks:
    """Of each topic the one with the higher offset."""
    later = {topic: mark for topic, mark in other.items() if mark >= one.get(topic, (0, 0))}
    return {**one, **later}
