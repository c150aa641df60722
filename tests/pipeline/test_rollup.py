"""The job rollup: each window once in the lake and once in its topic, whatever is repeated."""

import errno
import json
import math
import os
import shutil
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple
from unittest.mock import ANY

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.cli.main import main
from stafeta.config import Config
from stafeta.config.options import Lake as Settings
from stafeta.config.options import Rollup as Sizes
from stafeta.errors import ConfigError, OutOfSequence, Unsound
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.batches import reading_source
from stafeta.pipeline.jobs.batches.readings import readings_of
from stafeta.pipeline.jobs.batches.stateful import last_notes
from stafeta.pipeline.jobs.rolling.window_rows import finished, published
from stafeta.pipeline.jobs.rolling.windows import Windows, summed_up
from stafeta.pipeline.jobs.rollup import JOB, Rolling, Rollup, figures
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.queries import address, connect, setting
from tests.waiting import PATIENCE, wait_until

BEGIN = datetime(2026, 11, 16, 8, tzinfo=UTC)
SECOND = 1_000_000


def at(second: float) -> str:
    return (BEGIN + timedelta(seconds=second)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def sent(broker: BrokerProcess, topic: str, *readings: tuple[float, float]) -> None:
    """Publishes readings: the second after `BEGIN` that each tells, and the number."""
    times = pa.array([BEGIN + timedelta(seconds=second) for second, _ in readings], pa.timestamp("us", "UTC"))
    with connect(broker) as connection:
        connection.publish(
            topic,
            pa.table({"timestamp": times, "payload": [f"{number:g}" for _, number in readings]}),
            kind="float",
        )


def in_topics(broker: BrokerProcess, subscribe: str = "rollup/#") -> list[tuple[str, str, int]]:
    """Of all windows in topics: the topic, when it began, and how many readings it has."""
    found = []
    with connect(broker) as connection:
        for info in connection.topics(subscribe):
            for row in connection.read(info.topic).to_pylist():
                window = json.loads(row["payload"])
                assert row["kind"] == "json"
                assert info.topic == f"rollup/{window['size']}/{window['topic']}"
                found.append((info.topic, window["start"], window["count"]))
    return sorted(found)


def in_lake(lake: Lake) -> list[tuple[str, str, int]]:
    """The same of those in the lake."""
    if not lake.has("rollups"):
        return []
    rows = lake.table("rollups").scan().to_arrow().to_pylist()
    return sorted(
        (f"rollup/{row['size']}/{row['topic']}", at((row["start"] - BEGIN).total_seconds()), row["count"])
        for row in rows
    )


# --- a micro-batch, by hand


class Hand:
    """A rollup whose micro-batches are given to it, and repeated, at will."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.lake = Lake(Settings(warehouse=str(folder / "lake")))
        self.rollup = Rollup(
            lake=self.lake,
            broker=address(broker),
            folder=str(folder / "windows"),
            name="rollup/by-hand",
            sizes=(10 * SECOND,),
            delay=0,
            log=str(folder / "spark"),
        )

    def rows(self, readings: Sequence[tuple[str, float]]) -> "list[Row]":
        return [
            Row(topic, number, BEGIN + timedelta(seconds=second), float(number))
            for number, (topic, second) in enumerate(readings)
        ]

    def roll(self, number: int, *readings: tuple[str, float], **otherwise: Any) -> None:
        """Gives it a batch, as a process does that has just been started."""
        self.take(number, self.rows(readings), **otherwise)

    def take(self, number: int, rows: "Sequence[Row]", **otherwise: Any) -> None:
        rollup = replace(self.rollup, **otherwise)
        now = datetime.now(UTC).timestamp()
        Rolling(rollup).take([packed(rows, rollup, round(now * SECOND))] if rows else [], number)

    def late(self) -> int:
        return sum(last_notes(self.rollup.folder)["late"].values())


class Row(NamedTuple):
    """A reading, as the source has it."""

    topic: str
    offset: int
    timestamp: datetime
    number: float


def packed(rows: Sequence[Row], rollup: Rollup, now: int) -> tuple[int, bytes]:
    """What a task makes of readings."""
    batches = []
    for topic in sorted({row.topic for row in rows}):
        mine = pa.Table.from_pylist([row._asdict() for row in rows if row.topic == topic])
        batches += mine.combine_chunks().to_batches()
    return now, summed_up(readings_of(batches), rollup.sizes, now + rollup.delay).pack()


@pytest.fixture
def hand(broker: BrokerProcess, tmp_path: Path) -> Hand:
    return Hand(broker, tmp_path)


def test_a_clock_that_was_an_hour_ahead_mutes_no_topic_and_no_window_comes_twice(
    broker: BrokerProcess, hand: Hand
) -> None:
    def roll(number: int, now: float, *seconds: float) -> None:
        rows = hand.rows([("a", second) for second in seconds])
        Rolling(hand.rollup).take(
            [packed(rows, hand.rollup, round((BEGIN.timestamp() + now) * SECOND))], number
        )

    roll(0, 2, 1, 2)
    roll(1, 3620, 3601, 3611)
    roll(2, 13, 5, 11)  # the first of these is for a window that is closed
    roll(3, 25, 21)
    roll(4, 3625, 3602, 3612, 3625)
    windows = [(f"rollup/10s/{topic}", at(start), count) for topic, start, count in CLOSED]
    assert in_lake(hand.lake) == in_topics(broker) == windows
    assert hand.late() == 2


def test_windows_that_are_in_the_lake_are_not_closed_again_when_the_checkpoint_is_lost(
    broker: BrokerProcess, tmp_path: Path, hand: Hand
) -> None:
    hand.roll(0, ("a", 1), ("b", 2))
    hand.roll(1, ("a", 11), ("b", 12))
    windows = in_lake(hand.lake)
    shutil.rmtree(hand.rollup.folder)
    hand.rollup = replace(hand.rollup, name="rollup/anew")
    hand.roll(0, ("a", 1), ("a", 11))  # what it has not acknowledged, it reads again
    hand.roll(1, ("b", 2), ("b", 12), ("c", 3), ("a", 21))
    hand.roll(2, ("b", 21), ("c", 11))
    more = [("rollup/10s/a", at(10), 1), ("rollup/10s/b", at(10), 1), ("rollup/10s/c", at(0), 1)]
    assert in_lake(hand.lake) == in_topics(broker) == sorted([*windows, *more])
    assert hand.late() == 2


CLOSED = [("a", 0, 2), ("a", 10, 1), ("a", 20, 1), ("a", 3600, 1), ("a", 3610, 2)]


def test_a_batch_that_was_broken_off_anywhere_is_handed_on_once(
    hand: Hand, broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    nowhere = Lake(Settings(warehouse=str(tmp_path / "file")))
    hand.roll(0, ("a", 1), ("a", 2), ("b", 3))
    batch = [("a", 3.0), ("a", 25.0), ("b", 9.0)]
    with pytest.raises(ConfigError, match="cannot be opened"):
        hand.roll(1, *batch, lake=nowhere)  # it is worked out, and that is all
    assert in_lake(hand.lake) == []
    with pytest.raises(Exception, match="is no address of a Flight door"):
        hand.roll(1, *batch, broker="no address")  # it is in the lake, and not in the topics
    window = ("rollup/10s/a", at(0), 3)
    assert in_lake(hand.lake) == [window]
    assert in_topics(broker) == []
    for _ in range(2):
        hand.roll(1, *batch)
        assert in_lake(hand.lake) == in_topics(broker) == [window]
    # What is late is counted once as well.
    for _ in range(2):
        hand.roll(2, ("a", 4), ("b", 11), ("b", 30))
    assert (
        in_lake(hand.lake)
        == in_topics(broker)
        == [window, ("rollup/10s/b", at(0), 2), ("rollup/10s/b", at(10), 1)]
    )
    done = checkpoint_files.read(hand.rollup.folder, "done.json")
    assert done is not None
    assert (done["windows"], done["late"]) == (3, {"10s": 1})


def test_a_lake_that_refuses_leaves_one_copy_of_the_windows_at_the_broker(
    hand: Hand, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*batch: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def waiting() -> int:
        """Messages that are put aside."""
        with closing(sqlite3.connect(broker.data / "stafeta.db")) as database:
            found: int = database.execute("SELECT coalesce(sum(count), 0) FROM staged").fetchone()[0]
            return found

    hand.roll(0, ("a", 1), ("b", 2))
    batch = [("a", 11.0), ("b", 12.0)]
    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(Lake, "append", refuse)
            with pytest.raises(OSError, match="No space left"):
                hand.roll(1, *batch)
        assert waiting() == 2
    hand.roll(1, *batch)
    assert in_lake(hand.lake) == in_topics(broker) == [(f"rollup/10s/{topic}", at(0), 1) for topic in "ab"]
    assert waiting() == 0


def test_windows_of_a_size_that_is_not_wanted_any_more_end_as_what_they_are(
    hand: Hand, broker: BrokerProcess
) -> None:
    hand.roll(0, ("a", 1), sizes=(10 * SECOND, 15 * SECOND))
    hand.roll(1, ("a", 12))
    hand.roll(2, ("a", 60))
    windows = [("rollup/10s/a", at(0), 1), ("rollup/10s/a", at(10), 1), ("rollup/15s/a", at(0), 1)]
    assert in_lake(hand.lake) == in_topics(broker) == windows


def test_windows_are_on_the_disk_before_anybody_relies_on_them(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    named: dict[str, set[str]] = {}
    fsync, rename = os.fsync, os.replace

    def note_sync(handle: int) -> None:
        fsync(handle)
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))

    def note_name(draft: Path, path: Path) -> None:
        assert str(draft) in synced
        named.setdefault(str(path), set(synced))
        rename(draft, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_name)
    hand.roll(0, ("a", 1), ("b", 2), ("b", 30))
    place = Path(hand.rollup.folder) / "0"
    (written,) = [path for path in place.iterdir() if path.name != "done.json"]
    before = named[str(place / "done.json")]
    assert str(written) in named, "it is seen whole or not at all"
    assert {str(place), str(place.parent)} <= before
    assert str(place) in synced, "and then its name"


def test_while_nothing_changes_nothing_is_written_again(hand: Hand, broker: BrokerProcess) -> None:
    """Windows of many topics may be open for a day."""
    hand.roll(0, ("a", 1), ("b", 30), ("a", 31))
    files = []
    for number in range(4):
        if number:
            hand.roll(number)
        (file,) = (Path(hand.rollup.folder) / str(number)).glob("*.arrow")
        files.append((file.name, file.stat().st_ino))
    assert files[0] != files[1] == files[2] == files[3], "the first had a window that is closed"
    hand.roll(4, ("a", 45), ("b", 46))
    windows = [("rollup/10s/a", at(0), 1), ("rollup/10s/a", at(30), 1), ("rollup/10s/b", at(30), 1)]
    assert in_lake(hand.lake) == in_topics(broker) == windows


@pytest.mark.parametrize("batch", [0, 1, 2], ids=["lost", "the same batch", "a later batch"])
def test_a_checkpoint_that_is_older_than_what_came_of_it_is_not_gone_on_with(
    hand: Hand, broker: BrokerProcess, tmp_path: Path, batch: int
) -> None:
    """It was put back, or copied and gone on with elsewhere."""
    checkpoint_files.write(hand.rollup.log, "metadata", {"id": "query"})
    hand.roll(0, ("a", 1))
    shutil.copytree(hand.rollup.folder, tmp_path / "copy")
    hand.roll(1, ("a", 2), ("a", 15))
    windows = [("rollup/10s/a", at(0), 2)]
    shutil.rmtree(hand.rollup.folder)
    shutil.copytree(tmp_path / "copy", hand.rollup.folder)
    if batch == 0:
        shutil.rmtree(Path(hand.rollup.folder) / "0")
    for number in range(1, batch):
        hand.roll(number, ("a", 2))
    for _ in range(2):
        with pytest.raises((Unsound, OutOfSequence), match="checkpoint"):
            hand.roll(batch, ("a", 2), ("a", 15), ("a", 25))
    assert in_lake(hand.lake) == in_topics(broker) == windows


def test_windows_that_are_missing_are_told(hand: Hand) -> None:
    hand.roll(0, ("a", 1))
    shutil.rmtree(Path(hand.rollup.folder) / "0")
    with pytest.raises(Unsound, match="What rollup knew after micro-batch 0 is missing"):
        hand.roll(1, ("a", 2))


def test_windows_that_are_damaged_are_told(hand: Hand) -> None:
    hand.roll(0, ("a", 1))
    (file,) = (Path(hand.rollup.folder) / "0").glob("*.arrow")
    content = file.read_bytes()
    place = content.rindex(struct.pack("<q", 10 * SECOND))  # the size of the window
    file.write_bytes(content[:place] + b"\1" + content[place + 1 :])
    with pytest.raises(Unsound, match="of micro-batch 0 is damaged"):
        hand.roll(1, ("a", 2))


def test_windows_of_an_earlier_version_are_gone_on_with(
    spark: SparkSession, hand: Hand, broker: BrokerProcess
) -> None:
    """They were rows of Spark's, in Parquet, with the sketches that Spark makes."""
    from pyspark.sql import functions as sf

    edge = sf.struct("timestamp", "offset", "number")
    counts = {"many": 5_000, "few": 3, "one": 1}
    readings = [
        Row(topic, number, BEGIN + timedelta(milliseconds=number), float(number * 7 % 5_000))
        for topic, count in counts.items()
        for number in range(count)
    ]
    frame = spark.createDataFrame(readings, "topic string, offset bigint, timestamp timestamp, number double")
    windows = frame.groupBy("topic").agg(
        sf.lit(10 * SECOND).cast("bigint").alias("size"),
        sf.lit(round(BEGIN.timestamp()) * SECOND).cast("bigint").alias("start"),
        sf.count("number").alias("count"),
        sf.avg("number").alias("mean"),
        (sf.var_pop("number") * sf.count("number")).alias("m2"),
        sf.min("number").alias("min"),
        sf.max("number").alias("max"),
        sf.min(edge).alias("first"),
        sf.max(edge).alias("last"),
        sf.kll_sketch_agg_double("number").alias("sketch"),
    )
    nothing = [sf.lit(None).cast(windows.schema[name].dataType).alias(name) for name in windows.columns[4:]]
    zero = [sf.lit(0).cast("bigint").alias(name) for name in ("size", "count")]
    before = sf.lit(round(BEGIN.timestamp() + 6) * SECOND).cast("bigint").alias("start")
    clocks = windows.select("topic", zero[0], before, zero[1], *nothing)
    closed = windows.where("topic = 'few'").withColumn("start", sf.col("start") - 10 * SECOND)
    fates = ((windows.unionByName(clocks), "open"), (closed, "closed"))
    rows = reduce(DataFrame.unionByName, (frame.withColumn("fate", sf.lit(fate)) for frame, fate in fates))
    folder = f"{hand.rollup.folder}/0"
    rows.write.partitionBy("fate").parquet(f"{folder}/attempt")
    done = {
        "folder": f"{folder}/attempt",
        "sizes": [10 * SECOND],
        "open": 6,
        "closed": 1,
        "windows": 1,
        "late": {},
    }
    checkpoint_files.write(folder, "done.json", done)

    hand.roll(0)  # which was computed, and not yet handed on
    assert in_lake(hand.lake) == in_topics(broker) == [("rollup/10s/few", at(-10), 3)]
    hand.roll(1, *((topic, second) for topic in counts for second in (-3.0, 5.5, 30.0)))
    assert in_lake(hand.lake) == in_topics(broker)
    assert checkpoint_files.read(hand.rollup.folder, "done.json") == {
        "late": {"10s": 3}, "windows": 4, "closed": 3, "open": 6, "ahead": 0, "sizes": [10 * SECOND], "file": ANY,
        "before": None, "last": 1,
    }  # fmt: skip
    found = {
        row["topic"]: row
        for row in hand.lake.table("rollups")
        .scan("start >= '2026-11-16T08:00:00+00:00'")
        .to_arrow()
        .to_pylist()
    }
    assert {topic: row["count"] for topic, row in found.items()} == {
        topic: count + 1 for topic, count in counts.items()
    }
    many = found["many"]
    assert (many["min"], many["max"], many["first"]) == (0.0, 4999.0, 0.0)
    assert many["mean"] == pytest.approx(2499.5, rel=1e-3)
    assert many["stddev"] == pytest.approx(1443.4, rel=1e-3)
    assert [many[name] / 5_000 for name in ("p50", "p95", "p99")] == pytest.approx(
        [0.5, 0.95, 0.99], abs=0.0166
    )
    few = sorted([0.0, 7.0, 14.0, found["few"]["last"]])
    assert (found["few"]["p50"], found["few"]["p99"]) == (few[1], few[3])
    assert found["one"]["p50"] == min(0.0, found["one"]["last"])


def test_names_that_are_too_long_for_a_topic_go_to_the_lake_alone(hand: Hand, broker: BrokerProcess) -> None:
    short = "x" * (255 - len("rollup/10s/"))
    deep = "/".join("x" * 62)
    named = [short, short + "x", deep, deep + "/x"]
    hand.roll(0, *((topic, second) for topic in named for second in (1, 20)))
    assert sorted(topic for topic, _, _ in in_lake(hand.lake)) == sorted(f"rollup/10s/{one}" for one in named)
    assert sorted(topic for topic, _, _ in in_topics(broker)) == sorted(
        [f"rollup/10s/{short}", f"rollup/10s/{deep}"]
    )


def test_a_window_is_published_as_json(hand: Hand, broker: BrokerProcess) -> None:
    hand.roll(0, ("a", 1), ("a", 20))
    with connect(broker) as connection:
        (row,) = connection.read("rollup/10s/a").to_pylist()
    assert row["kind"] == "json"
    assert row["payload"].decode() == (
        f'{{"topic":"a","size":"10s","start":"{at(0)}","end":"{at(10)}","count":1,"min":0.0,"max":0.0,"mean":0.0,'
        '"stddev":null,"p50":0.0,"p95":0.0,"p99":0.0,"first":0.0,"last":0.0}'
    )


def test_messages_are_those_of_sparks_to_json(spark: SparkSession) -> None:
    """To the byte. (Some numbers have more digits in an older Java than they need: they are not among these.)"""
    from pyspark.sql import functions as sf

    numbers = [
        0.0,
        -0.0,
        1.0,
        20.13,
        -5.5,
        0.001,
        0.00099,
        1e-5,
        -1.25e-9,
        9999999.0,
        1e7,
        12345678.9,
        3e10,
        1e22,
    ]
    numbers += [123456.789, 1e100, 1.7976931348623157e308, -1e15, 0.1, 1 / 3, math.inf, -math.inf, math.nan]
    rows = [
        Row(topic, place, BEGIN + timedelta(microseconds=place * 10 * SECOND + 7), number)
        for topic in ("upb/hall", 'a"b\\c', "größe/☃/\U0001f600")
        for place, number in enumerate(numbers)
    ]
    rows += [row._replace(offset=1_000 + row.offset, number=row.number * 3) for row in rows]
    everything = Rollup(Lake(Settings()), "", "", "", (10 * SECOND, 86_400 * SECOND), 0, "")
    _, parts = packed(rows, everything, 0)
    windows = Windows.unpack(parts)
    table = finished(windows.where(windows["size"] > 0), {10 * SECOND: "10s", 86_400 * SECOND: "1d"})
    with setting(spark, "spark.sql.session.timeZone", "UTC"):
        frame = spark.createDataFrame(table)
        finite = [
            sf.when(sf.abs(name) < float("inf"), sf.col(name)).alias(name)
            if kind == "double"
            else sf.col(name)
            for name, kind in frame.dtypes
        ]
        options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}
        wanted = [row[0] for row in frame.select(sf.to_json(sf.struct(*finite), options)).collect()]
    assert published(table, "rollup").column("payload").to_pylist() == wanted


