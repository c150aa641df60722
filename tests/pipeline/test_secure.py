"""Source and sink through TLS, with a token. Jobs are so in test_cluster.py, and SQL in tests/cli/test_sql.py."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stafeta
from stafeta import Tls
from tests.brokers import BrokerProcess
from tests.certificates import Authority
from tests.doors.flight.tls_relay import TlsRelay
from tests.pipeline.queries import numbered, payloads, published, told
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


def holding(folder: Path, secret: str) -> list[Path]:
    """The files that have it in them."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
