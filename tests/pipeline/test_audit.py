"""The job audit on a real broker and a real lake: while everything goes on, and with faults planted."""

import json
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from stafeta.cli import exits
from stafeta.config import Config
from stafeta.errors import InvalidName, Unsound
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import archive, audit
from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.auditing import checkpoints, offsets, stored, windows
from stafeta.store.sqlite.seals import seal
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import connect, dropped, forgetful, in_background, numbered
from tests.waiting import wait_until

__all__ = ["forgetful"]


@pytest.fixture
def config(forgetful: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(forgetful, tmp_path, trigger=1.0)


def context(spark: SparkSession, config: Config, folder: Path, name: str, **arguments: object) -> Context:
    return Context(spark, config, name, str(folder / "checkpoints" / name), arguments=arguments)


@pytest.fixture
def archive_of(spark: SparkSession, forgetful: BrokerProcess, config: Config) -> Archive:
    return Archive(spark, forgetful, config)


def test_a_filter_that_is_wrong_is_refused(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="a#"):
        audit.start(context(spark, config, tmp_path, "audit", topic="a#"))
    assert not (tmp_path / "lake").exists()


def test_no_fault_is_found_while_producers_archive_and_collection_run(
    spark: SparkSession, forgetful: BrokerProcess, config: Config, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    audit.start(context(spark, config, tmp_path, "audit"))
    assert capsys.readouterr().out == "0 topics, 0 messages: sound\n"
    stop = threading.Event()

    def produce() -> None:
        with connect(forgetful) as broker, broker.producer("live/counted", name="counter") as producer:
            round_ = 0
            while not stop.wait(0.1):
                producer.send_many(numbered(1, 100))
                broker.publish(f"live/{round_ % 5}", numbered(1, 7))
                if round_ % 10 == 0:
                    broker.publish(f"live/new/{round_}", ["x"])
                round_ += 1

    def first_of(topic: str) -> int:
        with connect(forgetful) as broker:
            return max((one.first for one in broker.topics(topic)), default=0)

    (query,) = archive.JOB.start(context(spark, config, tmp_path, "archive"))
    try:
        with in_background(produce):
            try:
                for _ in range(2):
                    before = first_of("live/counted")
                    audit.start(context(spark, config, tmp_path, "audit"))
                    wait_until(lambda before=before: first_of("live/counted") > before)  # type: ignore[misc]
            finally:
                stop.set()
    finally:
        query.stop()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith(": sound") for line in lines)


def plant(forgetful: BrokerProcess, archive_of: Archive) -> None:
    """A topic for each fault, of which the lake has the messages 1 to 20 and the log 1 to 30, unless it is said."""
    topics = ["sound", "doubled", "removed", "changed", "counted", "more", "less", "gap", "cursor"]
    with connect(forgetful) as broker:
        broker.hold("#", name=holder(archive_of.lake), start="earliest")
        for topic in topics:
            broker.hold(topic, name="somebody", start="earliest")
            with broker.producer(topic, name="p") as producer:
                producer.send_many(numbered(1, 30))
        archive_of.take("#", 21)
        for topic, done in (("sound", 11), ("counted", 21), ("gap", 25)):
            broker.acknowledge("#", {topic: done}, name=holder(archive_of.lake))
            dropped(broker, topic, done)
    rows = archive_of.rows().where("NOT (topic = 'removed' AND offset BETWEEN 5 AND 7)")
    rows = rows.withColumn("payload", sf.expr("if(topic = 'changed' AND offset = 12, X'00', payload)"))
    rows = rows.withColumn("counter", sf.expr("if(topic = 'counted' AND offset = 12, 11L, counter)"))
    archive_of.replace(rows.union(rows.where("topic = 'doubled'")))
    archive_of.say(more=[(1, 26)], less=[(1, 15)])
    with ZeroMQPeer(
        forgetful.address
    ) as peer:  # no fault: counters that are drawn may meet, and a retry is not stored
        peer.acked("SUB", "drawn", "somebody")
        for counter, text in ((7, "a"), (900, "b"), (7, "c"), (7, "c"), (31, "d")):
            peer.acked("PUT", "drawn", "drawer", publication=text, counter=counter)
    forgetful.stop()
    forgetful.damaged = True
    with closing(sqlite3.connect(forgetful.data / "stafeta.db")) as database, database:
        database.create_function("seal", -1, seal)
        database.execute(
            "UPDATE cursor SET floor = 10 WHERE topic = (SELECT id FROM topic WHERE name = 'counted') AND "
            "subscription = (SELECT id FROM subscription WHERE client = 'flight/somebody' AND filter = 'counted')"
        )
        database.execute("UPDATE cursor SET sum = seal('cursor', subscription, topic, floor)")
    forgetful.start()


def test_planted_faults_of_each_kind_are_found_where_they_are(
    spark: SparkSession,
    forgetful: BrokerProcess,
    config: Config,
    archive_of: Archive,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(forgetful, archive_of)
    with pytest.raises(Unsound, match="10 topics, 270 messages: 9 faults") as caught:
        audit.start(context(spark, config, tmp_path, "audit", json=True))
    assert exits.code_of(caught.value) == 1
    *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert summary == {"topics": 10, "messages": 270, "faults": 9, "sound": False}
    somebody, archiver = "flight/somebody on ", f"flight/{holder(archive_of.lake)} on #"
    assert [(one["check"], one["topic"], one["what"], one["where"]) for one in found] == [
        ("agreement", "changed", offsets.UNLIKE, [[12, 13]]),
        ("archive", "less", offsets.UNSAID, [[15, 21]]),
        ("archive", "more", offsets.ABSENT, [[21, 26]]),
        ("archive", "removed", offsets.ABSENT, [[5, 8]]),
        ("counters", "counted", "a counter of producer 'flight/p' again", [[12, 13]]),
        ("offsets", "doubled", offsets.LAKE_TWICE, [[1, 21]]),
        ("offsets", "gap", offsets.GAP, [[21, 25]]),
        ("cursors", "gap", f"{archiver} is done with what is not archived", [[21, 25]]),
        ("cursors", "counted", f"{somebody}counted waits for what the log has no more", [[10, 21]]),
    ]
    assert [one["count"] for one in found] == [1, 6, 5, 3, 1, 20, 4, 4, 11]

    with pytest.raises(Unsound, match="1 topic, 30 messages: 1 fault"):
        audit.start(context(spark, config, tmp_path, "audit", topic="changed"))
    assert re.fullmatch(
        "check +topic +what +where +count\n"
        f"agreement  changed  {offsets.UNLIKE}  12 +1\n"
        "1 topic, 30 messages: 1 fault\n",
        capsys.readouterr().out,
    )


def test_files_that_are_missing_cut_or_changed_are_named_and_so_is_what_was_in_them(
    spark: SparkSession, forgetful: BrokerProcess, config: Config, archive_of: Archive
) -> None:
    files: dict[str, str] = {}  # of the topics
    with connect(forgetful) as broker:
        for topic in ("kept", "removed", "cut", "changed"):
            broker.hold(topic, name="somebody", start="earliest")
            broker.publish(topic, numbered(1, 4))
            archive_of.take(topic, 4)
            table = archive_of.lake.table("messages")
            (files[topic],) = {task.file.file_path for task in table.scan().plan_files()} - {*files.values()}
        dropped(broker, "changed", 4)  # which the lake alone has
    cut, removed, changed = (
        Path(files[topic].removeprefix("file://")) for topic in ("cut", "removed", "changed")
    )
    cut.write_bytes(cut.read_bytes()[:-5])
    removed.unlink()
    data = bytearray(changed.read_bytes())
    data[len(data) // 3] ^= 1
    changed.write_bytes(data)
    names = {topic: url.removeprefix(f"{table.location()}/") for topic, url in files.items()}
    found = audit.audit(spark, config, archive_of.lake, "#").findings
    assert sorted((one.check, one.topic, one.what, one.where) for one in found) == sorted(
        [
            ("archive", "changed", offsets.ABSENT, "1-3"),
            ("archive", "cut", offsets.ABSENT, "1-3"),
            ("archive", "removed", offsets.ABSENT, "1-3"),
            ("files", "", f"{names['changed']} is not what was written", ""),
            ("files", "", f"{names['cut']} is not as long as it was", ""),
            ("files", "", f"{names['removed']} is missing", ""),
        ]
    )


def test_the_page_names_faults_and_findings_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    rows = page.partition("| fault | finding |")[2].partition("\n\n")[0].splitlines()[2:]
    findings = [row.split("|")[2] for row in rows]
    assert len(findings) >= 25
    told = " ".join(findings)
    for what in (
        *(getattr(offsets, name) for name in ("GAP", "LOST", "ABSENT", "UNSAID", "LAKE_TWICE", "UNLIKE")),
        *(
            getattr(stored, name).removeprefix("is ")
            for name in (
                "MISSING",
                "OTHER_SIZE",
                "OTHER_CONTENT",
                "UNREADABLE",
                "TWICE",
                "OTHER_ROWS",
                "DELETES",
            )
        ),
        *(windows.TWICE, windows.UNKNOWN, windows.UNLIKE, windows.UNPUBLISHED, checkpoints.OLDER),
        checkpoints.OTHER_BROKER.partition(",")[0],
        offsets.UNRELATED,
        offsets.OTHER_LOG.removeprefix("archived, and "),
        "done with what is not archived",
    ):
        assert what in told, what
    checks = {"agreement", "archive", "checkpoints", "counters", "cursors", "files", "offsets", "windows"}
    for finding in findings:
        assert finding.strip().startswith(
            ("nothing: ", "audit ends", *(f"`{check}`: " for check in checks))
        ), finding
    assert set(re.findall(r"`(\w+)`: ", told)) == checks
