"""Offsets in blocks of 64: which of them the lake and the log hold, and whether they hold the same.

1. Of a block each side has one long, with a bit for each offset that is there, and the number of rows. So one pass over
   the rows, and a shuffle of a sixty-fourth of them, proves that no offset is missing and none is there twice.
2. What both have is compared by a hash of each message; of a block, by the XOR of these.
3. Blocks in which everything is as it should be are counted, by topic, and not reported.
4. A block of which rows are there twice, or not alike, is looked at row by row (`doubtful_rows`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as sf

from stafeta.message import COLUMNS
from stafeta.pipeline.local_frame import local_frame
from stafeta.ranges import first_missing, union, without

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH: Final = 64  # offsets in a block: bits of a long
CONTENT: Final = (*COLUMNS[1:], "counter")
_PIECE: Final = 1 << 20  # blocks that are made of one row
_EXPECTED, _LAKE, _LOG = 0, 1, 2
_BITS: Final = ("absent", "unsaid", "lost", "gap")
_BOUNDS: Final = (
    "topic string, said array<struct<start: bigint, stop: bigint>>, "
    "absent array<struct<start: bigint, stop: bigint>>, log_from bigint, log_to bigint, lowest bigint, newest bigint, "
    "wanted array<struct<start: bigint, stop: bigint>>"
)
# Whether a message of one side should be on the other as well. As a rule one range is said, and going through an array
# for each row takes long.
_SHARED: Final = {
    _LAKE: "offset >= log_from AND offset < log_to",
    _LOG: "coalesce(offset >= get(said, 0).start AND offset < get(said, 0).stop, false) OR "
    "(size(said) > 1 AND exists(said, one -> offset >= one.start AND offset < one.stop))",
}


class Bounds(NamedTuple):
    """What there should be of a topic: `said` to be archived by the lake, and held by the log, from `first` up to, not
    including, `next`; both 1 where it holds nothing. Together they have everything that is not `absent`, as the lake
    says, or `skipped`, as the log does."""

    topic: str
    said: tuple[tuple[int, int], ...] = ()
    first: int = 1
    next: int = 1
    absent: tuple[tuple[int, int], ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def lowest(self) -> int:
        """The first offset that there should be: of what was never archived, the log's first."""
        return first_missing(self.absent) if self.said or self.absent else self.first

    @property
    def nowhere(self) -> list[tuple[int, int]]:
        return union([*self.absent, *self.skipped])

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """The offsets that there should be."""
        return without([(self.lowest, self.newest)], self.nowhere)

    @property
    def newest(self) -> int:
        return max(self.next, *(stop for _, stop in self.said), 1)


class Block(NamedTuple):
    """Of 64 offsets, from 64 * `block` on, those that are wrong, as bits. Where `block` is None: all that is right of a
    topic."""

    topic: str
    block: int | None
    messages: int
    twice: bool
    unlike: bool
    absent: int
    """said to be archived, and not in the files"""
    unsaid: int
    """in the files, and not said to be archived"""
    lost: int
    """the log should hold it, and does not"""
    gap: int
    """in neither"""


class DoubtfulRow(NamedTuple):
    topic: str
    offset: int
    in_lake: int
    in_log: int
    alike: bool


def bounds_frame(spark: "SparkSession", bounds: Iterable[Bounds]) -> "DataFrame":
    rows = [
        (one.topic, [*one.said], one.nowhere, one.first, one.next, one.lowest, one.newest, one.wanted)
        for one in bounds
    ]
    return local_frame(spark, rows, _BOUNDS)


def blocks(lake: "DataFrame", log: "DataFrame", bounds: "DataFrame") -> "DataFrame":
    """What is wrong, and how much is right, in the columns of `Block`. Both frames have the columns of `messages`."""
    rows = _placed(lake, bounds, _LAKE).union(_placed(log, bounds, _LOG)).union(_expected(bounds))
    held = rows.groupBy("topic", "block").agg(
        sf.expr(f"count_if(side = {_LAKE})").alias("lake_rows"),
        sf.expr(f"count_if(side = {_LOG})").alias("log_rows"),
        sf.expr(f"bit_or(if(side = {_LAKE}, bit, 0L))").alias("lake_bits"),
        sf.expr(f"bit_or(if(side = {_LOG}, bit, 0L))").alias("log_bits"),
        sf.expr(f"bit_xor(if(side = {_LAKE}, mark, 0L))").alias("lake_mark"),
        sf.expr(f"bit_xor(if(side = {_LOG}, mark, 0L))").alias("log_mark"),
    )
    masks = _with(held, bounds).selectExpr(
        "*",
        f"{_masks('said')} AS said_bits",
        f"{_masks('absent')} AS absent_bits",
        f"{_mask('log_from', 'log_to')} AS held_bits",
        f"{_mask('lowest', 'newest')} AS whole_bits",
    )
    judged = masks.selectExpr(
        "topic",
        "block",
        "bit_count(lake_bits | log_bits) AS messages",
        "lake_rows > bit_count(lake_bits) OR log_rows > bit_count(log_bits) AS twice",
        "lake_mark != log_mark AND lake_bits != 0 AND log_bits != 0 AS unlike",
        "said_bits & ~lake_bits AS absent",
        "lake_bits & ~said_bits AS unsaid",
        "held_bits & ~(log_bits | absent_bits) AS lost",
        "whole_bits & ~(lake_bits | log_bits | absent_bits) AS gap",
    )
    wrong = f"twice OR unlike OR {' OR '.join(f'{name} != 0' for name in _BITS)}"
    return (
        judged.withColumn("key", sf.expr(f"if({wrong}, block, null)"))
        .groupBy("topic", "key")
        .agg(
            sf.sum("messages").alias("messages"),
            *(sf.expr(f"bool_or({name})").alias(name) for name in ("twice", "unlike")),
            *(sf.expr(f"bit_or({name})").alias(name) for name in _BITS),
        )
        .withColumnRenamed("key", "block")
        .select(*Block._fields)
    )


