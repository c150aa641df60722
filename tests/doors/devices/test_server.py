"""What subscribers get through the devices door."""

import time
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.doors.devices.comings import gone, subscribed
from tests.doors.devices.subscribers import STRUCT_MESSAGE, Place, Publisher, StructSubscriber, Subscriber
from tests.doors.zeromq.peers import Peer
from tests.waiting import wait_until

NUMBERS = [
    (0, b"\x00\x00\x00\x00\x2a"),  # 42
    (0, b"\x01\xff\xff\xff\xff"),  # -4294967295
    (1, b"\x00\x07"),  # 0.07
    (2, b"\x00\x00\xbc\x5c\x01\x04"),  # 1234.4321
    (2, b"\x01\x00\x00\x00\x05\x09"),  # -0.000000005
    (3, "ștafetă".encode()),
]


def test_all_types_arrive_as_they_were_sent(
    dialect: type[Subscriber], place: Place, publisher: Publisher, client: str, topic: str
) -> None:
    with dialect(place, client) as subscriber:
        subscribed(subscriber, publisher, topic)
        sent = [publisher.send(topic, type_, content) for type_, content in NUMBERS]
        assert subscriber.receive(len(sent)) == sent


def test_commands_may_be_cut_anywhere(
    dialect: type[Subscriber], place: Place, publisher: Publisher, client: str, topic: str
) -> None:
    with dialect(place, client) as subscriber:
        commands = [subscriber.subscription(f"{topic}/{number}") for number in range(3)]
        for at in range(len(whole := b"".join([*commands, subscriber.ending(f"{topic}/1")]))):
            subscriber.say(whole[at : at + 1])
        subscriber.settled(publisher)
        publisher.send(f"{topic}/1", 3, b"no")
        sent = [publisher.send(f"{topic}/{number}", 3, b"yes") for number in (0, 2)]
        assert subscriber.receive(2) == sent


def test_what_comes_while_one_is_away_is_kept_with_sf_alone(
    dialect: type[Subscriber],
    place: Place,
    publisher: Publisher,
    client: str,
    topic: str,
    door_of: BrokerProcess,
) -> None:
    with dialect(place, client) as subscriber, Subscriber(place, f"w{client}") as witness:
        subscribed(witness, publisher, f"{topic}/+")
        subscribed(subscriber, publisher, f"{topic}/kept", sf=1)
        subscribed(subscriber, publisher, f"{topic}/lost", sf=0)
        subscriber.close()
        gone(door_of, client)
        sent = [publisher.send(f"{topic}/{where}", 3, b"1") for where in ("kept", "lost", "kept")]
        assert witness.receive(3) == sent
    with dialect(place, client) as subscriber:
        assert subscriber.receive(2) == sent[::2]
        sent = [publisher.send(f"{topic}/{where}", 3, b"2") for where in ("kept", "lost")]
        assert subscriber.receive(2) == sent, "both subscriptions have outlived the connection"


def test_sf_can_be_changed(
    place: Place, publisher: Publisher, client: str, topic: str, door_of: BrokerProcess
) -> None:
    with Subscriber(place, f"w{client}") as witness:
        subscribed(witness, publisher, topic)
        for sf in (1, 0, 1, 0):
            with Subscriber(place, client) as subscriber:
                subscribed(subscriber, publisher, topic, sf=sf)
            gone(door_of, client)
            sent = publisher.send(topic, 3, b"while away")
            assert witness.receive(1) == [sent]
            with Subscriber(place, client) as subscriber:
                assert subscriber.settled(publisher) == ([sent] if sf else [])
            gone(door_of, client)


def test_an_id_that_is_connected_is_closed_without_a_word(
    dialect: type[Subscriber],
    place: Place,
    publisher: Publisher,
    client: str,
    topic: str,
    door_of: BrokerProcess,
) -> None:
    with dialect(place, client) as first:
        subscribed(first, publisher, topic)
        with dialect(place, client) as second:
            second.subscribe(f"{topic}/second")
            assert second.is_closed()
        door_of.wait_for_line(f"Client {client} already connected.")
        sent = publisher.send(topic, 3, b"still there")
        assert first.receive(1) == [sent]
    gone(door_of, client)