def test_what_is_not_finite_is_null_in_json_and_a_double_in_the_lake(
    hand: Hand, broker: BrokerProcess
) -> None:
    """In Spark's ordering NaN is above all numbers, infinity included."""
    numbers = {"up": [1.0, math.inf, 3.0], "down": [-math.inf, 2.0], "none": [math.nan, 4.0]}
    rows = [
        Row(topic, place, BEGIN + timedelta(seconds=second), number)
        for topic, given in numbers.items()
        for place, (second, number) in enumerate(zip((1, 2, 3), given, strict=False))
    ]
    rows += [Row(topic, 9, BEGIN + timedelta(seconds=30), 0.0) for topic in numbers]
    hand.take(0, rows)
    with connect(broker) as connection:
        (up, down, none) = (
            json.loads(connection.read(f"rollup/10s/{topic}").column("payload")[0].as_py())
            for topic in numbers
        )
    assert {type(value) for window in (up, down, none) for value in list(window.values())[5:]} <= {
        float,
        NoneType,
    }
    assert (up["count"], up["min"], up["max"], up["mean"], up["stddev"]) == (3, 1.0, None, None, None)
    assert (up["p50"], up["p99"], up["first"], up["last"]) == (3.0, None, 1.0, 3.0)
    assert (down["min"], down["max"], down["first"], down["last"]) == (None, 2.0, None, 2.0)
    assert (none["count"], none["mean"], none["first"], none["last"]) == (2, None, None, 4.0)
    kept = {row["topic"]: row for row in hand.lake.table("rollups").scan().to_arrow().to_pylist()}
    assert (kept["up"]["max"], kept["down"]["min"]) == (math.inf, -math.inf)
    assert math.isnan(kept["none"]["first"])


