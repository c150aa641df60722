"""What becomes of messages when a connection or the broker ends."""

import ctypes
import socket
import struct
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.doors.devices.comings import gone, subscribed
from tests.doors.devices.subscribers import Place, Publisher, Subscriber
from tests.waiting import wait_until


def test_subscriptions_and_what_they_hold_outlive_the_broker(
    dialect: type[Subscriber], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed") / "data", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, Subscriber(place, "witness") as witness:
            with dialect(place, "C1") as subscriber:
                subscribed(subscriber, publisher, "kept", sf=1)
                subscribed(subscriber, publisher, "lost", sf=0)
            gone(broker, "C1")
            subscribed(witness, publisher, "kept", "lost")
            sent = [publisher.send(name, 3, b"1") for name in ("kept", "lost", "kept")]
            assert witness.receive(3) == sent, "what was delivered is on disk"
            broker.restart()
        with Publisher(place) as publisher, dialect(place, "C1") as subscriber:
            assert subscriber.receive(2) == sent[::2]
            now = [publisher.send(name, 3, b"2") for name in ("lost", "kept")]
            assert subscriber.receive(2) == now


def test_what_was_on_its_way_when_a_connection_broke_comes_again(
    place: Place, publisher: Publisher, client: str, topic: str, door_of: BrokerProcess
) -> None:
    with Subscriber(place, client, receive_buffer=4096) as subscriber:
        subscribed(subscriber, publisher, topic, sf=1)
        texts = [f"{number:04}".ljust(1000, ".") for number in range(1000)]
        sent = publisher.send_texts(topic, texts)
        assert subscriber.receive(10) == sent[:10]
        subscriber.reset()
    gone(door_of, client)
    with Subscriber(place, client) as subscriber:
        first = subscriber.receive(1)[0]
        at = sent.index(first)
        assert at < 600, "the broker's and the kernel's buffers hold less than that"
        assert subscriber.receive(len(sent) - at - 1) == sent[at + 1 :], "all the others, in order"


def test_a_client_that_has_read_everything_gets_nothing_twice(
    place: Place, publisher: Publisher, client: str, topic: str, door_of: BrokerProcess
) -> None:
    for number in range(20):
        with Subscriber(place, client) as subscriber:
            if number == 0:
                subscribed(subscriber, publisher, topic, sf=1)
            sent = publisher.send(topic, 3, b"%d" % number)
            assert subscriber.receive(1) == [sent]
        gone(door_of, client)


def test_what_has_come_before_the_end_is_published_and_delivered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, Subscriber(place, "C1") as subscriber:
            subscribed(subscriber, publisher, "t", sf=1)
            sent = publisher.send_texts("t", [str(number) for number in range(200)])
            broker.stop()
            assert subscriber.receive(200) == sent
            assert subscriber.is_closed()


def test_the_id_of_a_device_that_vanished_with_data_in_flight_is_free_again(
    tmp_path: Path, dialect: type[Subscriber]
) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "limits.peer_timeout=1s", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, dialect(place, "C1") as vanishing:
            subscribed(vanishing, publisher, "t", sf=1)
            vanish(vanishing.socket)
            sent = publisher.send("t", 3, b"in flight")
            gone(broker, "C1")
            with dialect(place, "C1") as back:
                assert back.receive(1) == [sent]


def test_an_id_goes_to_who_came_last_where_that_is_configured(
    tmp_path: Path, dialect: type[Subscriber]
) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "devices.takeover=true", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, dialect(place, "C1") as older:
            subscribed(older, publisher, "t", sf=1)
            vanish(older.socket)
            sent = publisher.send("t", 3, b"in flight")
            with dialect(place, "C1") as newer:
                assert newer.receive(1) == [sent]
                sent = publisher.send("t", 3, b"next")
                assert newer.receive(1) == [sent]
    comings = [word for word in broker.stderr.split() if word in ("connected", "disconnected.")]
    assert comings[:3] == ["connected", "disconnected.", "connected"]


def test_what_a_device_has_got_does_not_come_again_to_who_takes_its_id_over(
    tmp_path: Path, dialect: type[Subscriber]
) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "devices.takeover=true", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, ExitStack() as opened:
            last = opened.enter_context(dialect(place, "C1"))
            subscribed(last, publisher, "t", sf=1)
            for number in range(2, 12):
                sent = publisher.send("t", 3, b"%d" % number)
                assert last.receive(1) == [sent]
                last = opened.enter_context(dialect(place, "C1"))
                wait_until(partial(_has_come, broker, number))


def _has_come(broker: BrokerProcess, times: int) -> bool:
    return broker.stderr.count("New client C1 ") == times


def vanish(peer: socket.socket) -> None:
    """Drops whatever comes, without a word: the kernel at the other end hears nothing any more."""
    drop = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0
    held = ctypes.create_string_buffer(drop)
    so_attach_filter = 26
    peer.setsockopt(socket.SOL_SOCKET, so_attach_filter, struct.pack("HL", 1, ctypes.addressof(held)))
