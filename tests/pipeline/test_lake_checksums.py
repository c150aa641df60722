"""Data files are known by a checksum in their names: one that was changed is found, and not merged. Without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stafeta.pipeline.connector import file_source
from stafeta.pipeline.jobs.auditing import stored
from stafeta.pipeline.lake import Lake, files
from stafeta.pipeline.lake.merging import DamagedFile, Source, merge
from stafeta.pipeline.lake.tables import TABLES
from tests.pipeline.lakes import arrow, offsets, parquet, run, settings, whole

FILES = 3
ROWS = 4


def filled(folder: Path) -> tuple[Lake, list[str]]:
    """A lake with files of `ROWS` messages each, written as a task does, and their URLs."""
    lake = Lake(settings(folder))
    no_session: Any = None
    urls = []
    for number in range(FILES):
        first = 1 + number * ROWS
        file = file_source._File(lake.table("messages").location(), 0)
        file.add(arrow(run("a", first, first + ROWS)).combine_chunks().to_batches()[0])
        (url,) = {row["url"] for row in file.finish().to_pylist()}
        lake.archive_files(no_session, [url], {"a": [(first, first + ROWS)]}, "tests", number)
        urls.append(url)
    return lake, urls


def rewritten(url: str) -> None:
    """Puts other payloads of the same length into a file, whose checksums of pages fit."""
    rows = parquet(url)
    index = rows.schema.get_field_index("payload")
    payloads = pa.array([b"x" * len(one.as_py()) for one in rows.column("payload")], pa.binary())
    pq.write_table(
        rows.set_column(index, rows.schema.field(index), payloads),
        url.removeprefix("file://"),
        compression="zstd",
        write_page_checksum=True,
    )


def flipped(url: str) -> None:
    """Changes one bit of what is stored, and not of how long it is."""
    path = Path(url.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def test_a_bit_that_is_flipped_in_a_file_is_found(tmp_path: Path) -> None:
    lake, urls = filled(tmp_path)
    table = lake.table("messages")
    assert stored.examined(table).wrong == {}
    flipped(urls[1])
    assert stored.examined(table).wrong == {urls[1]: stored.OTHER_CONTENT}


@pytest.mark.parametrize("fault", [rewritten, flipped])
def test_what_was_changed_is_not_merged_with_others(tmp_path: Path, fault: Any) -> None:
    lake, urls = filled(tmp_path)
    sources = [Source(url, ROWS) for url in urls]
    place = f"{lake.table('messages').location()}/data"
    merged = merge(sources, TABLES["messages"], place)
    assert not files.is_changed(merged)
    flipped(merged)  # the files that are merged have checksums, too
    assert files.is_changed(merged)
    fault(urls[2])
    before = files.listed(place)
    with pytest.raises(DamagedFile, match="is not what was written") as caught:
        merge(sources, TABLES["messages"], place)
    assert caught.value.url == urls[2]
    assert files.listed(place) == before


def test_files_of_earlier_versions_have_no_checksum_and_are_read_as_they_are(tmp_path: Path) -> None:
    lake, urls = filled(tmp_path)
    path = Path(urls[0].removeprefix("file://"))
    old = path.with_name("0123456789abcdef0123456789abcdef.parquet")
    path.rename(old)
    assert not files.is_changed(f"file://{old}")
    old.rename(path)
    assert offsets(lake) == {"a": whole(1, FILES * ROWS)}
