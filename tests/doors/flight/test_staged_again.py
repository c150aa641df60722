"""Rows that are staged are numbered too: what is sent again is staged once."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, numbered, refused, rows_of


def to(topic: str, producer: str, counter: int, part: str = "a") -> dict[str, Any]:
    return {"topic": topic, "stage": {"producer": producer, "counter": counter, "part": part}}


def commit(peer: Peer, producer: str, counter: int) -> bool:
    return bool(peer.act("commit", producer=producer, counter=counter)["committed"])


def test_what_is_staged_again_is_there_once(peer: Peer, topic: str, name: str) -> None:
    counter = peer.act("begin", producer=name)["counter"]
    stage = to(topic, name, counter)
    for _ in range(2):
        assert peer.put_texts(stage, numbered(5), {"sequence": 1})["rows"] == 5
    peer.put_texts(stage, numbered(6, 3), {"sequence": 3})  # partly known
    assert commit(peer, name, counter)
    assert peer.texts(topic) == numbered(8)


def test_what_is_staged_too_early_is_told_which_number_is_expected(peer: Peer, topic: str, name: str) -> None:
    counter = peer.act("begin", producer=name)["counter"]
    stage = to(topic, name, counter)
    peer.put_texts(stage, numbered(5), {"sequence": 1})
    for sequence in (7, 100):
        with refused() as told:
            peer.put_texts(stage, ["too early"], {"sequence": sequence})
        assert (told.error, told.info["expected"]) == ("OutOfSequence", 6)
    peer.put_texts(stage, numbered(2, 6), {"sequence": 6})
    assert commit(peer, name, counter)
    assert peer.texts(topic) == numbered(7)


def test_each_part_and_each_topic_is_numbered_by_itself(peer: Peer, topic: str, name: str) -> None:
    counter = peer.act("begin", producer=name)["counter"]
    for part in "ab":
        said = {"stage": {"producer": name, "counter": counter, "part": part}}
        with peer.putting(said, rows_of([]).schema) as stream:
            for number in (1, 2):
                for below in "xy":
                    metadata = {"topic": f"{topic}/{below}", "sequence": number}
                    stream.send(rows_of([f"{part} {number}"]), metadata)
            stream.answers(4)
    assert commit(peer, name, counter)
    for below in "xy":
        assert peer.texts(f"{topic}/{below}") == ["a 1", "a 2", "b 1", "b 2"]


def test_what_is_staged_is_numbered_apart_from_what_is_put(peer: Peer, topic: str, name: str) -> None:
    peer.put_texts({"topic": topic, "producer": name}, numbered(3), {"sequence": 1})
    counter = peer.act("begin", producer=name)["counter"]
    peer.put_texts(to(topic, name, counter), ["staged"], {"sequence": 1})
    assert commit(peer, name, counter)
    assert peer.act("sequence", producer=name, topic=topic) == {"next": 4}
    peer.put_texts({"topic": topic, "producer": name}, numbered(1, 4), {"sequence": 4})
    assert peer.texts(topic) == [*numbered(3), "staged", *numbered(1, 4)]


def test_a_batch_of_several_topics_has_its_limit(peer: Peer, topic: str, name: str) -> None:
    counter = peer.act("begin", producer=name)["counter"]
    said = {"stage": {"producer": name, "counter": counter, "part": "a"}}

    def put(rows: int, sequence: int) -> Any:
        texts = rows_of(numbered(rows, sequence))
        names = [f"{topic}/{number % 7}" for number in range(rows)]
        return peer.put(said, texts.append_column("topic", pa.array(names)), {"sequence": sequence})

    with refused() as told:
        put(10_001, 1)
    assert told.error == "LimitReached"
    assert "at most 10000 are allowed" in told.message
    for sequence in (1, 1):
        put(10_000, sequence)
    with refused() as told:
        put(10, 20_000)
    assert (told.error, told.info["expected"]) == ("OutOfSequence", 10_001)
    assert commit(peer, name, counter)
    assert sum(len(peer.texts(f"{topic}/{number}")) for number in range(7)) == 10_000


def test_the_numbers_of_what_was_aborted_begin_again(peer: Peer, topic: str, name: str) -> None:
    counter = peer.act("begin", producer=name)["counter"]
    peer.put_texts(to(topic, name, counter), ["aborted"] * 3, {"sequence": 1})
    peer.act("abort", producer=name, counter=counter)
    counter = peer.act("begin", producer=name)["counter"]
    peer.put_texts(to(topic, name, counter), ["another try"], {"sequence": 1})
    assert commit(peer, name, counter)
    assert peer.texts(topic) == ["another try"]


def test_what_was_staged_before_a_kill_is_recognised_after_it(tmp_path: Path) -> None:
    options = ("--set", 'topics."#".keep=1000000000 messages')
    with BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            counter = peer.act("begin", producer="p")["counter"]
            peer.put_texts(to("t", "p", counter), numbered(10), {"sequence": 1})
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            peer.put_texts(to("t", "p", counter), numbered(10, 6), {"sequence": 6})
            with refused() as told:
                peer.put_texts(to("t", "p", counter), ["too early"], {"sequence": 17})
            assert told.info["expected"] == 16
            assert commit(peer, "p", counter)
            assert peer.texts("t") == numbered(15)
