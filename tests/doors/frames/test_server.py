"""The verbs, through real connections."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.doors.frames.peers import JSON, PICKLE, XML, Peer, Place
from tests.waiting import wait_until

Connect = Callable[..., Peer]


def test_what_is_published_reaches_subscribers_in_their_own_serializer(connect: Connect, topic: str) -> None:
    subscribers = {code: connect(code) for code in (JSON, XML, PICKLE)}
    for subscriber in subscribers.values():
        subscriber.subscribe(topic)
    connect(JSON).publish(topic, {"a": [1.5, None]})
    connect(XML).publish(topic, 'lines\nand\t"quotes" &c.')
    assert sorted(subscribers[JSON].get(2), key=str) == [
        (topic, 'lines\nand\t"quotes" &c.'),
        (topic, {"a": [1.5, None]}),
    ]
    assert sorted(subscribers[XML].get(2)) == [
        (topic, 'lines\nand\t"quotes" &c.'),
        (topic, '{"a": [1.5, null]}'),
    ]
    connect(PICKLE).publish(topic, (1, {2}, b"\xff"))
    assert subscribers[JSON].get(1) == [(topic, [1, [2], "/w=="])]
    assert subscribers[XML].get(1) == [(topic, '[1, [2], "/w=="]')]
    assert subscribers[PICKLE].get(3)[2] == (topic, (1, {2}, b"\xff"))


def test_a_publisher_needs_no_topic_and_is_told_nothing(
    connect: Connect, serializer: int, topic: str
) -> None:
    publisher = connect(serializer)
    publisher.publish(topic, "first")
    told = publisher.topics()
    assert topic in told
    publisher.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        publisher.hear()


def test_a_subscriber_gets_the_last_value_first(connect: Connect, serializer: int, topic: str) -> None:
    publisher = connect(JSON)
    publisher.publish(topic, "one", "two", "three")
    publisher.topics()
    subscriber = connect(serializer)
    subscriber.say("subscribe", topic=topic)
    assert subscriber.get(1) == [(topic, "three")]
    publisher.publish(topic, "four")
    assert subscriber.get(1) == [(topic, "four")]


def test_a_slash_at_the_end_of_a_topic_means_nothing(connect: Connect, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    publisher.publish(topic, "last")
    publisher.topics()
    subscriber.say("subscribe", topic=f"{topic}/")
    assert subscriber.get(1) == [(topic, "last")]


def test_there_is_no_last_value_where_nothing_was_published_or_for_a_filter(
    connect: Connect, topic: str
) -> None:
    publisher, subscriber = connect(), connect()
    publisher.publish(f"{topic}/below", "kept")
    publisher.topics()
    for name in (topic, f"{topic}/+", f"{topic}/#", f"{topic}/*"):
        subscriber.say("subscribe", topic=name)
    subscriber.say("listTopics")
    assert subscriber.hear()["command"] == "listTopics"


def test_the_last_value_outlives_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        with Peer(broker.door("frames"), PICKLE) as publisher:
            publisher.publish("/a", {1: (2,)})
            assert publisher.topics() == ["/a"]
        broker.restart()
        with Peer(broker.door("frames"), PICKLE) as subscriber:
            subscriber.say("subscribe", topic="/a")
            assert subscriber.get(1) == [("/a", {1: (2,)})]


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_subscription_covers_what_is_below(connect: Connect, topic: str, ending: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic + ending)
    names = [topic, f"{topic}/a", f"{topic}/a/b/c", f"{topic}beside", f"{topic}/"]
    for number, name in enumerate(names):
        publisher.publish(name, number)
    publisher.publish(topic, "end")
    assert subscriber.get(5) == [
        (topic, 0),
        (f"{topic}/a", 1),
        (f"{topic}/a/b/c", 2),
        (f"{topic}/", 4),
        (topic, "end"),
    ]


def test_the_root_covers_all_that_begins_with_a_slash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place = broker.door("frames")
        with Peer(place) as publisher, Peer(place) as slash, Peer(place) as nothing:
            slash.subscribe("/")
            nothing.subscribe("")
            publisher.publish("a", "not below it")
            publisher.publish("/a/b", "below it")
            assert slash.get(1) == nothing.get(1) == [("/a/b", "below it")]


def test_a_name_that_leaves_no_room_below_it_can_be_subscribed_to(connect: Connect) -> None:
    for name in ("/" + "x" * 254, "/x" * 63):
        subscriber = connect()
        subscriber.subscribe(name)
        connect().publish(name, "here")
        assert subscriber.get(1) == [(name, "here")]


def test_overlapping_subscriptions_deliver_once(connect: Connect, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    for name in (topic, f"{topic}/a", f"{topic}/+", topic):
        subscriber.subscribe(name)
    publisher.publish(f"{topic}/a", *range(10))
    publisher.publish(topic, "end")
    assert subscriber.get(11) == [*((f"{topic}/a", number) for number in range(10)), (topic, "end")]


def test_wildcards(connect: Connect, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/+/t")
    for name in (f"{topic}/a/t", f"{topic}/a/b/t", f"{topic}/b/t/c"):
        publisher.publish(name, name)
    assert subscriber.get(2) == [(f"{topic}/a/t", f"{topic}/a/t"), (f"{topic}/b/t/c", f"{topic}/b/t/c")]


def test_unsubscribing_ends_it(connect: Connect, serializer: int, topic: str) -> None:
    subscriber, publisher = connect(serializer), connect()
    subscriber.say("unsubscribe", topic=topic)
    subscriber.subscribe(topic)
    subscriber.subscribe(f"{topic}2")
    subscriber.say("unsubscribe", topic=topic)
    subscriber.say("unsubscribe", topic=topic)
    subscriber.topics()
    publisher.publish(topic, "unheard")
    publisher.publish(f"{topic}2", "heard")
    assert subscriber.get(1) == [(f"{topic}2", "heard")]


def test_one_publishers_messages_arrive_in_order(connect: Connect, serializer: int, topic: str) -> None:
    subscriber, publisher = connect(serializer), connect(serializer)
    subscriber.subscribe(topic)
    names = [f"{topic}/{number % 7}" for number in range(5000)]
    publisher.socket.sendall(
        b"".join(
            publisher.framed("publish", topic=name, message=str(number)) for number, name in enumerate(names)
        )
    )
    assert subscriber.get(5000) == [(name, str(number)) for number, name in enumerate(names)]


@pytest.mark.parametrize("key", ["command", "type"])
def test_answers_and_deliveries_have_the_key_that_was_used(
    connect: Connect, serializer: int, key: str, topic: str
) -> None:
    peer = connect(serializer, key)
    peer.publish(topic, "x")
    assert topic in peer.topics()
    peer.say("subscribe", topic=topic)
    assert peer.hear() == {key: "publish", "topic": topic, "message": "x"}
    other = peer.key = "type" if key == "command" else "command"
    peer.topics()
    peer.publish(topic, "y")
    assert peer.hear() == {other: "publish", "topic": topic, "message": "y"}


def test_list_topics_has_those_that_hold_a_value_by_name(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place = broker.door("frames")
        with Peer(place) as peer, Peer(place, XML) as other:
            assert peer.topics() == []
            peer.subscribe("/empty")
            for name in ("/b", "$own", "/a/x", "c"):
                peer.publish(name, 1)
                assert (name in peer.topics()) == (name[0] != "$"), "what was just published is there"
            assert peer.topics() == ["/a/x", "/b", "c"]
            assert other.topics() == '["/a/x", "/b", "c"]'


def test_more_topics_than_fit_an_answer(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        with Peer(broker.door("frames")) as peer:
            names = [f"/{number:04}{'x' * 240}" for number in range(400)]
            for name in names:
                peer.publish(name, 1)
            told = peer.topics()
            assert 200 < len(told) < 400
            assert told == names[: len(told)]
            assert peer.topics() == told
        broker.wait_for_line(
            f"an answer to listTopics has only the topics that fit listed={len(told)} topics=400"
        )
        assert broker.stderr.count("only the topics that fit") == 1


def test_a_message_is_delivered_before_the_connection_says_anything_more(
    connect: Connect, topic: str
) -> None:
    """One connection may publish and subscribe at once."""
    peer = connect(PICKLE)
    peer.subscribe(topic)
    for value in (None, True, -1, 1.5, "text", b"\x00", [1], (1,), {1}, {"a": {2: 3}}):
        peer.publish(topic, value)
        assert peer.get(1) == [(topic, value)]


def test_a_message_reaches_other_doors_with_its_kind(
    place: Place, framing: BrokerProcess, topic: str
) -> None:
    with Peer(place) as publisher, Client(framing.address) as client:
        client.subscribe(topic)
        publisher.publish(topic, {"a": 1}, 21.50, "text")
        wait_until(lambda: len(client.get_many(topic)) == 3)
        got = [(one.text, one.kind) for one in client.get_many(topic)]
        assert got == [('{"a": 1}', "json"), ("21.5", "float"), ("text", "string")]
