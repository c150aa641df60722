"""Parquet files of a table: they are written in a folder of their own for each attempt, and nobody sees them until a
commit names them."""

import os
import re
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from stafeta.errors import Unsound
from stafeta.pipeline.lake.syncing import SyncedFile, checksum_of, renamed, sync_files
from stafeta.pipeline.lake.tables import Definition
from stafeta.pipeline.local_frame import local_frame
from stafeta.ranges import Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY: Final = "__day"
_DAYS: Final = (
    "date_from_unix_date(cast(floor(unix_micros(`{}`) / 86400000000) as int))"  # in whatever time zone
)
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTED: Final = 32  # the default of that
_PATTERN: Final = re.compile(r"[\\{}\[\]*?]")  # what Spark takes for a pattern in a path
_SEALED: Final = re.compile(r"-([0-9a-f]{8})\.parquet$")
_listing = threading.Lock()
_compute: Any = pc  # its types do not know all of it


def write(frame: "DataFrame", definition: Definition, table: str) -> list[str]:
    """Writes rows as files of the table at this URL, each sorted and of one day; returns their URLs."""
    from pyspark.sql import functions as sf

    # Other readers of Iceberg tables do not know Spark's older form.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    target = f"{table}/data/{uuid.uuid4().hex}"
    (
        frame.select(*definition.names, sf.expr(_DAYS.format(definition.day)).alias(_DAY))
        .sortWithinPartitions(_DAY, *definition.order)
        .write.partitionBy(_DAY)
        .option("compression", "zstd")
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        .parquet(target)
    )
    urls = listed(target)
    if urls and isinstance(place(table)[0], fs.LocalFileSystem):
        paths = [renamed(path, checksum_of(path)) for _, path in map(place, urls)]
        sync_files(paths, place(table)[1])
        urls = [urls[0].removesuffix(place(urls[0])[1]) + path for path in paths]
    return urls


def write_table(rows: pa.Table, definition: Definition, table: str) -> list[str]:
    """The same without Spark."""
    days = _compute.floor_temporal(rows.column(definition.day), unit="day").cast(pa.int64())
    keys = [(_DAY, "ascending"), *((name, "ascending") for name in definition.order)]
    rows = rows.select(definition.names).append_column(_DAY, days)
    rows = rows.take(_compute.sort_indices(rows, sort_keys=keys)).combine_chunks()
    days = rows.column(_DAY).to_numpy()
    firsts = np.flatnonzero(np.diff(days, prepend=days[:1] - 1))
    target, urls = f"{table}/data/{uuid.uuid4().hex}", []
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(days)], strict=True):
        urls.append(f"{target}/{np.datetime64(int(days[first]), 'us').astype('M8[D]')}.parquet")
        with create(urls[-1], sealed=True) as sink:
            pq.write_table(rows.slice(first, end - first).drop_columns([_DAY]), sink, compression="zstd")
        urls[-1] = finished(urls[-1], sink)
    return urls


def read(spark: "SparkSession", definition: Definition, urls: list[str]) -> "DataFrame":
    """The rows of files of a table. Nothing is looked up but these files, which are named as they are."""
    if not urls:
        return local_frame(spark, [], definition.columns)
    reader, local = spark.read.schema(definition.columns), isinstance(place(urls[0])[0], fs.LocalFileSystem)
    urls = [_PATTERN.sub(r"\\\g<0>", url) for url in urls]
    if len(urls) <= _LISTED or not local:
        return reader.parquet(*urls)
    # Spark would run a task for each file, only to look whether it is there.
    with _listing:
        before = spark.conf.get(_LISTING)
        spark.conf.set(_LISTING, str(len(urls)))
        try:
            return reader.parquet(*urls)
        finally:
            spark.conf.set(_LISTING, str(before))


def create(url: str, *, sealed: bool = False) -> Any:
    """A new file to write to, which is on the disk when it is closed, if it is on one of this machine's. A data file is
    `sealed`: the checksum of what it holds becomes part of its name then (`finished`)."""
    system, path = place(url)
    if isinstance(system, fs.LocalFileSystem):
        return SyncedFile(path, sealed=sealed)
    return system.open_output_stream(path)


