"""What Spark's own log says of micro-batches."""

import json
from pathlib import Path

from stafeta.pipeline.spark_log import begun_at, is_empty, last_commit, looked_at, offsets, query_id


def planned(folder: Path, batch: int, **offsets: object) -> None:
    """As Spark writes it: a version, metadata, and a line for each source."""
    named = {name.replace("_", " "): value for name, value in offsets.items()}
    lines = ("v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": batch}), json.dumps(named))
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))


def test_a_micro_batch_that_ends_where_it_begins_is_empty(tmp_path: Path) -> None:
    planned(tmp_path, 0, a=3, new_topics={"a": 1}, looked_at="100")
    planned(tmp_path, 1, a=3, looked_at="101")
    planned(tmp_path, 2, a=3, b=2, new_topics={"b": 1}, looked_at="200")
    planned(tmp_path, 3, a=3, b=2)
    planned(tmp_path, 4, a=4, b=2)
    planned(tmp_path, 5, a=4, b=2, new_topics={"a": 1})  # of another log, and as long
    assert [is_empty(str(tmp_path), batch) for batch in range(6)] == [False, True, False, True, False, False]
    assert [looked_at(str(tmp_path), batch) for batch in range(4)] == [100, 101, 200, None]


def test_what_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert not is_empty(str(tmp_path), 3)
    planned(tmp_path, 3, a=3)
    assert not is_empty(str(tmp_path), 3), "it may be the first that is still there"
    assert looked_at(str(tmp_path), 4) is None
    assert offsets(str(tmp_path), 3) is None, "where it begins is not known"
    assert (last_commit(str(tmp_path)), query_id(str(tmp_path))) == (-1, "")


def test_a_micro_batch_begins_where_the_one_before_it_ends(tmp_path: Path) -> None:
    planned(tmp_path, 0, a=3, new_topics={"a": 1})
    planned(tmp_path, 1, a=5)
    first = {"a": 3, "new topics": {"a": 1}}
    assert [offsets(str(tmp_path), batch) for batch in (0, 1)] == [({}, first), (first, {"a": 5})]
    assert begun_at(str(tmp_path), 1) == 1, "as the metadata say"
    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".10.crc", "11.tmp"):
        (tmp_path / "commits" / name).touch()
    (tmp_path / "metadata").write_text('{"id": "query"}')
    assert (last_commit(str(tmp_path)), query_id(str(tmp_path))) == (10, "query")
