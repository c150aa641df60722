"""`stafeta pipeline`, as far as it goes without Spark."""

import json
from pathlib import Path

import pytest

from stafeta.cli import exits
from stafeta.cli.main import main, parser_for
from stafeta.cli.pipeline_screen import changed, progress
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.runner.reports import CONTROL, Report
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect

pytestmark = pytest.mark.slow

NOBODY = "grpc://127.0.0.1:9"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def flight(tmp_path: Path) -> "BrokerProcess":
    return BrokerProcess(tmp_path / "data", doors=("flight",))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "archiv"], "No job has the name 'archiv'. Did you mean archive?"),
        (["run", "archive", "archive"], "Two jobs have the name 'archive'"),
        (["run", "./none.py"], "There is no file none.py"),
        (
            ["run", "archive", "--conf", "driver.memory=1g"],
            "--conf driver.memory=1g: write it as spark.NAME=VALUE",
        ),
        (["run", "archive", "--broker", "http://x"], "--broker: 'http://x' is no address of a Flight door"),
        (
            ["run", "archive", "--set", "pipeline.broker=http://x"],
            "'http://x' is no address of a Flight door",
        ),
        (["run", "archive", "--set", "pipeline.trigger=soon"], "pipeline.trigger: 'soon' is not a duration"),
        (["run", "archive", "--config", "none.toml"], "none.toml cannot be read"),
        (["sql", "none.sql", "--into", "x"], "none.sql cannot be read: No such file or directory."),
        (["sql", "none.sql", "--into", "x", "--watermark", "soon"], "--watermark: 'soon' is not a duration"),
    ],
)
def test_what_is_wrong_is_told_before_spark_is_started(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["pipeline", *arguments]) == exits.USAGE
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not list(tmp_path.rglob("*.lock"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["sql", "x.sql"],
        ["run", "archive", "--master", "local", "--remote", "sc://x"],
        ["run", "archive", "--topic", "a"],
        ["run", "replay"],
        ["run", "audit", "replay", "--topic", "a"],
    ],
)
def test_what_does_not_go_together_is_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["pipeline", *arguments])
    assert leaving.value.code == exits.USAGE
    assert "usage: stafeta" in capsys.readouterr().err


def test_help_tells_the_options_of_the_job_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, there in ((["replay"], True), (["archive"], False)):
        with pytest.raises(SystemExit):
            main(["pipeline", "run", *arguments, "--help"])
        assert ("--from-offset" in capsys.readouterr().out) is there


def test_the_options_of_several_jobs_are_taken_together() -> None:
    words = ["pipeline", "run", "archive", "compact", "--accept-loss", "--today"]
    options = parser_for(words).parse_args(words)
    assert {name: getattr(options, name) for name in options.of_jobs} == {"accept_loss": True, "today": True}
    words = ["pipeline", "run", "archive", "rollup"]
    options = parser_for(words).parse_args(words)
    assert {name: getattr(options, name) for name in options.of_jobs} == {"accept_loss": False}


def test_list_tells_each_job_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "list"]) == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BUILT_IN)
    assert main(["pipeline", "list", "--json"]) == exits.OK
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["name"]: one["kind"] for one in found}["archive"] == "stream"
    assert {one["name"]: one["kind"] for one in found}["audit"] == "batch"


@pytest.mark.parametrize("command", ["status", "stop"])
def test_without_a_broker_nothing_is_known(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", command, "--broker", NOBODY]) == exits.UNREACHABLE
    assert f"The broker at {NOBODY} has not answered" in capsys.readouterr().err


def test_status_and_stop_tell_what_runs_and_what_is_not_heard_of(
    flight: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with flight, connect(flight) as connection:
        broker = ["--broker", address(flight)]
        assert main(["pipeline", "status", *broker]) == exits.NOTHING
        assert main(["pipeline", "stop", *broker]) == exits.NOTHING
        assert capsys.readouterr().out == "No job has run here lately.\nNo job runs.\n"

        running = Report("archive", "running", "2026-11-16T10:00:00.000Z", 3, 1234, 5.0, 6, 1, "", "r1")
        for report in (
            running,
            Report("rollup", "failed", running.since, error="The disk is full.", runner="r1"),
        ):
            connection.publish(report.topic, [report.to_json()], kind="json")
        connection.publish("$sys/pipeline/odd", ["not a report"])
        assert main(["pipeline", "status", *broker]) == exits.OK
        head, archive, rollup = capsys.readouterr().out.splitlines()
        assert head.split() == ["JOB", "STATE", "SINCE", "BATCH", "ROWS", "ROWS/S", "LAG", "RESTARTS"]
        assert archive.split() == [
            "archive",
            "running",
            "2026-11-16",
            "10:00:00",
            "3",
            "1,234",
            "5",
            "6",
            "1",
        ]
        assert rollup.endswith("The disk is full.")
        assert main(["pipeline", "status", "--json", *broker]) == exits.OK
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(one["job"], one["silent"]) for one in found] == [("archive", False), ("rollup", False)]

        assert main(["pipeline", "stop", "rollup", "alerts", *broker]) == exits.USAGE
        assert "rollup and alerts do not run; what runs is archive." in capsys.readouterr().err
        assert main(["pipeline", "stop", "--timeout", "0.1", *broker]) == exits.UNREACHABLE
        assert "archive has not stopped within 0.1 s" in capsys.readouterr().err
        (order,) = connection.read(CONTROL).column("payload")
        assert json.loads(order.as_py()) == {"stop": ["archive"]}


def test_the_broker_keeps_the_last_reports_only(flight: BrokerProcess) -> None:
    from tests.waiting import wait_until

    with flight, connect(flight) as connection:
        for _ in range(3):
            connection.publish("$sys/pipeline/a", ["{}"] * 100, kind="json")
        wait_until(lambda: [topic.first for topic in connection.topics("$sys/pipeline/a")] == [201])


def test_changes_of_state_are_told_in_a_line() -> None:
    report = Report(
        "archive", "running", rows=1234, batch=2, rows_per_second=17.0, lag=3, figures={"late": 2, "x": "y"}
    )
    assert changed(report) == "archive: running."
    assert progress(report, 8) == "archive   running   batch 2  1,234 rows  17/s  lag 3  late 2"
    assert changed(Report("a", "starting")) == ""
    assert changed(Report("a", "running", restarts=2)) == "a: running, started again (2)."
    waiting = Report("a", "waiting", error="No.", figures={"wait": 4.0})
    assert changed(waiting) == "a: failed, and starts again in 4 s: No."
    assert progress(waiting, 1) == "a  waiting   No."
    assert changed(Report("a", "failed", error="No.")) == "a: failed: No."
    assert changed(Report("a", "stopped", batch=0, rows=5)) == "a: stopped, 5 rows in 1 micro-batches."
    assert changed(Report("a", "finished")) == "a: finished."
