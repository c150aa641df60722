"""Those who change a lake, each in a process of its own, without Spark.

python -m tests.pipeline.lake_committers FOLDER PART END: `archive` adds messages to the lake up to an offset, a few at
a time, from where the lake is; `rollup` adds numbered batches, each twice; `compact` merges and removes what is old
until it is killed.
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stafeta.pipeline.connector.file_source import _File
from stafeta.pipeline.jobs.compact import compact
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.compaction import today
from stafeta.pipeline.lake.lake import WRITER
from stafeta.pipeline.lake.tables import TABLES
from stafeta.ranges import first_missing
from tests.pipeline.lakes import BEGIN, arrow, run, settings

TOPIC: Final = "a"
ROWS: Final = 3
_DAY: Final = round(BEGIN.timestamp()) // 86_400


def archive(lake: Lake, end: int) -> None:
    """What the other archive has added meanwhile is not added again."""
    no_session: Any = None
    location = lake.table("messages").location()
    while (first := first_missing(lake.archived().get(TOPIC, ()))) < end:
        file = _File(location, _DAY)
        file.add(arrow(run(TOPIC, first, first + ROWS)).to_batches()[0])
        url = file.finish().column("url")[0].as_py()
        lake.archive_files(no_session, [url], {TOPIC: [(first, first + ROWS)]}, "archive", first)


def rollup(lake: Lake, end: int) -> None:
    """Batch by batch, each of which has its number as a count."""
    done = lake.table("rollups").properties.get(f"{WRITER}rollup", "-1")
    for number in range(int(done.partition(" ")[0]) + 1, end):
        for _ in range(2):
            lake.append("rollups", window(number), "rollup", number, number - 1, f"label-{number}")


def window(number: int) -> pa.Table:
    """One row, whose count is the number."""
    start = BEGIN + timedelta(seconds=number)
    values = {"topic": TOPIC, "size": "1s", "start": start, "end": start, "count": number}
    types: dict[str, pa.DataType] = {
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "bigint": pa.int64(),
        "double": pa.float64(),
    }
    schema = pa.schema([(name, types[type_]) for name, type_ in TABLES["rollups"].types.items()])
    return pa.Table.from_pylist([values], schema=schema)


def main(folder: str, part: str, end: str) -> None:
    lake = Lake(settings(Path(folder)))
    if part == "archive":
        archive(lake, int(end))
    elif part == "rollup":
        rollup(lake, int(end))
    while part == "compact":
        for name in ("messages", "rollups"):
            compact(lake, name, size=1 << 20, keep=0.0, until=today())


if __name__ == "__main__":
    main(*sys.argv[1:])