def unarchived(log: "DataFrame", bounds: "DataFrame") -> "DataFrame":
    """What the log holds and the lake does not say to have."""
    return _with(log, bounds).where(f"offset >= log_from AND offset < log_to AND NOT ({_SHARED[_LOG]})")


def collected(frame: "DataFrame", most: int) -> list[Block]:
    """At most so many blocks; those of what is right first."""
    found = frame.orderBy(sf.col("block").isNotNull(), "topic", "block").limit(most).collect()
    return [Block(*row) for row in found]


def doubtful_rows(
    lake: "DataFrame", log: "DataFrame", bounds: "DataFrame", doubtful: Sequence[tuple[str, int]], most: int
) -> list[DoubtfulRow]:
    """Of these blocks, each a topic and a number, the offsets that a side has twice, or that are not alike."""
    wanted = sf.broadcast(local_frame(bounds.sparkSession, doubtful, "topic string, block bigint"))
    rows = (
        _placed(lake, bounds, _LAKE, singly=True)
        .union(_placed(log, bounds, _LOG, singly=True))
        .join(wanted, ["topic", "block"], "left_semi")
    )
    found = (
        rows.groupBy("topic", "offset")
        .agg(
            sf.expr(f"count_if(side = {_LAKE})").alias("in_lake"),
            sf.expr(f"count_if(side = {_LOG})").alias("in_log"),
            # As soon as both have it, and something of it is not the same:
            sf.expr(
                f"count_if(side = {_LAKE}) = 0 OR count_if(side = {_LOG}) = 0 OR min(mark) = max(mark)"
            ).alias("alike"),
        )
        .where("in_lake > 1 OR in_log > 1 OR NOT alike")
        .orderBy("topic", "offset")
        .limit(most)
    )
    return [DoubtfulRow(*row) for row in found.collect()]


def ranges_of(block: int, bits: int) -> Iterator[tuple[int, int]]:
    """The offsets of a block whose bits are set."""
    bits &= (1 << WIDTH) - 1  # a long has a sign
    base = block * WIDTH
    while bits:
        low = (bits & -bits).bit_length() - 1
        high = low
        while bits >> high & 1:
            high += 1
        yield base + low, base + high
        bits &= -1 << high


def _placed(frame: "DataFrame", bounds: "DataFrame", side: int, *, singly: bool = False) -> "DataFrame":
    """Each message as a bit of its block, and its mark, where the other side should have the same. Where messages are
    looked at singly, with its offset, and always with its mark."""
    rows = _with(frame, bounds)
    if side == _LOG:  # of what has come since the bounds were looked up nothing is said
        rows = rows.where("offset >= log_from AND offset < log_to")
    mark = f"xxhash64({', '.join(CONTENT)})"
    return rows.selectExpr(
        "topic",
        f"shiftright(offset, {WIDTH.bit_length() - 1}) AS block",
        f"{side} AS side",
        f"shiftleft(1L, cast(offset & {WIDTH - 1} AS int)) AS bit",
        f"{mark if singly else f'if({_SHARED[side]}, {mark}, 0L)'} AS mark",
        *(["offset"] if singly else []),
    )


def _expected(bounds: "DataFrame") -> "DataFrame":
    """The blocks that there should be, so that one without a row is missed."""
    ranges = bounds.selectExpr("topic", "explode(wanted) AS one").selectExpr(
        "topic", f"one.start div {WIDTH} AS low", f"(one.stop - 1) div {WIDTH} AS high"
    )
    pieces = ranges.selectExpr("topic", "high", f"explode(sequence(low, high, {_PIECE}L)) AS piece")
    numbered = pieces.selectExpr(
        "topic", f"explode(sequence(piece, least(high, piece + {_PIECE - 1}))) AS block"
    )
    return numbered.selectExpr("topic", "block", f"{_EXPECTED} AS side", "0L AS bit", "0L AS mark")


def _with(frame: "DataFrame", bounds: "DataFrame") -> "DataFrame":
    """The rows with the bounds of their topic; of one that nobody knows there should be nothing."""
    defaults = {"log_from": "1L", "log_to": "1L", "lowest": "1L", "newest": "1L"}
    rows = frame.join(sf.broadcast(bounds), "topic", "left")
    return rows.withColumns(
        {name: sf.expr(f"coalesce({name}, {value})") for name, value in defaults.items()}
        | {name: sf.expr(f"coalesce({name}, array())") for name in ("said", "absent")}
    )


def _masks(ranges: str) -> str:
    return f"aggregate({ranges}, 0L, (bits, one) -> bits | {_mask('one.start', 'one.stop')})"


def _mask(start: str, stop: str) -> str:
    """The bits of a range of offsets within the row's block, in SQL."""
    low = f"greatest({start} - block * {WIDTH}, 0L)"
    high = f"least({stop} - block * {WIDTH}, {WIDTH}L)"
    bits = f"shiftleft(shiftrightunsigned(-1L, cast({WIDTH} - ({high} - {low}) AS int)), cast({low} AS int))"
    return f"if({high} > {low}, {bits}, 0L)"
