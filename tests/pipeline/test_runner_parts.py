"""The runner's parts that need no Spark."""

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stafeta.config import load
from stafeta.config.sources import from_assignment
from stafeta.errors import ConfigError, DataLoss, NoReply
from stafeta.pipeline.job import Job
from stafeta.pipeline.jobs import BUILT_IN, find
from stafeta.pipeline.runner.checkpoint_locks import Lock, checkpoints, local_folder
from stafeta.pipeline.runner.failures import failure_of, naming_the_disk
from stafeta.pipeline.runner.progress_counter import ProgressCounter, lag_of, rows_of
from stafeta.pipeline.runner.reports import Heard, Report
from stafeta.pipeline.runner.runner import Locks, check
from stafeta.pipeline.runner.status_reporter import order, order_in
from stafeta.pipeline.runner.supervisor import RestartBackoff


def named(name: str, **options: Any) -> Job:
    return Job(name, "", lambda context: (), **options)


class StreamingQueryException(Exception):
    """As PySpark's, as far as the runner looks at it."""


StreamingQueryException.__module__ = "pyspark.errors.exceptions.captured"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"lake": 5 << 30, "checkpoints": 12 << 10}
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free[Path(folder).name]))
    places = {"lake.warehouse": f"file://{tmp_path}/lake", "pipeline.checkpoints": f"{tmp_path}/checkpoints"}
    full = failure_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    told = naming_the_disk(full, places | {"spark.local.dir": "s3://bucket/local"})
    assert not told.lasting
    assert f"that of pipeline.checkpoints, {tmp_path}/checkpoints, with 12 KiB" in told.sentence
    assert "No space left on device" in told.sentence
    other = failure_of(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert naming_the_disk(other, places) == other
    assert naming_the_disk(full, {}) == full


# --- names


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a", "control", "x" * 65])
def test_a_job_has_a_name_that_topics_and_folders_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="A job cannot be named"):
        named(name)


def test_two_jobs_do_not_have_one_name() -> None:
    with pytest.raises(ConfigError, match="Two jobs have the name 'a'"):
        check([named("a"), named("b"), named("a")])


def test_a_job_that_is_not_there_is_told_with_one_that_is() -> None:
    with pytest.raises(ConfigError, match=r"No job has the name 'archiv'. Did you mean archive\?"):
        find("archiv")
    with pytest.raises(ConfigError, match="There are archive, rollup"):
        find("zzz")


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_job_has_its_own_name_and_a_line_about_it(name: str) -> None:
    job = find(name)
    assert job.name == name
    assert job.about
    assert (job.about, job.batch) == BUILT_IN[name]
    assert "\n" not in job.about


# --- what went wrong


def test_our_errors_last_or_pass() -> None:
    assert failure_of(ConfigError("No.")).lasting
    assert failure_of(DataLoss("Gone.")).lasting
    assert not failure_of(NoReply("Away.")).lasting


def test_our_error_is_found_in_what_spark_makes_of_it() -> None:
    source = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform initialOffset: "
        "stafeta.errors.NoReply: The broker has not answered for 1 s: refused. Does it run?\n SQLSTATE: 38000"
    )
    failure = failure_of(StreamingQueryException(source))
    assert failure.sentence == "The broker has not answered for 1 s: refused. Does it run?"
    assert isinstance(failure.error, NoReply)
    assert not failure.lasting
    batch = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
        "Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "x.py", line 17, in boom\n    raise ConfigError("A rule is wrong: x.")\n'
        "stafeta.errors.ConfigError: A rule is wrong: x.\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )
    failure = failure_of(StreamingQueryException(batch))
    assert failure == ("A rule is wrong: x.", True, failure.error)
    assert isinstance(failure.error, ConfigError)
    for kind, lasting in (("OutOfSequence", False), ("AlreadyWritten", True)):
        failure = failure_of(StreamingQueryException(batch.replace("errors.ConfigError", f"errors.{kind}")))
        assert (failure.sentence, failure.lasting) == ("A rule is wrong: x.", lasting)


def test_the_innermost_error_of_spark_is_told_without_its_wrapping() -> None:
    cast = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CAST_INVALID_INPUT] The value 'z' "
        "cannot be cast. SQLSTATE: 22018\n== SQL (line 1, position 1) ==\ncast('z' as int)\n^^^^\n SQLSTATE: XXKST\n"
    )
    assert failure_of(StreamingQueryException(cast))[:2] == (
        "Line 1, position 1: The value 'z' cannot be cast.",
        False,
    )
    plan = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line 3 pos 7;\n'P"
    failure = failure_of(StreamingQueryException(plan))
    assert failure[:2] == ("Line 3, position 7: A column `x` cannot be resolved.", True)


