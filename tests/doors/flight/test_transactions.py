"""Transactions: staged in parts, seen all at once, once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, Said, column, numbered, refused, rows_of


def stage(
    peer: Peer, producer: str, counter: int, part: str, topic: str, texts: list[str]
) -> dict[str, object]:
    said: Said = {"topic": topic, "stage": {"producer": producer, "counter": counter, "part": part}}
    return peer.put_texts(said, texts)


def commit(peer: Peer, producer: str, counter: int, *parts: str) -> bool:
    more = {"parts": parts} if parts else {}
    result = peer.act("commit", producer=producer, counter=counter, **more)
    assert result.keys() == {"committed"}
    return bool(result["committed"])


def begin(peer: Peer, producer: str) -> int:
    result = peer.act("begin", producer=producer)
    assert result.keys() == {"counter", "attempt"}
    return int(result["counter"])


def committed(peer: Peer, producer: str) -> int | None:
    counter: int | None = peer.act("committed", producer=producer)["counter"]
    return counter


def test_what_is_staged_is_not_seen_before_it_is_committed(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    answer = stage(peer, name, counter, "a", f"{topic}/a", numbered(3))
    assert (answer["topic"], answer["rows"], answer.get("offset")) == (f"{topic}/a", 3, None)
    stage(peer, name, counter, "b", f"{topic}/b", numbered(2))
    assert peer.rows(topic) == 0
    assert peer.get({"filter": f"{topic}/#"}).num_rows == 0
    assert (counter, committed(peer, name)) == (0, None)
    assert commit(peer, name, counter)
    assert committed(peer, name) == 0
    assert peer.texts(f"{topic}/a") == numbered(3)
    assert peer.texts(f"{topic}/b") == numbered(2)
    assert set(column(peer.get({"filter": f"{topic}/#"}), "producer")) == {f"flight/{name}"}


def test_what_was_committed_is_committed_once(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    stage(peer, name, counter, "a", topic, numbered(3))
    assert commit(peer, name, counter)
    assert not commit(peer, name, counter)
    assert begin(peer, name) == counter + 1
    stage(peer, name, counter, "late", topic, ["too late"])
    assert not commit(peer, name, counter)
    assert not commit(peer, name, counter, "late")
    assert peer.texts(topic) == numbered(3)
    stage(peer, name, counter + 1, "a", topic, numbered(3, 4))
    assert commit(peer, name, counter + 1)
    assert peer.texts(topic) == numbered(6)


def test_parts_that_are_not_named_are_dropped(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    for part in ("good", "failed", "slow", "also-good"):
        stage(peer, name, counter, part, topic, [f"{part} 1", f"{part} 2"])
    assert commit(peer, name, counter, "good", "also-good")
    assert peer.texts(topic) == ["good 1", "good 2", "also-good 1", "also-good 2"]
    assert not commit(peer, name, counter, "slow")
    assert peer.rows(topic) == 4


def test_a_part_that_has_lost_rows_cannot_be_committed(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    stage(peer, name, counter, "a", f"{topic}/1", numbered(3))
    peer.act("abort", producer=name, counter=counter)
    stage(peer, name, counter, "a", f"{topic}/2", numbered(2))
    stage(peer, name, counter, "b", f"{topic}/2", numbered(1))
    for parts in ({"a": 5}, {"a": 2, "b": 2}, {"a": 2, "c": 0}):
        with refused() as told:
            peer.act("commit", producer=name, counter=counter, parts=parts)
        assert told.error == "NotStaged"
    assert peer.get({"filter": f"{topic}/#"}).num_rows == 0
    assert peer.act("commit", producer=name, counter=counter, parts={"b": 1, "a": 2})["committed"]
    assert peer.texts(f"{topic}/2") == [*numbered(1), *numbered(2)]


def test_parts_follow_each_other_as_they_are_named(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    for part in ("second", "third", "first", "second"):
        stage(peer, name, counter, part, topic, [part])
    assert commit(peer, name, counter, "first", "second", "third")
    assert peer.texts(topic) == ["first", "second", "second", "third"]


def test_a_part_that_is_not_there_cannot_be_committed(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    stage(peer, name, counter, "a", topic, numbered(2))
    with refused() as told:
        commit(peer, name, counter, "a", "b")
    assert told.error == "NotStaged"
    assert peer.rows(topic) == 0
    assert commit(peer, name, counter, "a")
    assert peer.texts(topic) == numbered(2)


def test_what_was_aborted_is_gone(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    stage(peer, name, counter, "a", topic, numbered(2))
    assert peer.act("abort", producer=name, counter=counter) == {}
    assert peer.act("abort", producer=name, counter=counter) == {}
    with refused() as told:
        commit(peer, name, counter, "a")
    assert told.error == "NotStaged"
    counter = begin(peer, name)
    stage(peer, name, counter, "b", topic, ["another try"])
    assert commit(peer, name, counter)
    assert peer.texts(topic) == ["another try"]


def test_to_abort_what_was_committed_takes_nothing_back(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    stage(peer, name, counter, "a", topic, numbered(2))
    assert commit(peer, name, counter)
    peer.act("abort", producer=name, counter=counter)
    assert peer.texts(topic) == numbered(2)
    assert not commit(peer, name, counter)


def test_workers_stage_side_by_side(place: Place, peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)

    def work(worker: int) -> None:
        with Peer(place) as one:
            for turn in range(5):
                texts = [f"{worker} {turn} {row}" for row in range(20)]
                stage(one, name, counter, f"part-{worker}", f"{topic}/{turn % 2}", texts)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert commit(peer, name, counter, *(f"part-{worker}" for worker in range(4)))
    found = peer.texts({"filter": f"{topic}/+"})
    sent = [f"{worker} {turn} {row}" for worker in range(4) for turn in range(5) for row in range(20)]
    assert sorted(found) == sorted(sent)
    for worker in range(4):
        mine = [text for text in peer.texts(f"{topic}/0") if text.startswith(f"{worker} ")]
        assert mine == [f"{worker} {turn} {row}" for turn in (0, 2, 4) for row in range(20)]


def test_one_stream_may_stage_for_several_topics(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    said = {"stage": {"producer": name, "counter": counter, "part": "a"}}
    kinds = pa.array(["int"] * 2)
    schema = rows_of(["1", "2"], kind=kinds).schema
    with peer.putting(said, schema) as stream:
        for number in range(20):
            stream.send(rows_of([f"{number}", "0"], kind=kinds), {"topic": f"{topic}/{number % 4}"})
        assert len(stream.answers(20)) == 20
    assert peer.rows(topic) == 0
    assert commit(peer, name, counter)
    found = peer.get({"filter": f"{topic}/#"})
    assert (found.num_rows, set(column(found, "kind"))) == (40, {"int"})
    assert column(peer.get(f"{topic}/3"), "payload")[::2] == [b"3", b"7", b"11", b"15", b"19"]


def test_what_cannot_be_put_cannot_be_staged(peer: Peer, topic: str, name: str) -> None:
    counter = begin(peer, name)
    said = {"topic": topic, "stage": {"producer": name, "counter": counter, "part": "a"}}
    with refused():
        peer.put(said, rows_of(["1", "x"], kind=pa.array(["int", "int"])))
    with refused():
        peer.put(said, rows_of([b"x" * ((8 << 20) + 1)], pa.binary()))
    with refused():
        peer.put_texts({**said, "topic": "a/+"}, ["x"])
    stage(peer, name, counter, "a", topic, ["good"])
    assert commit(peer, name, counter)
    assert peer.texts(topic) == ["good"]


@contextmanager
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)) as broker:
        yield broker


def test_what_is_staged_survives_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with mortal(tmp_path_factory) as broker:
        with Peer(broker.door("flight")) as peer:
            counter = begin(peer, "p")
            stage(peer, "p", counter, "a", "t/a", numbered(1000))
            stage(peer, "p", counter, "b", "t/b", numbered(10))
            stage(peer, "q", begin(peer, "q"), "a", "t/a", ["never committed"])
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert committed(peer, "p") is None
            assert peer.rows("t") == 0
            stage(peer, "p", counter, "c", "t/c", ["after the kill"])
            assert commit(peer, "p", counter, "a", "b", "c")
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert not commit(peer, "p", counter)
            assert begin(peer, "p") == counter + 1
            assert peer.texts("t/a") == numbered(1000)
            assert [peer.rows(topic) for topic in ("t/b", "t/c")] == [10, 1]


def test_a_transaction_over_several_topics_is_seen_whole_or_not_at_all(
    place: Place, peer: Peer, topic: str, name: str
) -> None:
    over = threading.Event()
    torn: list[list[int]] = []

    def watch() -> None:
        with Peer(place) as one:
            while not over.is_set():
                found = column(one.get({"filter": f"{topic}/+", "columns": ["topic"]}), "topic")
                counts = [found.count(f"{topic}/{part}") for part in range(3)]
                if len(set(counts)) > 1:
                    torn.append(counts)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    for _ in range(15):
        counter = begin(peer, name)
        for part in range(3):
            stage(peer, name, counter, f"{part}", f"{topic}/{part}", numbered(20))
        assert commit(peer, name, counter)
    over.set()
    thread.join()
    assert not torn
    assert peer.rows(topic) == 15 * 60


def test_a_subscriber_is_sent_what_is_committed(peer: Peer, topic: str, name: str) -> None:
    peer.subscribe(name, f"{topic}/#")
    with peer.reading({"client": name, "filter": f"{topic}/#", "follow": True}) as stream:
        counter = begin(peer, name)
        stage(peer, name, counter, "a", f"{topic}/a", ["one", "two"])
        peer.put_texts(f"{topic}/b", ["before"])
        assert stream.texts(1) == ["before"]
        stage(peer, name, counter, "b", f"{topic}/b", ["three"])
        assert commit(peer, name, counter)
        assert stream.texts(3) == ["one", "two", "three"]
