"""Clients of every door go on at a broker that was restored: told of what is lost, and with nothing twice."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from stafeta import Client
from stafeta.clients.devices import Subscriber
from stafeta.clients.frames import JSONQueue
from stafeta.errors import DataLoss, NoReply
from tests.backup.brokers import Restorable
from tests.conformance.devices import STRING, datagram
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Restorable]:
    one = Restorable(tmp_path, capsys)
    with one.process:
        yield one


def taken(client: Client, topic: str, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        messages = client.get_many(topic, wait=PATIENCE)
        found += [message.text for message in messages]
        client.ack(messages)
    return found


def test_zeromq_clients(broker: Restorable, tmp_path: Path) -> None:
    def client(name: str, timeout: float = PATIENCE) -> Client:
        return Client(broker.process.address, tmp_path / name, timeout=timeout, retries=1)

    with client("ahead") as ahead, client("behind") as behind, client("new") as newcomer:
        for one in (ahead, behind):
            one.subscribe("t")
        with client("publisher") as publisher:
            publisher.put_many("t", ["1", "2", "3"])
            assert taken(behind, "t", 3) == ["1", "2", "3"]
            broker.back_up()
            publisher.put_many("t", ["4", "5"])
        newcomer.put("t", "6")
        assert taken(ahead, "t", 6) == ["1", "2", "3", "4", "5", "6"]
        broker.process.kill()
        with client("publisher", 0.1) as publisher, pytest.raises(NoReply):
            publisher.put("t", "7")  # it is kept
        went_on = broker.lose()
        # Neither whom the backup knows nor whom it does not is refused, though both are ahead of it.
        with client("publisher") as publisher:
            publisher.put("t", "8")
            assert publisher.count("t") == 7
        newcomer.put("t", "9")
        messages = behind.get_many("t", wait=PATIENCE)
        assert [message.text for message in messages] == ["7", "8", "9"]
        assert [message.id for message in messages] == [went_on, went_on + 1, went_on + 2]
        behind.ack(messages)
        with pytest.raises(DataLoss):
            ahead.get("t", wait=PATIENCE)
        ahead.accept_loss("t")
        assert taken(ahead, "t", 6) == ["1", "2", "3", "7", "8", "9"]
    broker.process.wait_for_line("its messages 4 to 5 came after the backup that was restored, and are lost")


def test_flight_producers_and_subscriptions(broker: Restorable) -> None:
    with stafeta.connect(broker.process.flight, timeout=PATIENCE) as connection:
        connection.hold("t", name="held")
        producer = connection.producer("t", name="p")
        subscription = connection.subscribe("t", name="s")
        live = connection.subscribe("t")
        producer.send_many(["1", "2", "3"])
        producer.flush()
        connection.publish("t", ["a"])
        assert next(subscription).payloads()
        broker.back_up()
        producer.send_many(["4", "5"])
        producer.flush()
        connection.publish("t", ["b"])
        got: list[bytes] = []
        while len(got) < 7:
            got += next(live).payloads()
        went_on = broker.lose()
        producer.send("6")
        producer.flush()
        assert producer.count == 6
        published = connection.publish("t", ["c"])
        assert published.first == went_on + 1
        with pytest.raises(DataLoss):
            next(live)
        held = [(one["offset"], one["payload"]) for one in connection.read("t").to_pylist()]
        assert [payload for _, payload in held] == [b"1", b"2", b"3", b"a", b"6", b"c"]
        assert [offset for offset, _ in held] == [1, 2, 3, 4, went_on, went_on + 1]
        (topic,) = connection.topics("t")
        assert (topic.next, topic.rows) == (went_on + 2, 6)
        assert connection.cursors("t", name="held") == {"t": 1}


def test_devices(broker: Restorable) -> None:
    host, port = broker.process.door("devices")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:

        def publish(text: str) -> None:
            udp.sendto(datagram("hall", STRING, text.encode()), (host, port))

        with Subscriber("C1", host, port, timeout=PATIENCE) as subscriber:
            subscriber.subscribe("hall", sf=True)
            with Client(broker.process.address) as client:
                wait_until(lambda: client.topics("hall"))
                publish("1")
                assert next(iter(subscriber)).value == "1"
        with Client(broker.process.address) as client:
            wait_until(lambda: not client.clients()[0].connected)
            publish("2")
            wait_until(lambda: client.topics("hall")[0].next == 3)
        broker.back_up()
        publish("lost")
        went_on = broker.lose()
        publish("3")
        with Subscriber("C1", host, port, timeout=PATIENCE) as subscriber:
            messages = iter(subscriber)
            assert [next(messages).value, next(messages).value] == ["2", "3"]
        with Client(broker.process.address) as client:
            assert client.topics("hall")[0].next == went_on + 1


def test_frames_keep_their_last_value(broker: Restorable) -> None:
    host, port = broker.process.door("frames")
    with JSONQueue("/weather", "producer", host, port, timeout=PATIENCE) as queue:
        queue.push({"t": 1})
        queue.push({"t": 2})
    with JSONQueue("/weather", "consumer", host, port, timeout=PATIENCE) as queue:
        assert queue.pull() == ("/weather", {"t": 2})
    broker.back_up()
    broker.lose()
    with JSONQueue("/weather", "consumer", host, port, timeout=PATIENCE) as queue:
        assert queue.pull() == ("/weather", {"t": 2})
        with JSONQueue("/weather", "producer", host, port, timeout=PATIENCE) as other:
            other.push({"t": 3})
        assert queue.pull() == ("/weather", {"t": 3})