# --- the job


class Rollups:
    """The job with a checkpoint, to be run again and again."""

    def __init__(self, spark: SparkSession, config: Config, folder: Path) -> None:
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self.config = config
        self.lake = Lake(config.lake)

    @property
    def context(self) -> Context:
        return Context(self._spark, self.config, "rollup", str(self._checkpoint), once=True)

    def run(self) -> StreamingQuery:
        """Rolls up what is there, and ends."""
        (query,) = JOB.start(self.context)
        assert query.awaitTermination(PATIENCE), "the job does not end"
        return query

    def lose_power(self) -> None:
        """As if the machine had lost power after the last micro-batch was done, before it was acknowledged: of what was
        not synced, names are left without anything in the files."""
        commits = self._checkpoint / "commits"
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdecimal())
        (commits / str(last)).write_bytes(b"")
        (self._checkpoint / "offsets" / str(last + 1)).write_bytes(b"")
        checkpoint_files.write(str(self._checkpoint), "synced.json", {"commit": last - 1, "boot": "another"})


def test_the_job_goes_on_where_it_was_and_counts_every_reading_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `once`, what is over by the time of the day is closed: not only what later readings have closed. Some
    micro-batches have enough messages to be jobs of Spark's."""
    monkeypatch.setattr(reading_source, "FEW", 3)
    config = replace(config_of(broker, tmp_path), rollup=Sizes(sizes=(10.0, 15.0), delay=1.0))
    rolling = Rollups(spark, config, tmp_path)
    rolling.run()  # of an empty broker
    assert figures(rolling.context).get("windows", 0) == 0

    sent(broker, "upb/hall", (1, 20), (12, 21), (2, 19))
    with connect(broker) as connection:
        connection.publish("upb/text", ["no number"])
    rolling.run()
    first = [("rollup/10s/upb/hall", at(0), 2), ("rollup/10s/upb/hall", at(10), 1)]
    first.append(("rollup/15s/upb/hall", at(0), 3))
    assert in_lake(rolling.lake) == in_topics(broker) == first

    # What comes for windows that are not closed is not late, however long ago it was; and what is not over stays open.
    soon = (datetime.now(UTC) + timedelta(minutes=50) - BEGIN).total_seconds()
    sent(broker, "upb/hall", (16.5, 22), (3, 0), (soon, 99))
    rolling.lose_power()  # it is repeated, and then come the new ones
    rolling.run()
    second = [*first, ("rollup/15s/upb/hall", at(15), 1)]
    assert in_lake(rolling.lake) == in_topics(broker) == second
    assert figures(rolling.context) == {"late": {"10s": 2, "15s": 1}, "ahead": 1, "windows": 4}

    # A time that is ahead mutes nothing.
    sent(broker, "upb/hall", (61, 1), (62, 1))
    rolling.run()
    third = sorted([*second, ("rollup/10s/upb/hall", at(60), 2), ("rollup/15s/upb/hall", at(60), 2)])
    assert in_lake(rolling.lake) == in_topics(broker) == third
    assert figures(rolling.context) == {"late": {"10s": 2, "15s": 1}, "ahead": 1, "windows": 6}