def finished(url: str, sink: Any) -> str:
    """The URL of a file that was created, and is closed."""
    return url.removesuffix(place(url)[1]) + sink.path if isinstance(sink, SyncedFile) else url


def is_changed(url: str) -> bool:
    """Whether a data file holds something else than when it was written. Of one without a checksum in its name, as on
    object stores, which have their own, and from earlier versions, it is not known."""
    system, path = place(url)
    found = _SEALED.search(path)
    return (
        found is not None
        and isinstance(system, fs.LocalFileSystem)
        and f"{checksum_of(path):08x}" != found[1]
    )


def place(url: str) -> tuple[fs.FileSystem, str]:
    """Where a URL, or a folder of this machine, is. URLs of folders are as Spark has them: nothing is escaped."""
    if url.startswith("file://"):
        return fs.LocalFileSystem(), url.removeprefix("file://")
    return fs.FileSystem.from_uri(url) if "://" in url else (fs.LocalFileSystem(), url)


def exists(url: str) -> bool:
    """Whether there is a file."""
    system, path = place(url)
    return system.get_file_info(path).type == fs.FileType.File


def listed(folder: str) -> list[str]:
    """The URLs of the Parquet files below a URL."""
    return [url for url, _, _ in found(folder) if url.endswith(".parquet")]


def found(folder: str) -> list[tuple[str, int, float]]:
    """The URLs of all files below a URL, their sizes, and when they were changed (seconds since 1970)."""
    system, path = place(folder)
    selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
    prefix = folder[: len(folder) - len(path)]
    return sorted(
        (prefix + info.path, info.size, info.mtime.timestamp() if info.mtime else 0.0)
        for info in system.get_file_info(selector)
        if info.is_file
    )


def remove(urls: Iterable[str]) -> None:
    """Removes files; one that is gone already is no matter."""
    for url in urls:
        system, path = place(url)
        try:
            system.delete_file(path)
        except FileNotFoundError:
            continue


def remove_empty(url: str, before: float) -> None:
    """Removes folders with nothing in them that were not changed since a time. Object stores have none."""
    system, path = place(url)
    if not isinstance(system, fs.LocalFileSystem):
        return
    for folder, _, _ in os.walk(path, topdown=False):
        if folder != path and os.stat(folder).st_mtime < before:
            with suppress(OSError):  # it is not empty
                os.rmdir(folder)


def ranges(urls: Iterable[str]) -> Ranges:
    """The offsets in these files of `messages`."""
    return joined(stored_runs(urls))


def stored_runs(urls: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """What follows on one another in each of these files."""
    for url in urls:
        system, path = place(url)
        yield from runs(
            pq.read_table(path, columns=["topic", "offset"], filesystem=system, read_dictionary=["topic"])
        )


def runs(rows: pa.Table) -> list[tuple[str, int, int]]:
    """What follows on one another in rows of topic and offset: as good as all, if they are sorted."""
    rows = rows.unify_dictionaries().combine_chunks()
    count = rows.num_rows
    if not count:
        return []
    topics: Any = rows.column("topic").chunk(0)
    offsets: Any = rows.column("offset").chunk(0)
    codes = topics.indices if isinstance(topics, pa.DictionaryArray) else topics
    follows = _compute.and_(
        _compute.equal(codes.slice(1), codes.slice(0, count - 1)),
        _compute.equal(offsets.slice(1), _compute.add(offsets.slice(0, count - 1), 1)),
    )
    ends = [*_compute.indices_nonzero(_compute.invert(follows)).to_pylist(), count - 1]
    starts = [0, *(at + 1 for at in ends[:-1])]
    return [
        (topics[start].as_py(), offsets[start].as_py(), offsets[end].as_py() + 1)
        for start, end in zip(starts, ends, strict=True)
    ]


def joined(runs: Iterable[tuple[str, int, int]]) -> Ranges:
    """Runs of offsets, given as topic, first and end, joined where they meet. Raises where they overlap."""
    made: Ranges = {}
    for topic, start, end in sorted(runs):
        known = made.setdefault(topic, [])
        if known and start < known[-1][1]:
            raise Unsound(f"The message {start} of topic {topic!r} is there twice.")
        if known and start == known[-1][1]:
            known[-1] = known[-1][0], end
        else:
            known.append((start, end))
    return made
