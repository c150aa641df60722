"""Staying on: what comes later comes by itself."""

import threading

import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, column, numbered, refused, rows_of, works
from tests.waiting import PATIENCE, wait_until


def test_a_follower_gets_what_is_there_and_what_comes(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(3))
    with peer.reading({"topic": topic, "follow": True}) as stream:
        assert stream.texts(3) == numbered(3)
        for number in range(4, 50):
            peer.put_texts(topic, numbered(1, number))
            assert stream.texts(1) == numbered(1, number)


def test_a_follower_of_the_latest_gets_only_what_comes(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(3))
    with peer.reading({"topic": topic, "follow": True, "from": "latest"}) as stream:
        assert stream.schema  # so it has begun
        peer.put_texts(topic, numbered(2, 4))
        assert stream.texts(2) == numbered(2, 4)


def test_a_follower_waits_for_a_topic_that_does_not_exist(peer: Peer, topic: str) -> None:
    with peer.reading({"topic": topic, "follow": True}) as stream:
        peer.put_texts(topic, numbered(2))
        assert stream.texts(2) == numbered(2)


def test_a_follower_of_a_filter_gets_topics_that_come_later_in_order(peer: Peer, topic: str) -> None:
    peer.put_texts(f"{topic}/0", ["first"])
    with peer.reading({"filter": f"{topic}/#", "follow": True}) as stream:
        assert stream.texts(1) == ["first"]
        sent = [(f"{topic}/{number % 5}", f"{number}") for number in range(30)]
        for name, text in sent:
            peer.put_texts(name, [text])
        found = stream.rows(30)
    assert list(zip(column(found, "topic"), column(found, "payload"), strict=True)) == [
        (name, text.encode()) for name, text in sent
    ]


def test_a_follower_begins_where_it_is_told_to(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(5))
    with peer.reading({"topic": topic, "from": 4, "follow": True, "columns": ["offset"]}) as stream:
        assert column(stream.rows(2), "offset") == [4, 5]
        peer.put_texts(topic, numbered(1))
        assert column(stream.rows(1), "offset") == [6]


def test_a_follower_that_starts_amid_the_stream_misses_nothing(place: Place, peer: Peer, topic: str) -> None:
    sent = numbered(20_000)
    begin = threading.Event()

    def publish() -> None:
        with Peer(place) as other, other.putting(topic, rows_of([]).schema) as stream:
            for first in range(0, len(sent), 40):
                stream.send(rows_of(sent[first : first + 40]))
                stream.answer()
                if first == 2000:
                    begin.set()

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    assert begin.wait(PATIENCE)
    with peer.reading({"topic": topic, "follow": True}) as stream:
        assert stream.texts(len(sent)) == sent
    thread.join()


def test_a_follower_that_leaves_is_let_go(
    flying: BrokerProcess, place: Place, peer: Peer, topic: str
) -> None:
    peer.put_texts(topic, ["x"])
    wait_until(lambda: peer.act("stats")["streams"] == 0)  # those of earlier tests
    others = [Peer(place) for _ in range(20)]
    streams = [one.reading({"topic": topic, "follow": True}) for one in others]
    for stream in streams:
        assert stream.texts(1) == ["x"]
    assert peer.act("stats")["streams"] == 20
    for stream in streams[:10]:
        stream.cancel()
    for one in others[10:]:
        one.close()
    for stream in streams[10:]:
        stream.cancel()
    wait_until(lambda: peer.act("stats")["streams"] == 0)
    assert works(flying)
    for one in others:
        one.close()


def test_forty_followers_leave_room_for_others(
    flying: BrokerProcess, place: Place, peer: Peer, topic: str
) -> None:
    peer.put_texts(topic, ["x"])
    others = [Peer(place) for _ in range(40)]
    streams = [one.reading({"topic": topic, "follow": True}) for one in others]
    for stream in streams:
        assert stream.texts(1) == ["x"]
    assert works(flying)
    peer.put_texts(topic, ["y"])
    for stream in streams:
        assert stream.texts(1) == ["y"]
        stream.cancel()
    for one in others:
        one.close()


def test_a_follower_is_told_when_the_broker_leaves(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("leaving") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            peer.put_texts("t", ["x"])
            peer.subscribe("reader", "t", **{"from": "earliest"})
            tickets = [{"topic": "t", "follow": True}, {"client": "reader", "filter": "t", "follow": True}]
            streams = [peer.reading(ticket) for ticket in tickets]
            assert [stream.texts(1) for stream in streams] == [["x"], ["x"]]
            assert broker.stop() == 0
            for stream in streams:
                with refused(flight.FlightUnavailableError):
                    stream.batch()
        assert "Traceback" not in broker.stderr
