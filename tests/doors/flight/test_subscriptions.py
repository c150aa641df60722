"""Subscribers: cursors, acknowledgements, take-overs."""

import json

import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, column, numbered, ranges_in, refused, works
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.waiting import wait_until


def ticket(name: str, filter_: str, **more: object) -> dict[str, object]:
    return {"client": name, "filter": filter_, **more}


@pytest.fixture
def subscribed(peer: Peer, topic: str, name: str) -> str:
    """A topic with ten messages that wait for the client."""
    peer.subscribe(name, topic)
    peer.put_texts(topic, numbered(10))
    return topic


def waiting(peer: Peer, name: str, filter_: str) -> list[int]:
    return column(peer.get(ticket(name, filter_)), "offset")


def test_who_has_not_subscribed_is_refused(peer: Peer, subscribed: str, name: str) -> None:
    with refused():
        peer.get(ticket(name, f"{subscribed}/other"))
    for one in (ticket("nobody", subscribed), ticket(name, "#")):
        with refused() as told:
            peer.get(one)
        assert told.error == "NotSubscribed"
    for client, filter_ in (("nobody", subscribed), (name, "#")):
        with refused() as told:
            peer.ack(client, filter_, (subscribed, 1, 2))
        assert told.error == "NotSubscribed"
    assert waiting(peer, name, subscribed) == list(range(1, 11))


def test_what_is_not_acknowledged_comes_again(peer: Peer, subscribed: str, name: str) -> None:
    for _ in range(3):
        assert waiting(peer, name, subscribed) == list(range(1, 11))
    with peer.reading(ticket(name, subscribed, follow=True)) as stream:
        assert stream.texts(10) == numbered(10)
    with peer.reading(ticket(name, subscribed, follow=True)) as stream:
        assert stream.texts(10) == numbered(10)


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(1, 11)], []),
        ([(None, 11)], []),
        ([(None, 4)], [4, 5, 6, 7, 8, 9, 10]),
        ([(1, 2)], [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ([(3, 5)], [1, 2, 5, 6, 7, 8, 9, 10]),
        ([(10, 11), (2, 4), (3, 6)], [1, 6, 7, 8, 9]),
        ([(5, 6), (None, 3)], [3, 4, 6, 7, 8, 9, 10]),
        ([], list(range(1, 11))),
    ],
    ids=str,
)
def test_only_what_was_acknowledged_is_done(
    peer: Peer, subscribed: str, name: str, ranges: list[tuple[int | None, int]], left: list[int]
) -> None:
    peer.ack(name, subscribed, *((subscribed, low, high) for low, high in ranges))
    assert waiting(peer, name, subscribed) == left
    peer.put_texts(subscribed, ["newer"])
    assert waiting(peer, name, subscribed) == [*left, 11]


@pytest.mark.parametrize("given", [(11, 12), (5, 12), (None, 12), (1, 1 << 40)], ids=str)
def test_the_future_cannot_be_acknowledged(
    flying: BrokerProcess, peer: Peer, subscribed: str, name: str, given: tuple[int | None, int]
) -> None:
    with refused() as told:
        peer.ack(name, subscribed, (subscribed, *given))
    assert told.error == "NoSuchOffset"
    assert waiting(peer, name, subscribed) == list(range(1, 11))
    assert works(flying)


@pytest.mark.parametrize(
    "ranges",
    [
        None,
        5,
        {},
        [5],
        [[]],
        [["TOPIC"]],
        [["TOPIC", 1]],
        [["TOPIC", 1, 2, 3]],
        [["TOPIC", "1", 2]],
        [["TOPIC", 1, None]],
        [["TOPIC", 1.5, 2]],
        [["TOPIC", 1, True]],
        [["TOPIC", 5, 3]],
        [["TOPIC", -3, 3]],
        [["TOPIC", 1, 1 << 70]],
        [[5, 1, 2]],
        [["somewhere/else", 1, 2]],
        [["TOPIC", 1, 3], ["TOPIC", 1, 12]],
    ],
    ids=str,
)
def test_ranges_that_are_wrong_acknowledge_nothing(
    peer: Peer, subscribed: str, name: str, ranges: object
) -> None:
    body = json.dumps({"client": name, "filter": subscribed, "ranges": ranges})
    with refused():
        peer.told("ack", body.replace("TOPIC", subscribed).encode())
    assert waiting(peer, name, subscribed) == list(range(1, 11))


def test_a_subscription_begins_after_what_is_there_or_before_it(peer: Peer, topic: str, name: str) -> None:
    peer.put_texts(topic, numbered(3))
    early = peer.subscribe(f"{name}-early", topic, **{"from": "earliest"})
    late = peer.subscribe(f"{name}-late", topic)
    latest = peer.subscribe(f"{name}-latest", topic, **{"from": "latest"})
    (last,) = column(peer.get({"topic": topic, "from": 3, "columns": ["position"]}), "position")
    assert early < last <= late <= latest
    peer.put_texts(topic, numbered(1, 4))
    assert waiting(peer, f"{name}-early", topic) == [1, 2, 3, 4]
    assert waiting(peer, f"{name}-late", topic) == waiting(peer, f"{name}-latest", topic) == [4]