@pytest.mark.parametrize("few", [2, 2_000], ids=["many", "few"])
def test_messages_that_were_skipped_are_passed_over(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(reading_source, "FEW", few)
    config = replace(config_of(broker, tmp_path), rollup=Sizes(sizes=(10.0,), delay=1.0))
    rolling = Rollups(spark, config, tmp_path)
    for number in (1, 2, 98765, 4, 5):
        sent(broker, "upb/hall", (1, number))
    assert broker.stop() == 0
    broker.damaged = True
    stored = broker.data / "stafeta.db"
    stored.write_bytes(stored.read_bytes().replace(b"98765", bytes(5)))
    broker.start()
    with pytest.raises(StreamingQueryException, match="cannot be read"):
        rolling.run()
    assert main(["skip", "upb/hall", "3", "--broker", broker.address]) == 0
    rolling.run()
    assert in_lake(rolling.lake) == in_topics(broker) == [("rollup/10s/upb/hall", at(0), 4)]


def test_the_last_windows_close_while_everything_is_silent(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = replace(config_of(broker, tmp_path), rollup=Sizes(sizes=(1.0, 2.0), delay=0.5))
    context = Context(spark, config, "rollup", str(tmp_path / "checkpoint"))
    with connect(broker) as connection:
        connection.publish("upb/hall", ["1", "2", "3"], kind="float")
    (query,) = JOB.start(context)
    try:
        wait_until(lambda: sum(count for _, _, count in in_topics(broker)) == 2 * 3)
        assert sum(count for _, _, count in in_lake(Lake(config.lake))) == 2 * 3
    finally:
        query.stop()
    assert query.exception() is None
