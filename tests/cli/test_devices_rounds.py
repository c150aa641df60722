"""Sixteen readings in thirty rapid rounds, over the worst network, to a subscriber that nobody reads."""

import fcntl

from stafeta.cli import exits
from stafeta.clients.devices import Publisher
from stafeta.message import Kind
from tests.cli.byte_relay import ByteRelay
from tests.cli.programs import DevicesServer
from tests.waiting import wait_until

ROUNDS = 30
READINGS = [
    ("r/int", Kind.INT, "17"),
    ("r/int", Kind.INT, "-17"),
    ("r/int", Kind.INT, "4294967295"),
    ("r/int", Kind.INT, "-4294967295"),
    ("r/short", Kind.SHORT_REAL, "2.30"),
    ("r/short", Kind.SHORT_REAL, "655.35"),
    ("r/float", Kind.FLOAT, "17"),
    ("r/float", Kind.FLOAT, "-1.5"),
    ("r/float", Kind.FLOAT, "17.05"),
    ("r/float", Kind.FLOAT, "-0.125"),
    ("r/float", Kind.FLOAT, "1234.4321"),
    ("r/float", Kind.FLOAT, "-3.141592"),
    ("r/float", Kind.FLOAT, "4.294967295"),
    ("r/float", Kind.FLOAT, "-0.000000001"),
    ("r/" + "t" * 48, Kind.STRING, "a topic of exactly fifty characters"),
    ("r/long", Kind.STRING, "x" * 1500),
]


def test_all_readings_arrive_whole_and_in_order() -> None:
    frames = sum(
        59 + {"INT": 5, "SHORT_REAL": 2, "FLOAT": 6}.get(kind.name, len(text)) for _, kind, text in READINGS
    )
    with (
        DevicesServer("--set", "devices.buffer=4KiB") as server,
        ByteRelay(server.port) as relay,
        Publisher("127.0.0.1", server.port) as publisher,
        server.subscriber("C1", relay.port) as subscriber,
    ):
        fcntl.fcntl(subscriber.output, fcntl.F_SETPIPE_SZ, 4096)
        subscriber.enter("subscribe r/+ 1", "subscribe ready")
        assert subscriber.lines(2) == ["Subscribed to topic."] * 2

        def ready() -> bool:
            publisher.publish("ready", Kind.STRING, b"")
            return relay.passed > 0

        wait_until(ready)
        for _ in range(ROUNDS):
            for topic, kind, text in READINGS:
                publisher.publish(topic, kind, text.encode())
        # All of it is on its way, and as much as fits has come, before anyone reads a line.
        wait_until(lambda: relay.passed > ROUNDS * frames)
        lines = [line for line in subscriber.lines(ROUNDS * len(READINGS)) if " - ready - " not in line]
        lines += subscriber.lines(ROUNDS * len(READINGS) - len(lines))
        assert [line.partition(" - ")[2] for line in lines] == [
            f"{topic} - {kind.name} - {text}" for topic, kind, text in READINGS
        ] * ROUNDS
        assert subscriber.leave() == exits.OK
        assert server.line() == "Client C1 disconnected."
        assert server.leave() == exits.OK
        assert (subscriber.errors, subscriber.rest()) == ("", "")
