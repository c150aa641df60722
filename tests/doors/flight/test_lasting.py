"""What was put here stays what it was, through restarts, checkpoints, collection, and beside other doors' messages."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import EVERY_COLUMN, Peer, column, numbered, rows_of
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.waiting import wait_until

KEEP = ("--set", 'topics."#".keep=1000000000 messages', "--durability", "os")
SMALL = ("--set", "store.checkpoint_rows=50", "--set", "store.sweep=20ms", "--set", "store.tail=16KiB")
BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
WORDS = ["int", "string", "json", "bytes"]


def everything(peer: Peer) -> pa.Table:
    return peer.get({"filter": "#", "columns": EVERY_COLUMN})


def fill(broker: BrokerProcess) -> None:
    """Some of everything, in many batches."""
    with Peer(broker.door("flight")) as peer, ZeroMQPeer(broker.address) as other:
        other.acked("SUB", "mixed", "somebody")
        for turn in range(12):
            rows = turn * 7 % 30 + 1
            payloads = [f"{turn * 100 + row}".encode() for row in range(rows)]
            kinds = pa.array([WORDS[(turn + row) % 4] for row in range(rows)]).dictionary_encode()
            times = pa.array([BEGIN + timedelta(seconds=row - turn) for row in range(rows)])
            peer.put("mixed", rows_of(payloads, pa.binary(), kind=kinds, timestamp=times))
            assert other.ask(f"PUT mixed by ZeroMQ {turn}") == "ACK"
            first = peer.act("sequence", producer="p", topic="counted")["next"]
            peer.put_texts({"topic": "counted", "producer": "p"}, numbered(rows, first), {"sequence": first})
            counter = peer.act("begin", producer="p")["counter"]
            said = {"topic": "staged", "stage": {"producer": "p", "counter": counter, "part": "a"}}
            peer.put(said, rows_of(payloads, pa.binary(), kind=kinds, timestamp=times))
            if turn % 3:
                assert peer.act("commit", producer="p", counter=counter) == {"committed": True}


@pytest.fixture(scope="module", params=["as-configured", "small"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    options = (*KEEP, *SMALL) if request.param == "small" else KEEP
    data = tmp_path_factory.mktemp("filled") / "data"
    with BrokerProcess(data, *options, doors=("flight",)) as broker:
        fill(broker)
        yield broker


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_everything_is_the_same_after_a_restart(filled: BrokerProcess, way: str) -> None:
    with Peer(filled.door("flight")) as peer:
        before = everything(peer)
    assert before.num_rows > 300
    positions = column(before, "position")
    assert positions == sorted(set(positions))
    filled.kill() if way == "kill" else filled.stop()
    filled.start()
    with Peer(filled.door("flight")) as peer:
        after = everything(peer)
        assert after.equals(before)
        for topic in ("mixed", "counted", "staged"):
            part = peer.get({"topic": topic, "columns": EVERY_COLUMN})
            assert column(part, "offset") == list(range(1, part.num_rows + 1))
            for at in range(1, part.num_rows + 1, 13):
                found = peer.get({"topic": topic, "from": at, "to": at + 5, "columns": EVERY_COLUMN})
                assert found.equals(part.slice(at - 1, 5))


def test_what_was_staged_has_the_times_and_kinds_that_were_given(filled: BrokerProcess) -> None:
    with Peer(filled.door("flight")) as peer:
        found = peer.get("staged")
    turns = [turn for turn in range(12) if turn % 3]
    rows = {turn: turn * 7 % 30 + 1 for turn in turns}
    # An uncommitted transaction's counter is given again, so a later commit makes both its turns visible.
    times = set(column(found, "timestamp"))
    expected = {BEGIN + timedelta(seconds=row - turn) for turn in turns for row in range(rows[turn])}
    assert expected <= times
    assert max(times) < BEGIN + timedelta(hours=1)
    assert set(column(found, "kind")) == set(WORDS)


def test_a_part_of_a_batch_may_be_collected(tmp_path: Path) -> None:
    options = ("--set", 'topics."#".keep=100 messages', *SMALL)
    with (
        BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
    ):
        for turn in range(3):
            first = turn * 1000 + 1
            peer.put_texts("t", numbered(1000, first))
            wait_until(lambda first=first: peer.topics("t")[0]["first"] == first + 900)  # type: ignore[misc]
            assert peer.texts("t") == numbered(100, first + 900)
            assert peer.texts({"topic": "t", "from": 1}) == numbered(100, first + 900)
            assert peer.info("t").total_records == 100
        broker.restart()
        with Peer(broker.door("flight")) as again:
            assert again.texts("t") == numbered(100, 2901)


def test_a_name_may_have_any_characters(tmp_path: Path) -> None:
    topic = 'ștafetă/🙂/"quoted"/{a:1}'
    with (
        BrokerProcess(tmp_path / "data", *KEEP, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
    ):
        for said in (topic, {"topic": topic}):
            assert peer.put_texts(said, ["x"])["topic"] == topic
        assert column(peer.get(topic), "topic") == [topic] * 2
        assert column(peer.get({"filter": "ștafetă/+/#"}), "topic") == [topic] * 2
        peer.subscribe("cititor-ș", "ștafetă/#", **{"from": "earliest"})
        peer.ack("cititor-ș", "ștafetă/#", (topic, 1, 2))
        assert column(peer.get({"client": "cititor-ș", "filter": "ștafetă/#"}), "offset") == [2]
        assert [peer.texts(one.ticket.ticket) for one in peer.info(topic).endpoints] == [["x", "x"]]


@pytest.mark.parametrize("size", [(8 << 20) - 1, 8 << 20])
def test_a_message_may_be_as_large_as_is_allowed(peer: Peer, topic: str, size: int) -> None:
    payload = b"x" * size
    peer.put(topic, rows_of([b"a", payload, b"b"], pa.binary()))
    assert column(peer.get(topic), "payload") == [b"a", payload, b"b"]


_PUT = st.tuples(st.sampled_from(["flight", "zeromq", "many"]), st.integers(0, 2), st.integers(1, 9))


@given(st.lists(_PUT, min_size=1, max_size=15), st.integers(1, 40), st.integers(1, 40), st.integers(1, 20))
def test_rows_and_batches_of_several_doors_are_one_log(
    flying: BrokerProcess, puts: list[tuple[str, int, int]], low: int, high: int, batch_rows: int
) -> None:
    topic = f"flight/mixed/{uuid4()}"
    sent: list[tuple[str, str]] = []
    with Peer(flying.door("flight")) as peer, ZeroMQPeer(flying.address) as other:
        for number in range(3):
            other.acked("SUB", f"{topic}/{number}", "somebody")
        for turn, (door, number, count) in enumerate(puts):
            name, texts = f"{topic}/{number}", [f"{turn} {row}" for row in range(count)]
            if door == "flight":
                peer.put_texts(name, texts)
            elif door == "zeromq":
                for text in texts:
                    assert other.ask(f"PUT {name} {text}") == "ACK"
            else:
                with peer.putting(name, rows_of([]).schema) as stream:
                    for text in texts:
                        stream.send(rows_of([text]))
                    stream.answers(count)
            sent += [(name, text) for text in texts]
        found = peer.get({"filter": f"{topic}/+", "batch_rows": batch_rows})
        assert list(zip(column(found, "topic"), column(found, "payload"), strict=True)) == [
            (name, text.encode()) for name, text in sent
        ]
        for number in range(3):
            mine = [text for name, text in sent if name == f"{topic}/{number}"]
            assert other.got("somebody", f"{topic}/{number}") == list(enumerate(mine, 1))
            if low <= len(mine) + 1:
                ticket = {"topic": f"{topic}/{number}", "from": low, "to": high, "batch_rows": batch_rows}
                assert peer.texts(ticket) == mine[low - 1 : max(high - 1, low - 1)]
