"""Source and sink through TLS, with a token."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import stafeta
from stafeta import Tls
from tests.brokers import BrokerProcess
from tests.certificates import Authority
from tests.doors.flight.tls_relay import TlsRelay
from tests.pipeline.queries import numbered, payloads, published, told
from tests.pipeline.sessions import IMPORTED_AHEAD, JVM, QUICK
from tests.secured import Place


def test_rows_go_and_come_through_tls(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.pair("broker", "DNS:broker.example")
    published(broker, hall=numbered(1, 20))
    with TlsRelay(broker.door("flight"), pair) as relay:
        options = {
            "broker": relay.address,
            "token": "secret",
            "tlsRoots": str(authority.roots),
            "tlsHostname": "broker.example",
        }
        readings = spark.read.format("stafeta").options(**options, subscribe="hall").load()
        readings.select("payload", "kind").coalesce(1).write.format("stafeta").mode("append").options(
            **options, topic="copy"
        ).save()
        with told("is not trusted"):
            spark.read.format("stafeta").options(
                broker=relay.address, subscribe="hall", tlsRoots=str(authority.roots), timeout="10s"
            ).load().collect()
    assert payloads(broker, "copy") == numbered(1, 20)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("secured"))
    with place.broker:
        with stafeta.connect(place.flight, token=place.token, tls=Tls(place.authority.roots)) as connection:
            for topic in ("hall", "copy"):
                connection.hold(topic, name="kept", start="earliest")
            connection.publish("hall", numbered(1, 20))
        yield place


def test_a_token_is_in_no_plan_and_no_checkpoint(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    options = {"broker": place.flight, "token": place.token, "tlsRoots": str(place.authority.roots)}
    readings = spark.read.format("stafeta").options(**options, subscribe="hall").load()
    with redirect_stdout(StringIO()) as explained:
        readings.explain("extended")
    assert "stafeta" in explained.getvalue()
    assert place.token not in explained.getvalue()
    stream = (
        spark.readStream.format("stafeta")
        .options(**options, subscribe="hall", startingOffsets="earliest")
        .load()
        .select("payload", "kind")
        .writeStream.format("stafeta")
        .options(**options, topic="copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        stream.awaitTermination()
        progress = stream.lastProgress
        assert place.token not in str(progress)
    finally:
        stream.stop()
    with stafeta.connect(place.flight, token=place.token, tls=Tls(place.authority.roots)) as connection:
        assert connection.topics("copy")
    assert not holding(tmp_path, place.token)
    with told("Nobody comes in here without"):
        spark.read.format("stafeta").options(
            broker=place.flight, tlsRoots=str(place.authority.roots), subscribe="hall"
        ).load().collect()


@pytest.mark.slow
def test_sql_uses_the_environment_and_shows_nothing(place: Place, tmp_path: Path) -> None:
    """Jobs do so in test_cluster.py."""
    environment = os.environ | {
        "STAFETA_TOKEN": place.token,
        "STAFETA_CA": str(place.authority.roots),
        "PYTHONPATH": IMPORTED_AHEAD,
    }
    lake = ("--set", f"lake.warehouse={tmp_path / 'lake'}", "--broker", place.flight)
    chosen = QUICK | {"spark.driver.extraJavaOptions": JVM.format(folder=tmp_path)}
    small = ("--master", "local[2]", *(f"--conf={name}={value}" for name, value in chosen.items()))
    asked = "SELECT count(payload) AS readings FROM messages WHERE topic = 'hall'"
    command = subprocess.Popen(
        [sys.executable, "-m", "stafeta", "sql", asked, *lake, *small],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    seen: set[str] = set()
    while True:
        try:
            output, errors = command.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            seen |= command_lines(command.pid)
    assert command.returncode == 0, errors
    assert any("java" in line for line in seen)
    assert not [line for line in seen if place.token in line]
    assert place.token not in output + errors
    assert "20" in output
    assert not holding(tmp_path, place.token)


def command_lines(pid: int) -> set[str]:
    """Those of a process and all that it has started."""
    found: set[str] = set()
    try:
        for process in (one := psutil.Process(pid), *one.children(recursive=True)):
            found.add(" ".join(process.cmdline()))
    except psutil.Error:
        pass  # it has just ended
    return found


def holding(folder: Path, secret: str) -> list[Path]:
    """The files that have it in them."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
