"""Transactions that are begun again, by a program whose predecessor died, or only seems to have."""

import asyncio
from pathlib import Path

import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.errors import TakenOver
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, numbered, texts_in
from tests.waiting import PATIENCE


def connect(place: Place) -> Connection:
    host, port = place
    return stafeta.connect(f"grpc://{host}:{port}", timeout=PATIENCE)


def rows(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def test_what_a_dead_program_has_written_is_not_committed(tmp_path: Path) -> None:
    keep = ("--set", 'topics."#".keep=1000000000 messages')
    with BrokerProcess(tmp_path / "data", *keep, doors=("flight",)) as process:
        place = process.door("flight")
        with connect(place) as dead:
            lost = dead.transaction("booking")
            lost.write("t", rows("a", 10))
        with connect(place) as broker:
            transaction = broker.transaction("booking")
            assert transaction.counter == lost.counter
            process.restart()
            assert transaction.write("t", rows("b", 3)) == 3
            process.restart()
            assert transaction.commit()
            assert texts_in(broker.read("t")) == rows("b", 3)
            assert broker.committed("booking") == transaction.counter
            # It is known after a restart who has begun last.
            with pytest.raises(TakenOver):
                broker.transaction("booking", lost.counter, lost.attempt).commit()


def test_a_program_that_was_taken_over_is_told_so(place: Place, topic: str, name: str) -> None:
    with connect(place) as broker, connect(place) as zombie:
        assert broker.committed(name) is None
        old = zombie.transaction(name)
        old.write(topic, rows("a", 2))
        new = broker.transaction(name)
        worker = broker.transaction(name, new.counter, new.attempt)
        new.write(topic, rows("b", 2))
        worker.write(topic, rows("c", 1), part="worker")
        with pytest.raises(TakenOver, match="has begun a transaction again"):
            old.write(topic, rows("a", 3))
        with pytest.raises(TakenOver):
            old.write(topic, rows("a", 1), part="another")
        with pytest.raises(TakenOver):
            old.commit()
        old.abort()
        assert new.commit({"main": 2, "worker": 1})
        assert not new.commit()  # as often as it is asked for
        with pytest.raises(TakenOver):
            old.commit()
        assert texts_in(broker.read(topic)) == [*rows("b", 2), *rows("c", 1)]


def test_tasks_that_write_together_begin_once(place: Place, topic: str, name: str) -> None:
    async def main() -> None:
        host, port = place
        async with stafeta.connect_async(f"grpc://{host}:{port}", timeout=PATIENCE) as broker:
            transaction = broker.transaction(name)
            await asyncio.gather(*(transaction.write(topic, [text]) for text in rows("a", 5)))
            worker = broker.transaction(name, transaction.counter, transaction.attempt)
            await worker.write(topic, ["b"], part="worker")
            assert await transaction.commit(["main", "worker"])
            assert sorted(texts_in(await broker.read(topic))) == [*rows("a", 5), "b"]
            assert await broker.committed(name) == 0

    asyncio.run(main())


def test_who_names_no_attempt_is_not_asked_for_one(peer: Peer, topic: str, name: str) -> None:
    begun = [peer.act("begin", producer=name) for _ in range(3)]
    assert {one["counter"] for one in begun} == {0}
    attempts = [one["attempt"] for one in begun]
    assert sorted(set(attempts)) == attempts
    stage = {"producer": name, "counter": 0, "part": "a"}
    peer.put_texts({"topic": topic, "stage": stage}, numbered(2))
    assert peer.act("commit", producer=name, counter=0)["committed"]
    assert peer.texts(topic) == numbered(2)