def test_what_spark_says_of_the_query_is_no_part_of_the_sentence() -> None:
    """As where a task of a query finds messages gone."""
    text = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed: "
        "stafeta.errors.DataLoss: 20 of the messages are gone.\n\n=== Streaming Query ===\nIdentifier: archive [id = f]"
        "\nCurrent State: ACTIVE\nThread State: RUNNABLE\n\nLogical Plan:\n~WriteToMicroBatchDataSourceV1"
    )
    assert failure_of(StreamingQueryException(text))[:2] == ("20 of the messages are gone.", True)


def test_the_error_of_a_users_function_is_told_in_a_line() -> None:
    text = "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error. Traceback\n  File x\nValueError: not so\n SQLSTATE: 39000"
    assert failure_of(StreamingQueryException(text))[:2] == ("ValueError: not so", False)
    java = (
        "An error occurred while calling o2750.parquet.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(c)\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat d.e(f:2)\n"
    )
    assert failure_of(StreamingQueryException(java))[:2] == (
        "Python worker exited unexpectedly (crashed)",
        False,
    )
    assert failure_of(ValueError("not\nso"))[:2] == ("ValueError: not so", False)
    assert failure_of(NameError("name 'x' is not defined")).lasting
    assert len(failure_of(ValueError("x" * 9999)).sentence) == 500


# --- waiting


def test_the_wait_doubles_up_to_a_limit_and_begins_anew_after_a_calm() -> None:
    backoff = RestartBackoff()
    assert [backoff.after(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [backoff.after(ran) for ran in (59.0, 60.0, 0.0)] == [60, 1, 2]


# --- reports


def test_a_report_is_read_back_as_it_was() -> None:
    report = Report("a", "running", "2026-11-16T10:00:00.000Z", 3, 40, 5.5, 6, 1, "", "id", {"late": 2})
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["late"] == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "{}", '{"job": 3}', '{"job": "a", "rows": "x"}', '"x"', b"\xff"]
)
def test_what_is_no_report_is_passed_over(text: str | bytes) -> None:
    assert Report.from_json(text) is None


def test_a_runner_that_is_not_heard_of_is_not_taken_for_alive() -> None:
    at = datetime(2026, 11, 16, 10, tzinfo=UTC)
    running, ended = Heard(Report("a", "running"), at), Heard(Report("a", "stopped"), at)
    assert not running.silent(at + timedelta(seconds=10))
    assert running.silent(at + timedelta(seconds=11))
    assert not ended.silent(at + timedelta(days=1))


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"stop": "a"}', b'{"stop": [1]}', b"\xff"])
def test_what_is_no_order_is_passed_over(payload: bytes) -> None:
    assert order_in(payload) is None
    assert order_in(order(["a"]).encode()) == ["a"]


# --- the counter


def progress(batch: int, rows: int | None, late: int = 0, run: str = "r") -> dict[str, Any]:
    """Of a micro-batch; without rows, of waiting for it."""
    durations = {"triggerExecution": 5} | ({} if rows is None else {"addBatch": 4})
    rows = rows or 0
    source = {
        "numInputRows": rows,
        "processedRowsPerSecond": rows / 2,
        "startOffset": None,
        "endOffset": None,
        "latestOffset": None,
    }
    return {
        "runId": run,
        "name": "a",
        "batchId": batch,
        "durationMs": durations,
        "stateOperators": [{"numRowsDroppedByWatermark": late}] if late else [],
        "observedMetrics": {"seen": {"late": late * 10}, "other": {"x": 1}} if late else {},
        "sources": [source],
    }


class Query:
    """A query that has told so much."""

    def __init__(self, *told: dict[str, Any]) -> None:
        self.recentProgress = list(told)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None


def test_each_micro_batch_counts_once_also_those_between_two_looks() -> None:
    query, counter = Query(), ProgressCounter()
    look: Any = counter.look
    assert not look(query)
    query.recentProgress = [progress(4, 10), progress(5, 20, late=1)]
    assert look(query)
    assert counter.rows_per_second == 10.0
    query.recentProgress += [progress(6, 5), progress(7, 1, late=2), progress(8, None)]
    assert look(query)
    assert not look(query)
    assert (counter.batch, counter.rows, counter.observed["late"], counter.rows_per_second) == (
        7,
        36,
        33,
        0.0,
    )
    query.recentProgress += [progress(8, 4), progress(9, None), progress(9, None)]
    assert look(query)
    assert (counter.batch, counter.rows) == (8, 40)
    query.recentProgress = [progress(9, None, run="another")]
    assert not look(query)
    query.recentProgress += [progress(9, 3, run="another")]
    assert look(query)
    assert (counter.batch, counter.rows) == (9, 43)


