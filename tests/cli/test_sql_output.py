"""What becomes of a result: tables, JSON, CSV, Parquet."""

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stafeta.cli.sql_output import Csv, Json, Parquet, Table, unique
from stafeta.errors import ConfigError
from stafeta.pipeline.sql.results import Output

TIME = datetime(2026, 11, 16, 8, 30, 0, 250_000, tzinfo=UTC)
ROWS = pa.table(
    {
        "topic": pa.array(["hall/a", "b", None]),
        "number": pa.array([20.5, -1e300, None], pa.float64()),
        "offset": pa.array([1, 1_000_000, None], pa.int64()),
        "decimal": pa.array([Decimal("20.5"), Decimal(0), None], pa.decimal128(38, 18)),
        "timestamp": pa.array([TIME, TIME, None], pa.timestamp("us", "UTC")),
        "payload": pa.array([b"20.5\n", b"\xff\x00", None], pa.binary()),
    }
)
OTHERS = pa.table(
    {
        "flag": pa.array([True, None]),
        "day": pa.array([date(2026, 1, 2), None]),
        "local": pa.array([datetime(2026, 1, 2, 3, 4, 5), None], pa.timestamp("us")),  # noqa: DTZ001 - has none
        "list": pa.array([[1.5, None], None]),
        "map": pa.array([[("a", b"\xff")], None], pa.map_(pa.string(), pa.binary())),
        "struct": pa.array([{"d": Decimal("1.50"), "t": TIME}, None]),
        "long": pa.array([timedelta(days=1, seconds=2), None], pa.duration("us")),
        "nothing": pa.array([None, None], pa.null()),
    }
)


def made(output: Output, *results: pa.Table, size: int = 2) -> None:
    for result in results:
        output.begin(result.schema)
        for batch in result.to_batches(max_chunksize=size):
            output.write(batch)
        output.end()


def text(kind: type[Table] | type[Json] | type[Csv], *results: pa.Table, size: int = 2) -> str:
    stream = io.BytesIO()
    made(kind(stream=stream), *results, size=size)
    return stream.getvalue().decode()


def test_a_table_is_aligned_and_each_value_on_one_line() -> None:
    assert text(Table, ROWS).splitlines() == [
        "topic    number   offset  decimal  timestamp                    payload",
        "------  -------  -------  -------  ---------------------------  -------",
        "hall/a     20.5        1     20.5  2026-11-16 08:30:00.250000Z  20.5\\n",
        "b       -1e+300  1000000        0  2026-11-16 08:30:00.250000Z  x'ff00'",
        "NULL       NULL     NULL     NULL  NULL                         NULL",
    ]


def test_what_would_move_the_cursor_is_escaped() -> None:
    rows = pa.table({"a\nb": ["\x1b[31mred\x1b[0m\t", "ș\u0085"]})
    assert text(Table, rows).splitlines()[::2] == ["a\\nb", "\\x1b[31mred\\x1b[0m\\t"]
    assert text(Table, rows).splitlines()[3] == "ș\\x85"


def test_on_a_terminal_a_table_is_cut_at_its_width() -> None:
    stream = io.BytesIO()
    rows = pa.table({"short": ["x"], "long": ["y" * 100], "number": [12345]})
    made(Table(40, stream), rows)
    lines = stream.getvalue().decode().splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[2] == "x      " + "y" * 32 + "…"
    stream = io.BytesIO()
    made(Table(100, stream), rows)
    assert stream.getvalue().decode().splitlines()[2] == "x      " + "y" * 59 + "…   12345"


def test_the_first_rows_of_a_table_decide_its_widths_and_nothing_waits_for_the_last() -> None:
    stream = io.BytesIO()
    table = Table(stream=stream)
    table.begin(pa.schema({"n": pa.string()}))
    table.write(pa.record_batch({"n": ["1"] * 999}))
    assert (table.shown, stream.getvalue()) == (False, b"")
    table.write(pa.record_batch({"n": ["22"]}))
    assert (table.shown, stream.getvalue()[:7]) == (True, b"n\n--\n1\n")
    table.write(pa.record_batch({"n": ["333"]}))
    assert stream.getvalue().endswith(b"1\n22\n333\n")


def test_results_that_have_a_head_have_a_blank_line_between() -> None:
    none = pa.table({"n": pa.array([], pa.int64())})
    command = pa.table({})
    assert text(Table, none, command, pa.table({"n": [1]})) == "n\n-\n\nn\n-\n1\n"
    assert text(Csv, none, command, pa.table({"n": [1]})) == "n\n\nn\n1\n"
    assert text(Json, none, command, pa.table({"n": [1]})) == '{"n":1}\n'


def test_json_is_an_object_a_line() -> None:
    lines = text(Json, ROWS).splitlines()
    assert lines[0] == (
        '{"topic":"hall/a","number":20.5,"offset":1,"decimal":20.500000000000000000,'
        '"timestamp":"2026-11-16T08:30:00.250000Z","payload":"MjAuNQo="}'
    )
    assert set(json.loads(lines[2]).values()) == {None}
    assert text(Json, OTHERS).splitlines()[0] == (
        '{"flag":true,"day":"2026-01-02","local":"2026-01-02T03:04:05.000000","list":[1.5,null],"map":{"a":"/w=="},'
        '"struct":{"d":1.50,"t":"2026-11-16T08:30:00.250000Z"},"long":"1 day, 0:00:02","nothing":null}'
    )


def test_csv_has_a_head_and_nothing_for_null() -> None:
    rows = list(csv.reader(io.StringIO(text(Csv, ROWS))))
    assert rows[0] == ROWS.column_names
    assert rows[1] == [
        "hall/a",
        "20.5",
        "1",
        "20.500000000000000000",
        "2026-11-16 08:30:00.250000Z",
        "MjAuNQo=",
    ]
    assert rows[3] == [""] * 6
    assert list(csv.reader(io.StringIO(text(Csv, OTHERS))))[1] == [
        "true",
        "2026-01-02",
        "2026-01-02 03:04:05.000000",
        "[1.5,null]",
        '{"a":"/w=="}',
        '{"d":1.50,"t":"2026-11-16T08:30:00.250000Z"}',
        "1 day, 0:00:02",
        "",
    ]


def test_columns_that_share_a_name_are_told_apart_in_json_and_parquet(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["n", "n", "n_2"])
    assert text(Json, twice) == '{"n":1,"n_3":2,"n_2":3}\n'
    made(Parquet(tmp_path / "x.parquet"), twice)
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [{"n": 1, "n_3": 2, "n_2": 3}]
    assert text(Csv, twice) == "n,n,n_2\n1,2,3\n"
    assert unique(["a", "a", "a", "b"]) == ["a", "a_2", "a_3", "b"]


def test_a_parquet_file_is_there_once_it_is_whole_and_is_the_last_result(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    output = Parquet(path)
    made(output, pa.table({"n": [1]}), ROWS, pa.table({}))
    assert pq.read_table(path).equals(ROWS)
    output.begin(ROWS.schema)
    output.write(ROWS.to_batches()[0])
    output.drop()
    assert [one.name for one in tmp_path.iterdir()] == ["x.parquet"]
    assert pq.read_table(path).equals(ROWS)


def test_a_parquet_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--parquet: .*x\.parquet cannot be written: "):
        made(Parquet(tmp_path / "nowhere" / "x.parquet"), ROWS)
