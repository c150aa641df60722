"""Source and sink through TLS, with a token."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.brokers import BrokerProcess
from tests.certificates import Authority
from tests.doors.flight.tls_relay import TlsRelay
from tests.pipeline.queries import numbered, payloads, published, told


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