def test_overlapping_subscriptions_deliver_once_and_in_order(
    dialect: type[Subscriber], place: Place, publisher: Publisher, client: str, topic: str
) -> None:
    with dialect(place, client) as subscriber:
        filters = [f"{topic}/+/c", f"{topic}/*", f"{topic}/b/c", f"{topic}/b/+"]
        subscribed(subscriber, publisher, *filters[:2])
        subscribed(subscriber, publisher, *filters[2:], sf=1)
        names = [f"{topic}/{end}" for end in ("b/c", "b", "b/d", "x/c", "b/c", "x/y/z")] * 20
        sent = [publisher.send(name, 3, b"%d" % at) for at, name in enumerate(names)]
        assert subscriber.receive(len(sent)) == sent


def test_unsubscribing_ends_it(place: Place, publisher: Publisher, client: str, topic: str) -> None:
    with Subscriber(place, client) as subscriber:
        subscribed(subscriber, publisher, topic, f"{topic}/2")
        subscriber.unsubscribe(topic)
        subscriber.unsubscribe("never/subscribed")
        subscriber.settled(publisher)
        publisher.send(topic, 3, b"no")
        sent = publisher.send(f"{topic}/2", 3, b"yes")
        assert subscriber.receive(1) == [sent]


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "542393671 is no kind of command"),
        (b"ss3!0abc", "557020019 is no kind of command"),
        (b"\xff" * 300, "-1 is no kind of command"),
        (bytes(256), "b'' is no client's id"),
        (b"id3onlid3onl", "The client says its id again."),
        (b"id3twoxx", "b'xx' is no command"),
        (b"id0", "The length of a client's id is one digit, not b'0'"),
    ],
)
def test_garbage_ends_the_connection_and_hurts_nobody(
    garbage: bytes,
    why: str,
    place: Place,
    publisher: Publisher,
    client: str,
    topic: str,
    door_of: BrokerProcess,
) -> None:
    class Stranger(Subscriber):
        def identification(self) -> bytes:
            return garbage

    with Subscriber(place, client) as bystander, Stranger(place, "") as stranger:
        subscribed(bystander, publisher, topic)
        assert stranger.is_closed()
        door_of.wait_for_line(f"the connection is closed: {why}")
        sent = publisher.send(topic, 3, b"still here")
        assert bystander.receive(1) == [sent]


def test_a_command_that_is_wrong_is_skipped(
    dialect: type[Subscriber],
    place: Place,
    publisher: Publisher,
    client: str,
    topic: str,
    door_of: BrokerProcess,
) -> None:
    with dialect(place, client) as subscriber:
        for name in ("a+b", "x" * 240 + "/*/*/*", "a/#b"):
            subscriber.subscribe(name)
        subscriber.say(subscriber.subscription(topic, 7))
        subscribed(subscriber, publisher, topic)
        sent = publisher.send(topic, 3, b"here")
        assert subscriber.receive(1) == [sent]
    door_of.wait_for_line("SF is b'7'; it must be 0 or 1")


def test_what_cannot_be_read_is_dropped_and_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("counted") / "data", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Publisher(place) as publisher, Subscriber(place, "C1") as subscriber:
            subscribed(subscriber, publisher, "t")
            for datagram in (b"x", bytes(51), b"t".ljust(50, b"\0") + b"\4", b"t".ljust(51, b"\0") + b"\0"):
                publisher.send_raw(datagram)
            publisher.send_raw(b"t".ljust(50, b"\0") + b"\3" + b"x" * 1501)
            publisher.send("a b", 3, b"no name")
            publisher.send("a/+", 3, b"a filter")
            publisher.send_raw(b"\xff".ljust(50, b"\0") + b"\3" + b"not UTF-8")
            publisher.send("nobody/is/here", 3, b"ignored")
            sent = publisher.send("t", 3, b"x" * 1500)
            assert subscriber.receive(1) == [sent]
        broker.stop()
        assert "datagrams were dropped invalid=8 refused=0 lost=0 unstored=0" in broker.stderr


