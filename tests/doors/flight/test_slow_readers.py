"""Readers who do not read cost the broker nothing, and nobody else either."""

from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, refused, rows_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PORTION, PORTIONS = 5_000, 40
OPTIONS = ("--durability", "os", "--set", "store.tail=4MiB")


def portion(number: int) -> pa.RecordBatch:
    first = number * PORTION
    return rows_of(f"{row:07}".ljust(1000, ".") for row in range(first, first + PORTION))


def test_200000_rows_pass_readers_who_do_not_read(tmp_path: Path) -> None:
    options = (*OPTIONS, "--set", 'topics."#".keep=1000000000 messages')
    with (
        BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker,
        Peer(broker.door("flight"), 100) as peer,
        Peer(broker.door("flight"), 100) as other,
        Peer(broker.door("flight"), 100) as last,
    ):
        peer.subscribe("deaf", "t", **{"from": "earliest"})
        peer.put("t", portion(0))  # so that what the first batch takes is there already
        asleep = [
            other.reading({"client": "deaf", "filter": "t", "follow": True}),
            last.reading({"topic": "t", "follow": True}),
        ]
        process = psutil.Process(broker.pid)
        before = most = process.memory_info().rss
        with peer.putting("t", portion(0).schema) as stream:
            for number in range(1, PORTIONS):
                stream.send(portion(number))
                stream.answer()
                most = max(most, process.memory_info().rss)
        print(f"grown by {(most - before) / 1e6:.0f} MB")
        assert most - before < 130e6, "the messages are 200 MB"
        for stream_of in asleep:
            rows = 0
            while rows < PORTION * PORTIONS:
                batch = stream_of.batch()
                assert batch is not None
                assert batch.column("payload")[0].as_py()[:7] == b"%07d" % rows
                rows += batch.num_rows
                most = max(most, process.memory_info().rss)
            assert rows == PORTION * PORTIONS
            stream_of.cancel()
        assert most - before < 130e6, "reading takes memory for a few batches"


def test_a_follower_whose_messages_have_gone_is_told_so(tmp_path: Path) -> None:
    options = (*OPTIONS, "--set", "limits.max_lag=20000", "--set", "store.sweep=50ms")
    with (
        BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
        Peer(broker.door("flight")) as other,
        Peer(broker.door("flight")) as third,
    ):
        peer.subscribe("durable", "held")
        live = other.reading({"topic": "t", "follow": True})
        durable = third.reading({"client": "durable", "filter": "held", "follow": True})
        assert live.schema  # so it has begun
        for topic in ("t", "held"):
            with peer.putting(topic, portion(0).schema) as stream:
                for number in range(20):
                    stream.send(portion(number))
                stream.answers(20)
        # The topic itself goes once its only reader has been ended, which may be before anybody looks.
        wait_until(lambda: all(topic["first"] > 60_000 for topic in peer.topics("t")))
        with refused(flight.FlightCancelledError) as told:
            while live.batch() is not None:
                pass
        assert told.error == "Lagging"
        assert durable.rows(PORTION * 20).num_rows == PORTION * 20  # it may take its time
        durable.cancel()


def test_a_follower_may_be_as_far_behind_as_there_are_messages(tmp_path: Path) -> None:
    keep = (
        "--set",
        'topics."#".keep=1000000000 messages',
        "--set",
        "limits.max_lag=1000",
        "--set",
        "store.sweep=50ms",
    )
    with (
        BrokerProcess(tmp_path / "data", *OPTIONS, *keep, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
        Peer(broker.door("flight")) as other,
    ):
        live = other.reading({"topic": "t", "follow": True})
        with peer.putting("t", portion(0).schema) as stream:
            for number in range(10):
                stream.send(portion(number))
            stream.answers(10)
        assert live.rows(PORTION * 10).num_rows == PORTION * 10
        live.cancel()


def test_readers_who_leave_early_leave_nothing_behind(tmp_path: Path) -> None:
    options = (*OPTIONS, "--set", 'topics."#".keep=1000000000 messages')
    with (
        BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
    ):
        with peer.putting({}, portion(0).schema) as stream:
            for number in range(2000):
                stream.send(rows_of(["x" * 50] * 300), {"topic": f"t/{number % 3}"})
            stream.answers(2000)
        process = psutil.Process(broker.pid)
        most: list[int] = []
        for number in range(150):
            with peer.reading({"filter": "t/#", "follow": number % 2 == 0}) as reading:
                assert reading.batch() is not None
            most.append(process.memory_info().rss)
        print(f"grown by {(max(most) - most[20]) / 1e6:.0f} MB")
        assert max(most) - most[20] < 60e6, "150 readers have come and gone"
