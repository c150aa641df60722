"""The native client over a connection that breaks again and again, amid batches and answers."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import stafeta
from stafeta.clients.flight import sender
from stafeta.clients.flight.connection import Connection
from tests.brokers import BrokerProcess
from tests.doors.flight.flaky_relay import FlakyRelay
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROWS = 200


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("cut") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=36500d', doors=("flight",)) as process:
        yield process
        assert "Traceback" not in process.stderr


def address(process: BrokerProcess) -> str:
    return process.flight


def numbers(broker: Connection, topic: str) -> list[int]:
    payloads: list[Any] = broker.read(topic, columns=["payload"]).column("payload").to_pylist()
    return list(map(int, payloads))


@pytest.mark.parametrize("limit", [400, 5_000, 70_000, 300_000])
def test_a_producer_over_a_wire_that_is_cut(standing: BrokerProcess, topic: str, limit: int) -> None:
    total = 8_000
    with FlakyRelay(standing.door("flight"), limit, 3) as relay:
        with (
            stafeta.connect(relay.address, timeout=PATIENCE) as broker,
            broker.producer(topic, batch_rows=ROWS) as producer,
        ):
            producer.send_many(f"{number:0200}" for number in range(total))
            producer.flush()
        assert relay.cuts == 3
    with stafeta.connect(address(standing)) as broker:
        assert numbers(broker, topic) == list(range(total))


@pytest.mark.parametrize("form", ["{}", "{}/#"])
@pytest.mark.parametrize("limit", [5_000, 70_000, 300_000])
def test_reading_over_a_wire_that_is_cut(standing: BrokerProcess, topic: str, limit: int, form: str) -> None:
    total = 8_000
    what = form.format(topic)
    with stafeta.connect(address(standing)) as broker:
        broker.publish(topic, [f"{number:0200}" for number in range(total)])
    with FlakyRelay(standing.door("flight"), limit, 3) as relay:
        with stafeta.connect(relay.address, timeout=PATIENCE) as broker:
            assert numbers(broker, what) == list(range(total))
            assert broker.read(what, limit=7_000, columns=["payload"]).num_rows == 7_000
        assert relay.cuts


@pytest.mark.parametrize("form", ["{}", "{}/#"])
def test_a_subscription_over_a_wire_that_is_cut(
    standing: BrokerProcess, topic: str, name: str, form: str
) -> None:
    total = 8_000
    what = form.format(topic)
    with FlakyRelay(standing.door("flight"), 100_000, 3) as relay:
        with (
            stafeta.connect(relay.address, timeout=PATIENCE) as broker,
            broker.subscribe(what, name=name) as subscription,
        ):
            with stafeta.connect(address(standing)) as writer:
                for start in range(0, total, 1000):
                    rows = [f"{number:0200}" for number in range(start, start + 1000)]
                    writer.publish(f"{topic}/{start}" if "#" in form else topic, rows)
            found: list[int] = []
            while len(found) < total:
                batch = next(subscription)
                found += map(int, batch.payloads())
                batch.ack()
        assert relay.cuts == 3
    assert found == list(range(total))
    with stafeta.connect(address(standing)) as broker:
        assert list(broker.subscribe(what, name=name, follow=False)) == []


def test_a_stream_that_has_grown_old_is_followed_by_another(
    standing: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_AGE", 0.02)
    with stafeta.connect(address(standing)) as broker:
        with broker.producer(topic, linger=0) as producer:
            sources: set[object] = set()
            while len(sources) < 5:
                producer.send(str(producer.sent))
                producer.flush()
                sources = set(broker.read(topic, columns=["source"]).column("source").to_pylist())
            total = producer.sent
        assert numbers(broker, topic) == list(range(total))


@pytest.mark.parametrize("limit", [5_000, 70_000])
def test_a_transaction_of_many_topics_over_a_wire_that_is_cut(
    standing: BrokerProcess, topic: str, limit: int
) -> None:
    """They go together, and the broker takes them apart: whole batches again and again, each of which counts once."""
    topics, each = 3_000, 3
    names = [f"{topic}/{row % topics}" for row in range(topics * each)]
    data = pa.table({"topic": names, "payload": [str(row) for row in range(topics * each)]})
    with FlakyRelay(standing.door("flight"), limit, 3) as relay:
        with stafeta.connect(relay.address, timeout=PATIENCE) as broker:
            transaction = broker.transaction(topic)
            assert transaction.write(None, data) == topics * each
            assert transaction.write(f"{topic}/0", ["alone"]) == 1
            assert transaction.write(None, data.slice(0, 10)) == 10
            assert transaction.commit({"main": topics * each + 11})
        assert relay.cuts == 3
    with stafeta.connect(address(standing)) as broker:
        found: dict[str, list[str]] = {}
        for row in broker.read(f"{topic}/#", columns=["topic", "payload"]).to_pylist():
            found.setdefault(row["topic"], []).append(row["payload"].decode())
    wanted = {f"{topic}/{one}": [str(one + topics * turn) for turn in range(each)] for one in range(topics)}
    wanted[f"{topic}/0"].append("alone")
    for one in range(10):
        wanted[f"{topic}/{one}"].append(str(one))
    assert found == wanted
