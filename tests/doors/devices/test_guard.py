"""Datagrams that are refused at a broker's door, and those that are not."""

import socket
from pathlib import Path

from stafeta.clients.devices import Publisher
from stafeta.doors.devices.readings import write
from stafeta.doors.devices.signing import sign
from stafeta.message import Kind
from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Subscriber
from tests.waiting import wait_until

KEY = bytes(range(32))


def test_only_signed_datagrams_are_taken_and_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY.hex())
    path.chmod(0o600)
    words = (
        "--set",
        f"devices.udp_key={path}",
        "--set",
        "devices.udp_networks=127.0.0.0/8",
        "--log-level",
        "debug",
    )
    with BrokerProcess(tmp_path / "data", *words, doors=("devices",)) as broker:
        place = broker.door("devices")
        with (
            Subscriber(place, "C1") as subscriber,
            Publisher(*place, key=KEY, sender=7) as publisher,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
        ):
            subscriber.subscribe("hall")
            subscriber.socket.settimeout(0.05)

            def heard() -> bool:
                publisher.publish("hall", Kind.STRING, b"probe")
                try:
                    return subscriber.receive(1)[0].content == b"probe"
                except TimeoutError:
                    return False

            wait_until(heard)
            longest = write("hall", Kind.STRING, b"x" * 1500)
            micros = publisher._last + 1
            signed = sign(longest, KEY, 7, micros)
            for datagram in (
                longest,
                b"",
                b"noise",
                signed[:-1],
                sign(longest, bytes(32), 7, micros),
                signed,
                signed,
            ):
                stranger.sendto(datagram, place)
            publisher._last = micros
            publisher.publish("hall", Kind.STRING, b"last")
            subscriber.socket.settimeout(60)
            got: list[bytes] = []
            while not got or got[-1] != b"last":
                got.append(subscriber.receive(1)[0].content)
            assert [content for content in got if content != b"probe"] == [b"x" * 1500, b"last"]
        broker.stop()
        assert "refused=5" in broker.wait_for_line("datagrams were dropped")


def test_datagrams_from_elsewhere_are_not_taken(tmp_path: Path) -> None:
    words = ("--set", "devices.udp_networks=10.0.0.0/8,fd00::/8")
    with BrokerProcess(tmp_path / "data", *words, doors=("devices",)) as broker:
        with Publisher(*broker.door("devices")) as publisher:
            for _ in range(3):
                publisher.publish("hall", Kind.INT, b"1")
        broker.stop()
        assert "refused=3" in broker.wait_for_line("datagrams were dropped")
