"""Backups that are made while several doors publish, transactions are committed, cursors move and collection removes
what was read: each has all that was acknowledged before it began."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import stafeta
from stafeta import Client
from tests.backup.brokers import Restorable
from tests.brokers import BrokerProcess
from tests.conformance.devices import STRING, datagram
from tests.waiting import PATIENCE, wait_until

TINY = ("--set", "store.sweep=5ms", "--set", "store.checkpoint_rows=50", "--durability", "os")
KEPT = ("kept/zeromq", "kept/flight", "kept/devices", "kept/debit")
ACKNOWLEDGER = "acknowledger"  # of what transactions have written
LARGE = 300 << 10  # bytes of a message that lies in a segment


class Load:
    """What was acknowledged, by topic: the messages are numbered from 1 on."""

    def __init__(self, broker: BrokerProcess, reader: Path) -> None:
        self._broker = broker
        self._reader = reader  # the folder of the client that reads
        self.acknowledged: dict[str, int] = {}
        self.cursor = 1  # of the acknowledger
        self._ended = threading.Event()
        self._failures: list[BaseException] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._guarded, args=(one,))
            for one in (self._zeromq, self._flight, self._transactions, self._reading, self._devices)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
        assert not self._failures, self._failures

    def go_on(self) -> None:
        """Waits until more has come to every topic."""
        before = dict(self.acknowledged)

        def came() -> bool:
            assert not self._failures, self._failures
            return all(self.acknowledged.get(topic, 0) > before.get(topic, 0) + 10 for topic in KEPT)

        wait_until(came)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is the test's
            self._failures.append(error)

    def _numbers(self, topic: str) -> Iterator[int]:
        number = 0
        while not self._ended.is_set():
            number += 1
            yield number
            self.acknowledged[topic] = number

    def _zeromq(self) -> None:
        with Client(self._broker.address, timeout=PATIENCE, retries=1) as client:
            for number in self._numbers("kept/zeromq"):
                client.put("kept/zeromq", str(number))
                client.put("read/zeromq", str(number))

    def _flight(self) -> None:
        with stafeta.connect(self._broker.flight, timeout=PATIENCE) as connection:
            for number in self._numbers("kept/flight"):
                text = str(number)
                connection.publish("read/flight", pa.table({"payload": [text.ljust(LARGE, ".").encode()]}))
                if number % 20 == 1:  # some of what lies in segments stays
                    connection.publish("kept/large", pa.table({"payload": [text.ljust(LARGE, ".").encode()]}))
                connection.publish("kept/flight", [text])

    def _transactions(self) -> None:
        """The message of a number has its offset."""
        with stafeta.connect(self._broker.flight, timeout=PATIENCE) as connection:
            for number in self._numbers("kept/debit"):
                with connection.transaction("booking") as transaction:
                    transaction.write("kept/debit", [str(number)])
                    transaction.write("kept/credit", [str(number)])
                connection.acknowledge("kept/debit", {"kept/debit": number + 1}, name=ACKNOWLEDGER)
                self.cursor = number + 1

    def _devices(self) -> None:
        """Nobody acknowledges a datagram, but what a topic has is stored."""
        place = self._broker.door("devices")
        with (
            Client(self._broker.address, timeout=PATIENCE, retries=1) as client,
            socket.socket(type=socket.SOCK_DGRAM) as udp,
        ):
            while not self._ended.is_set():
                udp.sendto(datagram("kept/devices", STRING, b"1"), place)
                for topic in client.topics("kept/devices"):
                    self.acknowledged["kept/devices"] = topic.next - 1

    def _reading(self) -> None:
        """Lets collection have what it has read."""
        with Client(self._broker.address, self._reader, timeout=PATIENCE, retries=1) as client:
            while not self._ended.is_set():
                messages = client.get_many("read/#", wait=0.1)
                if messages:
                    client.ack(messages)


def cursor(broker: BrokerProcess) -> int:
    with stafeta.connect(broker.flight, timeout=PATIENCE) as connection:
        return connection.cursors("kept/debit", name=ACKNOWLEDGER)["kept/debit"]


def held(broker: BrokerProcess, topic: str) -> list[int]:
    with stafeta.connect(broker.flight, timeout=PATIENCE) as connection:
        return [int(bytes(one or b"").rstrip(b".")) for one in connection.read(topic)["payload"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("backups", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_what_was_acknowledged_before_a_backup_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backups: int
) -> None:
    broker = Restorable(tmp_path, capsys, *TINY)
    begun: dict[str, tuple[dict[str, int], int]] = {}
    with broker.process, ExitStack() as stack:
        with Client(broker.process.address, timeout=PATIENCE, retries=1) as client:
            client.subscribe("kept/#")
        with Client(broker.process.address, tmp_path / "reader", timeout=PATIENCE, retries=1) as client:
            client.subscribe("read/#")
        with stafeta.connect(broker.process.flight, timeout=PATIENCE) as connection:
            connection.hold("kept/debit", name=ACKNOWLEDGER, start="earliest")
        load = Load(broker.process, tmp_path / "reader")
        stack.enter_context(load.running())
        for _ in range(backups):
            load.go_on()
            before = dict(load.acknowledged), load.cursor
            begun[broker.back_up()["point"]] = before
    for number, (point, (acknowledged, moved)) in enumerate(begun.items()):
        data = tmp_path / f"restored-{number}"
        said = broker.command("restore", str(broker.to), "--at", point, "--data", str(data))
        assert said["sound"], said
        with BrokerProcess(data, doors=("flight",)) as restored:
            for topic, count in acknowledged.items():
                found = held(restored, topic)
                if topic != "kept/devices":
                    assert found == list(range(1, len(found) + 1))
                assert len(found) >= count, (topic, count)
            debit = held(restored, "kept/debit")
            assert held(restored, "kept/credit") == debit, "transactions are whole"
            # All but the last is acknowledged; or all, and so what nobody will ever have.
            assert moved <= cursor(restored) in (len(debit), said["restored"]["offset"])
            large = held(restored, "kept/large")
            assert large == [1 + 20 * at for at in range(len(large))]
