"""A subscriber that does not read costs the broker little, nobody else anything, and itself nothing."""

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Place, Publisher, Subscriber
from tests.waiting import PATIENCE

MESSAGES = 1_000_000
PORTION = 10_000


def texts(start: int) -> list[str]:
    return [f"{number:07}".ljust(100, ".") for number in range(start, start + PORTION)]


class Stream:
    """The bytes that a subscriber in the text dialect is owed, and those it has got."""

    def __init__(self) -> None:
        head = (
            socket.inet_aton("127.0.0.1") + bytes(2) + (51 + 100).to_bytes(2) + b"t".ljust(50, b"\0") + b"\3"
        )
        self.expected = hashlib.blake2b()
        self.size = 0
        for start in range(0, MESSAGES, PORTION):
            portion = b"".join(head + text.encode() for text in texts(start))
            self.expected.update(portion)
            self.size += len(portion)

    def arrives_at(self, subscriber: Subscriber) -> bool:
        got = hashlib.blake2b()
        left = self.size
        while left:
            data = subscriber.socket.recv(min(left, 1 << 20))
            if not data:
                raise EOFError(f"closed, with {left} bytes to come")
            got.update(data)
            left -= len(data)
        return got.digest() == self.expected.digest()


@pytest.mark.slow
def test_a_million_messages_pass_readers_who_do_not_read(tmp_path: Path) -> None:
    stream = Stream()
    with BrokerProcess(tmp_path / "data", "--durability", "os", doors=("devices",)) as broker:
        place: Place = broker.door("devices")
        with (
            Publisher(place) as publisher,
            Subscriber(place, "kept") as kept,
            Subscriber(place, "live") as live,
            Subscriber(place, "quick") as quick,
            Client(broker.address) as client,
        ):
            for subscriber, sf in ((kept, 1), (live, 0), (quick, 1)):
                subscriber.subscribe("t", sf)
                subscriber.settled(publisher)
            process = psutil.Process(broker.pid)
            before = process.memory_info().rss
            reading = Reading(stream, quick)
            most = before
            for start in range(0, MESSAGES, PORTION):
                client.put_many("t", texts(start))
                most = max(most, process.memory_info().rss)
            assert reading.result(), "the quick one has everything while the others read nothing"
            grown = most - before
            print(f"grown by {grown / 1e6:.0f} MB; the messages are {stream.size / 1e6:.0f} MB")
            assert grown < 130e6, (
                "most of which is what the broker keeps of the newest messages for everybody"
            )
            assert stream.arrives_at(kept)
            assert stream.arrives_at(live)


class Reading:
    """A subscriber that reads in the background."""

    def __init__(self, stream: Stream, subscriber: Subscriber) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(stream.arrives_at, subscriber)

    def result(self) -> bool:
        done = self._future.result(PATIENCE)
        self._pool.shutdown()
        return done


def test_a_live_reader_that_lags_too_far_is_told_and_disconnected(
    dialect: type[Subscriber], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "limits.max_lag=2000", doors=("devices",)) as broker:
        place = broker.door("devices")
        with (
            Publisher(place) as publisher,
            dialect(place, "slow", receive_buffer=4096) as slow,
            Subscriber(place, "kept", receive_buffer=4096) as kept,
            Client(broker.address) as client,
        ):
            slow.subscribe("t", 0)
            slow.settled(publisher)
            kept.subscribe("t", 1)
            kept.settled(publisher)
            for start in range(0, 3 * PORTION, PORTION):
                client.put_many("t", texts(start))
            broker.wait_for_line("'devices/slow' is ")
            got = slow.receive(1)
            while got[-1].topic == "t":
                got += slow.receive(1)
            assert slow.is_closed()
            assert got[-1].topic == "$sys/lagging"
            assert b"a live subscription may be 2000 behind" in got[-1].content
            sent = [text.encode() for text in texts(0)]
            assert [message.content for message in got[:-1]] == sent[: len(got) - 1]
            assert [message.content for message in kept.receive(PORTION)] == sent, "who is durable stays"