def test_the_lag_is_what_waits_beyond_what_was_taken() -> None:
    end, latest = '{"a": 5, "b": 9, "new topics": {"b": 1}}', '{"a": 8, "b": 9, "c": 4}'
    assert lag_of({"endOffset": end, "latestOffset": latest}) == 7
    assert lag_of({"endOffset": {"a": 5}, "latestOffset": {"a": 8}}) == 3
    assert lag_of({"endOffset": "3", "latestOffset": None}) == 0
    assert lag_of({"endOffset": "a file", "latestOffset": "another"}) == 0


# --- checkpoints


def test_checkpoints_are_in_the_warehouse_unless_they_are_elsewhere(tmp_path: Path) -> None:
    def of(*texts: str) -> str:
        return checkpoints(load(flags=[from_assignment(text, "--set") for text in texts], environment={}))

    assert of() == str(Path("stafeta-lake/checkpoints").absolute())
    assert of(f"lake.warehouse={tmp_path}/") == f"{tmp_path}/checkpoints"
    assert of("lake.warehouse=s3://bucket/lake") == "s3://bucket/lake/checkpoints"
    assert (
        of("lake.warehouse=s3://bucket/lake", f"pipeline.checkpoints=file://{tmp_path}/a") == f"{tmp_path}/a"
    )
    assert local_folder("s3://bucket/lake") is None


def test_a_second_runner_of_a_job_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    first = Lock(tmp_path / "deep" / "er", "a").take()
    with pytest.raises(
        ConfigError, match=r"The job 'a' runs already, .* \(process \d+\).*stafeta pipeline stop a"
    ):
        Lock(tmp_path / "deep" / "er", "a").take()
    Lock(tmp_path / "deep" / "er", "b").take().free()
    first.free()
    first.free()
    Lock(tmp_path / "deep" / "er", "a").take().free()


def test_checkpoints_are_held_together_or_not_at_all(tmp_path: Path) -> None:
    config = load(flags=[from_assignment(f"lake.warehouse={tmp_path}", "--set")], environment={})
    with (
        Locks(config, [named("b")]),
        pytest.raises(ConfigError, match="'b' runs already"),
        Locks(config, [named("a"), named("b")]),
    ):
        pass
    with Locks(config, [named("a"), named("b"), named("c", batch=True)]):
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["a.lock", "b.lock"]


def test_the_checkpoints_of_one_file_are_not_for_another(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.sql", tmp_path / "other.sql"
    mine.touch()
    Lock(tmp_path, "a", str(mine)).take().free()
    Lock(tmp_path, "a", str(mine)).take().free()
    with pytest.raises(ConfigError, match=r"The name 'a' is that of the job in .*mine\.sql"):
        Lock(tmp_path, "a", str(other)).take()
    mine.unlink()  # it was moved
    Lock(tmp_path, "a", str(other)).take().free()


def test_checkpoints_on_a_full_disk_are_told_and_stay_those_of_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.sql").touch()
    Lock(tmp_path, "a", str(tmp_path / "mine.sql")).take().free()
    before = (tmp_path / "a.lock").read_text()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(ConfigError, match=r"of 'a' cannot be in .*: No space left on device"):
            Lock(tmp_path, "a", str(tmp_path / "mine.sql")).take()
    assert (tmp_path / "a.lock").read_text() == before
    Lock(tmp_path, "a", str(tmp_path / "mine.sql")).take().free()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="The checkpoints of 'a' cannot be in"):
        Lock(tmp_path / "file" / "below", "a").take()


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        ({"a": 11}, {"a": 21, "b": 6, "new topics": {"b": 1}}, 15),
        ({"a": 11, "b": 6}, {"a": 21, "b": 6}, 10),
        (None, {"a": 21, "new topics": {"a": 1}}, 20),
    ],
)
def test_the_messages_of_a_micro_batch_are_counted_by_its_offsets(
    start: dict[str, int] | None, end: dict[str, object], rows: int
) -> None:
    source = {"numInputRows": 3, "processedRowsPerSecond": 1.0, "startOffset": start, "endOffset": end}
    assert rows_of(source) == rows
    assert rows_of({**source, "startOffset": "elsewhere", "endOffset": "here"}) == 3