def test_what_a_device_cannot_carry_comes_cut_as_a_string(
    dialect: type[Subscriber],
    place: Place,
    publisher: Publisher,
    client: str,
    topic: str,
    door_of: BrokerProcess,
) -> None:
    long_topic = f"{topic}/" + "ș" * 40
    with dialect(place, client) as subscriber, Peer(door_of.address) as peer:
        subscribed(subscriber, publisher, f"{topic}/*")
        peer.ask(f"PUT {long_topic} hello")
        peer.ask(f"PUT {topic}/long " + "ă" * 1000)
        first, second = subscriber.receive(2)
    assert (first.topic, first.type, first.content) == (
        long_topic.encode()[:50].decode("utf-8", "ignore"),
        3,
        b"hello",
    )
    assert (second.topic, second.type, second.content) == (f"{topic}/long", 3, "ă".encode() * 750)


def test_the_door_tells_who_comes_and_goes(place: Place, client: str, door_of: BrokerProcess) -> None:
    with Subscriber(place, client) as subscriber:
        host, port = subscriber.socket.getsockname()
        door_of.wait_for_line(f"New client {client} connected from {host}:{port}.")
    door_of.wait_for_line(f"Client {client} disconnected.")


def test_a_message_is_not_held_back(place: Place, publisher: Publisher, client: str, topic: str) -> None:
    with Subscriber(place, client) as subscriber:
        subscribed(subscriber, publisher, topic)
        took = []
        for number in range(50):
            start = time.perf_counter()
            sent = publisher.send(topic, 3, b"%d" % number)
            assert subscriber.receive(1) == [sent]
            took.append(time.perf_counter() - start)
        # With Nagle's algorithm every second one would wait for a delayed acknowledgement: 40 ms.
        assert sorted(took)[30] < 0.02


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    options = ("--set", "limits.max_connections=2")
    with BrokerProcess(tmp_path / "data", *options, doors=("devices",)) as broker:
        place = broker.door("devices")
        with (
            Publisher(place) as publisher,
            Subscriber(place, "C1") as first,
            Subscriber(place, "C2") as second,
        ):
            subscribed(first, publisher, "t")
            with Subscriber(place, "C3") as third:
                assert third.is_closed()
            broker.wait_for_line(
                "connections are refused: there are as many as limits.max_connections allows"
            )
            second.close()
            gone(broker, "C2")
            with Subscriber(place, "C3") as third:
                subscribed(third, publisher, "t")
                sent = publisher.send("t", 3, b"to both")
                assert first.receive(1) == third.receive(1) == [sent]


@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["at once", "slowly"])
def test_a_program_that_reads_a_struct_at_a_time_gets_whole_ones(
    place: Place, publisher: Publisher, client: str, topic: str, door_of: BrokerProcess, pause: float
) -> None:
    """It takes whatever it reads for a struct, as programs in C and C++ do."""
    with StructSubscriber(place, client) as subscriber:
        subscribed(subscriber, publisher, topic, sf=1)
    gone(door_of, client)
    texts = [str(number) for number in range(400)]
    for at in range(0, len(texts), 50):
        publisher.send_texts(topic, texts[at : at + 50])
        wait_until(partial(has, door_of, topic, at + 50))
    with StructSubscriber(place, client) as subscriber:
        for text in texts:
            found = subscriber.socket.recv(STRUCT_MESSAGE.size)
            assert len(found) == STRUCT_MESSAGE.size
            assert STRUCT_MESSAGE.unpack(found)[4].rstrip(b"\0") == text.encode()
            time.sleep(pause)


def has(broker: BrokerProcess, topic: str, count: int) -> bool:
    """Whether a topic holds so many messages."""
    with Peer(broker.address) as peer:
        (line,) = peer.acked("TOPICS", filter=topic)["topics"]
    return int(line["next"]) - int(line["first"]) >= count
