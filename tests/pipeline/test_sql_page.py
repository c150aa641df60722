"""SQL over HTTP and on the dashboard: a real broker asks a real Spark, as it asks that of a running pipeline."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.pipeline import endpoint
from stafeta.pipeline.runner.reports import Report, moment
from stafeta.pipeline.sql.server import SqlServer
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Answer, Peer
from tests.doors.http.windows import CHROMIUM, Window, browsing
from tests.pipeline.archives import config_of
from tests.pipeline.queries import connect, published
from tests.pipeline.test_sql_server import TOKEN, jobs
from tests.waiting import PATIENCE, wait_until

PORT = 1  # of the Spark Connect endpoint, which nobody uses here
ENDLESS = "SELECT count(*) FROM range(0, 1000000000000, 1, 1) WHERE hash(id) = 1 AND hash(id, 1) = 2"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """Finds the files of pipelines where this process writes them."""
    monkeypatch.delenv("STAFETA_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = ("--set", 'topics."#".keep=36500d', "--durability", "os")
    with BrokerProcess(tmp_path / "data", *options, doors=("flight", "http")) as process:
        published(process, hall=["1", "2", "3"], lab=["x"])
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def pipeline(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[Config]:
    """A Spark that answers, and is known to the broker from when a job reports."""
    config = config_of(broker, tmp_path)
    with SqlServer(spark, config, TOKEN) as server:
        place = {"connect": PORT, "sql": server.port, "token": TOKEN}
        endpoint._write(endpoint._file(config, 1), place)
        yield config


def report(broker: BrokerProcess) -> None:
    found = Report("archive", "running", moment(), 1, 4, figures={"connect": f"sc://localhost:{PORT}"})
    with connect(broker) as connection:
        connection.publish(found.topic, [found.to_json()], kind="json")


def ask(broker: BrokerProcess, statement: str, **more: int) -> Answer:
    with Peer(broker.door("http")) as peer:
        return peer.ask("POST", "/api/sql", {"statement": statement, **more})


def test_a_statement_is_answered_in_json_and_nothing_but_reading_is_done(
    pipeline: Config, broker: BrokerProcess, tmp_path: Path
) -> None:
    assert ask(broker, "SELECT 1").status == 503, "no job has reported"
    report(broker)
    found = ask(broker, "SELECT topic, count(*) AS n FROM messages GROUP BY topic ORDER BY topic").json
    assert [column["name"] for column in found["columns"]] == ["topic", "n"]
    assert (found["rows"], found["cut"], found["notes"]) == ([["hall", 3], ["lab", 1]], False, [])
    values = ask(
        broker,
        "SELECT NULL, 1.50BD, double('NaN'), 9007199254740993, X'00ff', timestamp'2026-11-16 08:30:00', array(1, 2), "
        "parse_json('{\"a\": 1}'), 'a', 'b' AS a",
    ).json
    (row,) = values["rows"]
    assert row[:5] == [None, "1.50", "nan", "9007199254740993", "AP8="]
    assert row[5] == "2026-11-16T08:30:00.000000Z"
    assert row[6:] == [[1, 2], '{"a":1}', "a", "b"]
    cut = ask(broker, "SELECT id FROM range(10) ORDER BY id", limit=3).json
    assert (cut["rows"], cut["cut"]) == ([[0], [1], [2]], True)
    wrong = ask(broker, "SELECT nummer FROM readings")
    assert (wrong.status, "`nummer`" in wrong.json["detail"]) == (400, True)
    written = ask(broker, f"INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING parquet SELECT 1")
    assert (written.status, written.json["detail"][:20]) == (400, "Here one only reads,")
    assert not (tmp_path / "out").exists()
    large = ask(broker, "SELECT repeat('x', 1000000) FROM range(20)")
    assert (large.status, "larger than 16 MiB" in large.json["detail"]) == (400, True)


def test_settings_and_environment_of_the_pipeline_are_not_given_away(
    pipeline: Config, broker: BrokerProcess
) -> None:
    report(broker)
    names = [
        f"${{{name}}}" for name in ("env:PATH", "system:java.home", "spark.app.name", "spark:spark.app.name")
    ]
    for _ in range(2):
        found = ask(broker, f"SELECT {', '.join(map(repr, names))}")
        assert found.json["rows"] == [names], "nothing is put in their place"
        for statement in (
            "SET spark.sql.variable.substitute=true",
            "RESET",
            "SET",
            "SET -v",
            "SET spark.app.name",
        ):
            refused = ask(broker, statement)
            assert (refused.status, refused.json["detail"][:20]) == (400, "Here one only reads,"), statement


def test_what_takes_too_long_or_nobody_waits_for_is_cancelled_and_few_are_asked_at_a_time(
    spark: SparkSession, pipeline: Config, broker: BrokerProcess
) -> None:
    report(broker)
    before = jobs(spark)
    late = ask(broker, ENDLESS, timeout=1)
    assert (late.status, late.json["detail"]) == (
        504,
        "The statement has taken longer than 1 s, and was cancelled.",
    )
    wait_until(lambda: jobs(spark) <= before)
    peers = [Peer(broker.door("http")) for _ in range(2)]
    for peer in peers:
        peer.connection.request(
            "POST", "/api/sql", json.dumps({"statement": ENDLESS}), {"Content-Type": "application/json"}
        )
    wait_until(lambda: len(jobs(spark) - before) == 2)
    third = ask(broker, "SELECT 1")
    assert (third.status, third.json["detail"][:23]) == (429, "2 statements are carrie")
    for peer in peers:
        peer.close()
    wait_until(lambda: jobs(spark) <= before)
    wait_until(lambda: ask(broker, "SELECT 1").status == 200)


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium: make browser installs it")
def test_the_page_has_a_box_for_sql_once_a_spark_is_at_hand(
    spark: SparkSession, pipeline: Config, broker: BrokerProcess
) -> None:
    raised: list[BaseException] = []

    def look() -> None:
        try:
            _look(spark, broker)
        except BaseException as error:  # noqa: BLE001 - for the test's own thread
            raised.append(error)

    # Playwright has a loop of its own in its thread, which is not to be that of other tests.
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10 * PATIENCE)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def _look(spark: SparkSession, broker: BrokerProcess) -> None:
    host, port = broker.door("http")
    with browsing() as browser:
        window = Window(browser.new_page(), f"http://{host}:{port}")
        page = window.page
        window.open("pipeline")
        window.see("No Spark is at hand.")
        report(broker)
        box = page.get_by_label("Statement")
        box.wait_for()
        box.fill("SELECT topic, count(*) AS n FROM messages GROUP BY topic ORDER BY topic")
        box.press("ControlOrMeta+Enter")
        assert window.row("Result", "hall").get_by_role("cell").all_inner_texts() == ["hall", "3"]
        window.see("2 rows, ")
        box.fill("SELECT nummer FROM readings")
        page.get_by_role("button", name="Run").click()
        page.get_by_role("alert").filter(has_text="`nummer`").wait_for()
        assert window.errors, "the browser says itself that the answer was 400"
        window.errors.clear()
        before = jobs(spark)
        box.fill(ENDLESS)
        page.get_by_role("button", name="Run").click()
        wait_until(lambda: bool(jobs(spark) - before))
        page.get_by_role("button", name="Cancel").click()
        window.see("Cancelled.")
        wait_until(lambda: jobs(spark) <= before)
        page.get_by_role("link", name="Topics").click()
        page.get_by_role("link", name="Pipeline").click()
        wait_until(lambda: box.input_value() == ENDLESS)
        assert not window.errors
        assert not window.foreign
