"""Jobs that a runner runs: they share a session, fail by themselves, and go on where they were."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stafeta.errors import ConfigError
from stafeta.pipeline.job import MARK, Context, Job, job, without_own_topics
from stafeta.pipeline.runner import supervisor
from stafeta.pipeline.runner.queries import interrupt
from stafeta.pipeline.runner.reports import CONTROL, last_reports
from stafeta.pipeline.runner.status_reporter import order
from tests.brokers import BrokerProcess
from tests.pipeline.queries import connect, numbered, payloads, published
from tests.pipeline.runners import configured, done_once, running
from tests.waiting import PATIENCE, wait_until


def marked(function: Callable[..., object]) -> Job:
    found: Job = getattr(function, MARK)
    return found


@job(subscribe="in/#", into="out")
def copies(rows: DataFrame) -> DataFrame:
    """Each message, as it is."""
    return rows.selectExpr("text AS payload")


@job(subscribe="in/#", into="objects")
def objects(rows: DataFrame) -> DataFrame:
    return rows.select("topic", "number", "text")


@job
def always_fails(context: Context) -> None:
    raise RuntimeError("not today")


@job
def configured_wrongly(context: Context) -> None:
    raise ConfigError("The rule 'x' is wrong: write it otherwise.")


@job(subscribe="in/#", into="nowhere")
def wrong_column(rows: DataFrame) -> DataFrame:
    return rows.select("numbre")


def stuck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In Python: Spark ends that of a task that it gives up, but no Java that takes no notice."""
    time.sleep(2 * PATIENCE)
    yield from batches


def running_tasks(spark: SparkSession) -> int:
    """How many there are, those included that nobody waits for any more."""
    context: Any = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(True)
    return sum(int(executors.apply(number).activeTasks()) for number in range(executors.size()))


def test_what_jobs_write_is_not_foreign(spark: SparkSession) -> None:
    topics = ["a", "rollup/1m/a", "alerts", "dead/x", "rollups", "a/dead"]
    rows = spark.createDataFrame([(topic,) for topic in topics], "topic string")
    assert [row.topic for row in without_own_topics(rows).collect()] == ["a", "rollups", "a/dead"]


def test_jobs_share_a_session_and_one_that_fails_does_not_disturb_the_others(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, in__a=numbered(1, 20))
    config = configured(broker, tmp_path)
    jobs = [marked(one) for one in (copies, objects, always_fails, configured_wrongly, wrong_column)]
    with running(spark, config, *jobs) as run, connect(broker) as connection:
        for lasting, sentence in (
            ("configured-wrongly", "The rule 'x' is wrong: write it otherwise."),
            ("wrong-column", "`numbre` cannot be resolved"),
        ):
            failed = run.wait_for(lasting, "failed")
            assert sentence in failed.error
            assert run.states(lasting) == ["starting", "failed"]
        run.wait_for("always-fails", "waiting", 4)
        waits = {report.restarts: report for report in run.told if report.state == "waiting"}
        assert waits[0].error == "RuntimeError: not today"
        assert [waits[restarts].figures["wait"] for restarts in range(4)] == [0.1, 0.2, 0.4, 0.4]
        wait_until(lambda: len(payloads(broker, "out")) == len(payloads(broker, "objects")) == 20)
        wait_until(lambda: run.last("copies").rows == 20)
        published(broker, in__b=["x"])
        wait_until(lambda: len(payloads(broker, "out")) == 21)
        told = last_reports(connection)
        assert {name: one.report.state for name, one in told.items()} == {
            "copies": "running",
            "objects": "running",
            "always-fails": told["always-fails"].report.state,
            "configured-wrongly": "failed",
            "wrong-column": "failed",
        }
        assert told["copies"].report.runner == run.runner.id
        connection.publish(CONTROL, [order(["copies"])], kind="json")
        run.wait_for("copies", "stopped")
        assert run.last("objects").state == "running"
    assert run.states("always-fails")[-1] == "stopped"
    assert run.last("objects").rows == 21
    assert not spark.streams.active
    found = [json.loads(one) for one in payloads(broker, "objects")]
    assert {"topic": "in/b", "number": None, "text": "x"} in found
    assert {"topic": "in/a", "number": None, "text": "7"} in found
    with connect(broker) as connection:
        assert last_reports(connection)["objects"].report.state == "stopped"

    # and again, where they were
    published(broker, in__a=numbered(21, 25))
    again = done_once(spark, config, marked(copies), marked(objects))
    assert [again.last(name).state for name in ("copies", "objects")] == ["finished", "finished"]
    assert sorted(payloads(broker, "out")) == sorted([*numbered(1, 25), "x"])
    assert len(payloads(broker, "objects")) == 26


