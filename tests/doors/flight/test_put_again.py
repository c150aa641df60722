"""Producers that count: what is sent again is recognised, what comes too early is told what is expected."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Said, column, numbered, refused, rows_of


def put(peer: Peer, topic: str, producer: str, sequence: object, texts: list[str]) -> dict[str, object]:
    return peer.put_texts({"topic": topic, "producer": producer}, texts, {"sequence": sequence})


def test_what_comes_too_early_is_told_which_number_is_expected(peer: Peer, topic: str, name: str) -> None:
    with refused() as told:
        put(peer, topic, name, 2, ["too early"])
    assert (told.error, told.info["expected"]) == ("OutOfSequence", 1)
    put(peer, topic, name, 1, numbered(3))
    with refused() as told:
        put(peer, topic, name, 5, ["too early"])
    assert (told.error, told.info["expected"]) == ("OutOfSequence", 4)
    assert peer.texts(topic) == numbered(3)


@pytest.mark.parametrize("sequence", [0, -1, 1.5, "1", True, [1], 1 << 63, 1 << 80], ids=str)
def test_a_sequence_is_a_number_from_1_on(peer: Peer, topic: str, name: str, sequence: object) -> None:
    with refused():
        put(peer, topic, name, sequence, ["x"])
    assert peer.rows(topic) == 0


def test_a_batch_that_is_sent_again_is_answered_as_the_first_time(peer: Peer, topic: str, name: str) -> None:
    first = put(peer, topic, name, 1, numbered(3))
    second = put(peer, topic, name, 4, numbered(2, 4))
    assert [first["offset"], second["offset"]] == [1, 4]
    assert put(peer, topic, name, 1, numbered(3)) == first
    assert put(peer, topic, name, 4, numbered(2, 4)) == second
    assert put(peer, topic, name, 2, numbered(1, 2)) == {"topic": topic, "offset": 2, "rows": 1}
    assert peer.texts(topic) == numbered(5)


def test_of_a_batch_that_is_partly_known_the_rest_is_stored(peer: Peer, topic: str, name: str) -> None:
    put(peer, topic, name, 1, numbered(5))
    assert put(peer, topic, name, 3, numbered(6, 3)) == {"topic": topic, "offset": 3, "rows": 6}
    assert peer.texts(topic) == numbered(8)
    peer.put_texts(topic, ["of somebody else"])
    answer = put(peer, topic, name, 7, numbered(4, 7))
    assert answer["rows"] == 4
    assert peer.texts(topic) == [*numbered(8), "of somebody else", "message 9", "message 10"]
    found = peer.get({"topic": topic, "columns": ["producer", "counter"]})
    assert column(found, "counter") == [*range(1, 9), None, 9, 10]
    whose = f"flight/{name}"
    assert column(found, "producer") == [whose] * 8 + [""] + [whose] * 2


def test_columns_beside_the_payload_are_cut_with_it(peer: Peer, topic: str, name: str) -> None:
    to: Said = {"topic": topic, "producer": name}
    times = [datetime(2020, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(4)]
    kinds = ["int", "string", "json", "bytes"]
    whole = rows_of(
        [b"1", b"2", b"3", b"4"],
        pa.binary(),
        kind=pa.array(kinds).dictionary_encode(),
        timestamp=pa.array(times, pa.timestamp("us", "UTC")),
    )
    peer.put(to, whole.slice(0, 2), {"sequence": 1})
    peer.put(to, whole, {"sequence": 1})
    found = peer.get(topic)
    assert column(found, "payload") == [b"1", b"2", b"3", b"4"]
    assert column(found, "kind") == kinds
    assert column(found, "timestamp") == times


def test_each_topic_of_a_producer_is_counted_by_itself(peer: Peer, topic: str, name: str) -> None:
    with peer.putting({"producer": name}, rows_of([]).schema) as stream:
        for number in range(1, 4):
            for part in "ab":
                stream.send(rows_of([f"{part} {number}"]), {"topic": f"{topic}/{part}", "sequence": number})
        answers = stream.answers(6)
    assert [answer["offset"] for answer in answers] == [1, 1, 2, 2, 3, 3]
    assert peer.act("sequence", producer=name, topic=f"{topic}/a") == {"next": 4}
    assert peer.texts(f"{topic}/b") == ["b 1", "b 2", "b 3"]


def test_a_producer_that_does_not_count_is_not_recognised(peer: Peer, topic: str, name: str) -> None:
    for _ in range(2):
        peer.put_texts({"topic": topic, "producer": name}, ["the same"])
    assert peer.texts(topic) == ["the same"] * 2


def test_a_stream_that_breaks_off_anywhere_is_sent_again(peer: Peer, topic: str, name: str) -> None:
    to: Said = {"topic": topic, "producer": name}
    texts = numbered(90)
    with refused() as told, peer.putting(to, rows_of([]).schema) as stream:
        for first in (1, 11, 31):  # the third comes too early
            stream.send(rows_of(texts[first - 1 : first + 9]), {"sequence": first})
        stream.answers(3)
    assert told.info["expected"] == 21
    with peer.putting(to, rows_of([]).schema) as stream:
        for first in range(1, 91, 30):
            stream.send(rows_of(texts[first - 1 : first + 29]), {"sequence": first})
        assert [answer["offset"] for answer in stream.answers(3)] == [1, 31, 61]
    assert peer.texts(topic) == texts


def test_a_producer_is_remembered_through_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("remembered") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            first = put(peer, "t", "p", 1, numbered(10))
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert peer.act("sequence", producer="p", topic="t") == {"next": 11}
            assert put(peer, "t", "p", 1, numbered(10)) == first
            assert put(peer, "t", "p", 6, numbered(10, 6)) == {"topic": "t", "offset": 6, "rows": 10}
            assert peer.texts("t") == numbered(15)


def test_two_that_take_themselves_for_one_producer_store_every_row_once(
    flying: BrokerProcess, peer: Peer, topic: str, name: str
) -> None:
    texts = numbered(2000)

    def send(rows: int) -> list[tuple[int, object]]:
        with Peer(flying.door("flight")) as one:
            firsts = range(1, len(texts) + 1, rows)
            with one.putting({"topic": topic, "producer": name}, rows_of([]).schema) as stream:
                for first in firsts:
                    stream.send(rows_of(texts[first - 1 : first - 1 + rows]), {"sequence": first})
                return [(first, stream.answer()["offset"]) for first in firsts]

    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(send, (10, 16, 25, 10)):
            assert all(first == offset for first, offset in answers)
    assert peer.texts(topic) == texts


def test_a_batch_from_long_ago_is_still_recognised(peer: Peer, topic: str, name: str) -> None:
    for number in range(1, 201):  # with somebody else's between them, so that each place is one to remember
        put(peer, topic, name, number, [f"{number}"])
        peer.put_texts(topic, ["other"])
    answer = put(peer, topic, name, 1, ["1"])
    assert (answer["topic"], answer["rows"]) == (topic, 1)
    assert answer["offset"] in (1, None)
    assert [text for text in peer.texts(topic) if text != "other"] == [f"{n}" for n in range(1, 201)]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=12))
def test_whatever_is_sent_again_every_row_is_stored_once(
    flying: BrokerProcess, sends: list[tuple[int, int]]
) -> None:
    topic, name, known = f"flight/again/{uuid4()}", f"p-{uuid4()}", 0
    with Peer(flying.door("flight")) as peer:
        for sequence, count in sends:
            if sequence > known + 1:
                with refused() as told:
                    put(peer, topic, name, sequence, numbered(count, sequence))
                assert told.info["expected"] == known + 1
                continue
            answer = put(peer, topic, name, sequence, numbered(count, sequence))
            assert answer["rows"] == count
            assert answer["offset"] == sequence
            known = max(known, sequence + count - 1)
        stored = peer.rows(topic)
        assert stored == known
        assert not known or peer.texts(topic) == numbered(known)
