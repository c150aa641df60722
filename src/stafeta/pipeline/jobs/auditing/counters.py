"""Whether a producer's counter is there twice, on one topic.

1. One that counts has no number twice, unless it begins to count anew, with other messages. Its numbers show it:
   most are the one after the number before.
2. One that draws its numbers may draw one again: that is another message, unless it is one of the producer's last few
   with the same payload, which the broker takes for a retry. (docs/protocols/zeromq.md)
3. The numbers are looked at in blocks of 64, as offsets are. Only where a block has more rows than numbers, its
   producer's rows are.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from stafeta.pipeline.jobs.auditing.findings import Tally
from stafeta.pipeline.local_frame import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REMEMBERED: Final = 8  # of a producer that draws its counters: within so many the broker recognises a retry
MOST: Final = 10_000  # counters that are reported
COLUMNS: Final = ("topic", "offset", "producer", "payload", "counter")


class Sent(NamedTuple):
    """A message among those of its producer on a topic: its place, its offset, and a hash of its payload."""

    place: int
    offset: int
    mark: int


class Repeated(NamedTuple):
    topic: str
    producer: str
    counter: int
    sent: tuple[Sent, ...]
    counts: bool
    """The producer is one that counts (rule 1)."""


def producers_in_doubt(messages: "DataFrame", most: int) -> list[tuple[str, str]]:
    """Topics and producers of which a counter seems to be there twice. It may be the message that is there twice."""
    counted = messages.where("counter IS NOT NULL").selectExpr(
        "topic",
        "producer",
        "shiftright(counter, 6) AS block",
        "shiftleft(1L, cast(counter & 63 AS int)) AS bit",
    )
    found = (
        counted.groupBy("topic", "producer", "block")
        .agg(sf.count("*").alias("rows"), sf.expr("bit_or(bit)").alias("bits"))
        .where("rows > bit_count(bits)")
        .select("topic", "producer")
        .distinct()
        .orderBy("topic", "producer")
        .limit(most)
    )
    return [(row["topic"], row["producer"]) for row in found.collect()]


def repeated(messages: "DataFrame", producers: Sequence[tuple[str, str]], most: int = MOST) -> list[Repeated]:
    """The counters of these producers that are at more than one offset."""
    wanted = sf.broadcast(local_frame(messages.sparkSession, producers, "topic string, producer string"))
    key = ["topic", "producer"]
    in_order = Window.partitionBy(*key).orderBy("offset")
    rows = (
        messages.where("counter IS NOT NULL")
        .join(wanted, key, "left_semi")
        .selectExpr(*key, "counter", "offset", "xxhash64(payload) AS mark")
        .dropDuplicates(["topic", "producer", "offset"])
        .withColumn("place", sf.row_number().over(in_order))
        .withColumn("steps", (sf.col("counter") == sf.lag("counter").over(in_order) + 1).cast("bigint"))
    )
    numbers = rows.groupBy(*key, "counter").agg(
        sf.sort_array(sf.collect_list(sf.struct("place", "offset", "mark"))).alias("sent"),
        sf.sum("steps").alias("steps"),
    )
    of_producer = Window.partitionBy(*key)
    steps = sf.coalesce(sf.sum("steps").over(of_producer), sf.lit(0))
    found = (
        numbers.withColumn("counts", steps * 2 >= sf.sum(sf.size("sent")).over(of_producer) - 1)
        .where("size(sent) > 1")
        .orderBy(*key, "counter")
        .limit(most)
    )
    return [
        Repeated(
            row["topic"],
            row["producer"],
            row["counter"],
            tuple(Sent(*one) for one in row["sent"]),
            row["counts"],
        )
        for row in found.collect()
    ]


def judge(tally: Tally, found: Sequence[Repeated]) -> None:
    """Adds those that are wrong."""
    anew = {
        (one.topic, one.producer, one.counter, again.place)
        for one in found
        for before, again in _repetitions(one)
        if all(earlier.mark != again.mark for earlier in before)
    }
    for one in found:
        what = f"a counter of producer {one.producer!r} again"
        for before, again in _repetitions(one):
            same = [earlier for earlier in before if earlier.mark == again.mark]
            retried = any(again.place - earlier.place <= REMEMBERED for earlier in same)
            begun_anew = any(
                (one.topic, one.producer, one.counter + step, again.place + step) in anew for step in (-1, 1)
            )
            if retried or (one.counts and (same or not begun_anew)):
                tally.add("counters", one.topic, what, [(again.offset, again.offset + 1)])


def _repetitions(one: Repeated) -> Iterator[tuple[Sequence[Sent], Sent]]:
    """Each message whose counter was there before, after those that had it."""
    for place in range(1, len(one.sent)):
        yield one.sent[:place], one.sent[place]