def test_a_query_that_fails_is_started_again_and_leaves_nothing_twice(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, in__a=numbered(1, 5))
    config = configured(broker, tmp_path)
    failures = iter([ValueError("the first time"), ValueError("the second time")])

    def start(context: Context) -> list[object]:
        def write(batch: DataFrame, number: int) -> None:
            rows = batch.selectExpr("cast(payload AS string) AS payload")
            writer = rows.write.format("stafeta").mode("append").option("broker", config.pipeline.broker)
            writer.options(topic="out", txnAppId="flaky", txnVersion=number).save()
            if error := next(failures, None):
                raise error

        context.note(tries=3)
        return [context.start(context.stream("in/#").writeStream.foreachBatch(write))]

    run = done_once(spark, config, Job("flaky", "", start))  # type: ignore[arg-type]
    life = ["starting", "running", "waiting"]
    assert run.states("flaky") == [*life, *life, "starting", "running", "finished"]
    assert [report.error for report in run.told if report.state == "waiting"][:1] == [
        "ValueError: the first time"
    ]
    last = run.last("flaky")
    assert (last.restarts, last.rows, last.figures) == (2, 5, {"tries": 3})
    assert payloads(broker, "out") == numbered(1, 5)


def test_a_job_that_fails_again_and_again_ends_what_was_to_be_done_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    run = done_once(spark, configured(broker, tmp_path), marked(always_fails))
    assert run.states("always-fails")[-1] == "failed"
    assert run.runner.supervisors[0].failure is not None
    assert run.last("always-fails").restarts == 3


def test_a_query_that_a_job_started_before_it_failed_is_stopped(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    def start(context: Context) -> list[object]:
        context.start(context.stream("in/#").writeStream.foreachBatch(lambda rows, number: None), "one")
        raise ConfigError("The second part is wrong.")

    run = done_once(spark, configured(broker, tmp_path), Job("parts", "", start))  # type: ignore[arg-type]
    assert run.last("parts").error == "The second part is wrong."
    assert not spark.streams.active


def test_jobs_and_reports_outlive_a_broker_that_is_killed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, in__a=numbered(1, 5))
    with running(spark, configured(broker, tmp_path), marked(copies)) as run:
        wait_until(lambda: len(payloads(broker, "out")) == 5)
        broker.kill()
        told = len(run.told)
        wait_until(lambda: len(run.told) > told)  # it goes on telling, though nobody hears
        broker.start()
        published(broker, in__a=numbered(6, 9))
        wait_until(lambda: len(payloads(broker, "out")) >= 9)
        with connect(broker) as connection:
            wait_until(lambda: last_reports(connection)["copies"].report.rows == 9)
    assert payloads(broker, "out") == numbered(1, 9)


def test_a_batch_job_does_its_work_and_ends_or_is_interrupted(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    answers = iter([False])

    def interrupt_later(*what: Any) -> None:
        if not next(answers, True):
            raise ConnectionError("no answer")
        interrupt(*what)

    monkeypatch.setattr(supervisor, "interrupt", interrupt_later)

    def work(context: Context) -> tuple[()]:
        context.note(rows_found=spark.range(context.arguments["count"]).count())
        return ()

    def wait(context: Context) -> tuple[()]:
        begun.set()
        assert context.stopping.wait(PATIENCE)
        time.sleep(1)  # so that the first interrupt finds nothing to end
        spark.range(0, 1, 1, 1).mapInArrow(stuck, "id long").collect()
        ended.set()
        return ()

    def refuse(context: Context) -> tuple[()]:
        raise ConfigError("There is nothing to do.")

    config = configured(broker, tmp_path)
    run = done_once(
        spark, config, Job("work", "", work, True), Job("no", "", refuse, True), arguments={"count": 7}
    )
    assert (run.last("work").state, run.last("work").figures) == ("finished", {"rows_found": 7})
    assert run.states("no") == ["starting", "failed"]
    with running(spark, config, Job("wait", "", wait, True)) as run:
        assert begun.wait(PATIENCE)
    assert run.states("wait") == ["starting", "stopped"]
    assert not ended.is_set()
    wait_until(lambda: not running_tasks(spark))  # else it would keep others from working


def test_a_second_runner_is_refused(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    config = configured(broker, tmp_path)
    with running(spark, config, marked(always_fails)) as run:
        run.wait_for("always-fails", "waiting")
        with pytest.raises(ConfigError, match="The job 'always-fails' runs already"):
            done_once(spark, config, marked(always_fails))
