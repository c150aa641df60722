"""The native client when the broker's disk is full, or has lost what was on it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.errors import OutOfSequence, Unavailable
from tests.brokers import BrokerProcess
from tests.faults.test_disk import small_disk
from tests.waiting import PATIENCE, wait_until

__all__ = ["small_disk"]

KEEP = ("--set", 'topics."#".keep=1000000000 messages')


def address(process: BrokerProcess) -> str:
    return process.flight


def numbers(broker: Connection, topic: str) -> list[int]:
    payloads: list[Any] = broker.read(topic, columns=["payload"]).column("payload").to_pylist()
    return [int(payload.split()[0]) for payload in payloads]


def test_a_full_disk_is_told_and_what_waited_is_stored_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    with (
        BrokerProcess(small_disk / "data", *KEEP, doors=("flight",)) as process,
        stafeta.connect(address(process), timeout=1) as broker,
        broker.producer("t", batch_rows=10, max_memory=1 << 20) as producer,
    ):
        with pytest.raises(Unavailable, match="room"):
            producer.send_many(f"{number} ".ljust(20_000, "x") for number in range(1000))
        stored = producer.acknowledged
        assert 0 < stored < producer.sent
        found = numbers(broker, "t")  # the producer goes on trying, and a batch may still have had room
        assert found == list(range(len(found)))
        assert stored <= len(found) < producer.sent
        with pytest.raises(Unavailable):
            broker.publish("other", [b"y" * 300_000])
        ballast.unlink()
        producer.flush()
        assert numbers(broker, "t") == list(range(producer.sent))
        wait_until(lambda: [one.rows for one in broker.topics("other")] == [1])  # it was not given up either


def test_a_broker_that_has_lost_its_data_is_noticed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", *KEEP, doors=("flight",)) as process,
        stafeta.connect(address(process), timeout=PATIENCE) as broker,
    ):
        producer = broker.producer("t")
        producer.send_many(map(str, range(10)))
        producer.flush()
        broker.publish("t", ["10"])
        process.kill()
        shutil.rmtree(process.data)
        process.start()
        producer.send("11")
        with pytest.raises(OutOfSequence, match="Has the broker lost its data") as raised:
            producer.close()
        assert raised.value.expected == 1
        with pytest.raises(OutOfSequence):
            broker.publish("t", ["12"])
        broker.publish("t", ["13"])  # it was told once, and goes on
        assert numbers(broker, "t") == [13]