def test_to_subscribe_again_changes_nothing(peer: Peer, topic: str, name: str) -> None:
    first = peer.subscribe(name, topic)
    peer.put_texts(topic, numbered(5))
    peer.ack(name, topic, (topic, None, 3))
    assert peer.subscribe(name, topic) == first
    assert peer.subscribe(name, topic, **{"from": "earliest"}) == first
    assert waiting(peer, name, topic) == [3, 4, 5]


def test_who_has_unsubscribed_may_begin_anew(peer: Peer, subscribed: str, name: str) -> None:
    assert peer.act("unsubscribe", client=name, filter=subscribed) == {}
    with refused() as told:
        peer.get(ticket(name, subscribed))
    assert told.error == "NotSubscribed"
    peer.subscribe(name, subscribed)
    peer.put_texts(subscribed, ["newer"])
    assert waiting(peer, name, subscribed) == [11]


def test_a_second_stream_takes_over(place: Place, peer: Peer, subscribed: str, name: str) -> None:
    one = ticket(name, subscribed, follow=True)
    with peer.reading(one) as first, Peer(place) as other, other.reading(one) as second:
        assert second.texts(10) == numbered(10)
        with refused(flight.FlightCancelledError):
            while first.batch() is not None:
                pass
        peer.put_texts(subscribed, ["newer"])
        assert second.texts(1) == ["newer"]
        other.ack(name, subscribed, (subscribed, None, 12))
    assert waiting(peer, name, subscribed) == []


def test_what_a_stream_had_sent_before_it_was_taken_over_is_the_next_ones(
    place: Place, peer: Peer, subscribed: str, name: str
) -> None:
    one = ticket(name, subscribed, follow=True)
    with peer.reading(one) as first:
        assert first.texts(10) == numbered(10)
        peer.ack(name, subscribed, (subscribed, 1, 6))
        with Peer(place) as other, other.reading(one) as second:
            assert second.texts(5) == numbered(5, 6)


def test_each_filter_of_a_client_has_its_own_stream_and_cursor(peer: Peer, topic: str, name: str) -> None:
    filters = [f"{topic}/a", f"{topic}/+", f"{topic}/#"]
    for filter_ in filters:
        peer.subscribe(name, filter_)
    streams = [peer.reading(ticket(name, filter_, follow=True)) for filter_ in filters]
    for number in range(3):
        peer.put_texts(f"{topic}/a", [f"{number}"])
    assert [stream.texts(3) for stream in streams] == [["0", "1", "2"]] * 3
    for stream in streams:
        stream.cancel()
    peer.ack(name, filters[0], (f"{topic}/a", None, 4))
    assert [waiting(peer, name, filter_) for filter_ in filters] == [[], [1, 2, 3], [1, 2, 3]]


def test_a_filter_s_topics_come_in_order_and_are_acknowledged_together(
    peer: Peer, topic: str, name: str
) -> None:
    filter_ = f"{topic}/#"
    peer.subscribe(name, filter_)
    for number in range(60):
        peer.put_texts(f"{topic}/{number % 50}", [f"{number}"])
    found = peer.get(ticket(name, filter_, columns=["topic", "offset", "payload"]))
    assert column(found, "payload") == [f"{number}".encode() for number in range(60)]
    peer.ack(name, filter_, *ranges_in(found.slice(0, 30)))
    left = peer.texts(ticket(name, filter_))
    assert left == [f"{number}" for number in range(30, 60)]


def test_a_limit_and_columns_hold_for_a_subscriber_too(peer: Peer, subscribed: str, name: str) -> None:
    found = peer.get(ticket(name, subscribed, limit=4, columns=["offset"], batch_rows=3))
    assert (found.schema.names, column(found, "offset")) == (["offset"], [1, 2, 3, 4])
    assert waiting(peer, name, subscribed) == list(range(1, 11))


def test_names_are_this_door_s_own(flying: BrokerProcess, peer: Peer, topic: str, name: str) -> None:
    with ZeroMQPeer(flying.address) as other:
        assert other.ask(f"SUB {name} {topic}") == "ACK"
        with refused() as told:
            peer.get(ticket(name, topic))
        assert told.error == "NotSubscribed"
        peer.subscribe(name, topic)
        peer.put_texts(topic, numbered(2))
        peer.ack(name, topic, (topic, None, 3))
        assert other.got(name, topic) == list(enumerate(numbered(2), 1))
        assert "another door" in other.ask(f"GET flight/{name} {topic}")


def test_a_subscriber_goes_on_through_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("resumed") / "data", doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            peer.subscribe("a", "t/#")
            peer.put_texts("t/1", numbered(6))
            stream = peer.reading(ticket("a", "t/#", follow=True))
            assert stream.texts(6) == numbered(6)
            peer.ack("a", "t/#", ("t/1", None, 3), ("t/1", 4, 5))
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert column(peer.get(ticket("a", "t/#")), "offset") == [3, 5, 6]
            with peer.reading(ticket("a", "t/#", follow=True)) as stream:
                assert column(stream.rows(3), "offset") == [3, 5, 6]
                peer.put_texts("t/2", ["newer"])
                assert stream.texts(1) == ["newer"]
            peer.ack("a", "t/#", ("t/1", None, 7), ("t/2", 1, 2))
            wait_until(lambda: all(one["rows"] == 0 for one in peer.topics("t/#")))  # nobody waits for them
