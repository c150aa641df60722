"""What is kept of transactions once they are committed, and for how long."""

from pathlib import Path
from typing import NoReturn

import pytest

from stafeta.broker import Broker, Limits, staging
from stafeta.broker.clock import TurnClock
from stafeta.broker.portions import PORTION
from stafeta.broker.staging import LABELS
from stafeta.errors import LimitReached, NotStaged, OutOfSequence, StoreFull, TakenOver
from stafeta.message import RowBatch
from stafeta.store.port import Group
from tests.broker.stores import FailingMemory, FailingSqlite, run
from tests.soundness import assert_sound

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Times:
    """The clock of all brokers, which stands still until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000 * SECOND
        monkeypatch.setattr(TurnClock, "now", lambda clock: self.now)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def stage(broker: Broker, producer: str, counter: int = 0, part: str = "p") -> None:
    broker.staging.stage(producer, counter, part, "t", [(3, b"row")])


def names(broker: Broker) -> int:
    staging = broker.staging
    assert staging._done.keys() >= staging._committed.keys() >= staging._expiring.keys()
    return len(staging._done)


def test_thousands_of_writes_that_nobody_can_repeat_leave_a_bounded_number_of_names(
    tmp_path: Path, times: Times
) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        broker.subscribe("c", "t")
        await broker.staging.commit("kept", 7)
        most = 0
        for number in range(2000):
            stage(broker, f"spark/{number}")
            broker.staging.commit(f"spark/{number}", 0, forget_after=HOUR)
            times.now += 60 * SECOND
            broker.staging.expire()
            most = max(most, names(broker))
            if number % 1000 == 500:
                await broker.commit()
                store.crash()
                broker = await Broker.open(store := FailingSqlite(tmp_path))
        assert most <= 62, "an hour's, and the one that is kept"
        times.now += HOUR
        broker.staging.expire()
        await broker.commit()
        assert names(broker) == 1
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert names(broker) == 1
        assert broker.staging.last("kept") == 7
        assert broker.topic("t").visible == 2001
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_a_commit_that_is_asked_for_again_is_done_once_before_its_name_is_forgotten_and_refused_after(
    tmp_path: Path, times: Times
) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "t")
        stage(broker, "spark/once")
        await broker.staging.commit("spark/once", 0, {"p": 1}, forget_after=HOUR)
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        times.now += HOUR - 1
        broker.staging.expire()
        stage(broker, "spark/once", part="late")
        await broker.staging.commit("spark/once", 0, {"p": 1}, forget_after=HOUR)  # which is not an hour more
        assert broker.topic("t").visible == 2
        times.now += 1
        broker.staging.expire()
        assert broker.staging.last("spark/once") == -1
        stage(broker, "spark/once", part="later")
        with pytest.raises(NotStaged):
            broker.staging.commit("spark/once", 0, {"p": 1}, forget_after=HOUR)
        await broker.commit()
        assert broker.topic("t").visible == 2
        times.now += 25 * HOUR
        broker.staging.expire()
        assert not broker.staging._staged, "what came too late goes like all that nobody commits"
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_a_producer_that_comes_again_is_not_forgotten(times: Times) -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        await broker.staging.commit("p", 0, forget_after=HOUR)
        await broker.staging.commit("p", 1)
        await broker.close()
        broker = await Broker.open(store)
        times.now += 2 * HOUR
        broker.staging.expire()
        assert broker.staging.last("p") == 1
        await broker.close()

    run(work())


def test_names_that_are_forgotten_make_room(times: Times) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_producers=1))
        await broker.staging.commit("a", 0, forget_after=HOUR)
        with pytest.raises(LimitReached):
            broker.staging.commit("b", 0)
        times.now += HOUR
        broker.staging.expire()
        await broker.staging.commit("b", 0)
        await broker.close()

    run(work())


def test_attempts_are_forgotten_with_their_producers(tmp_path: Path, times: Times) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store, Limits(max_producers=1))
        counter, attempt = broker.staging.begin("a")
        stage(broker, "a", counter)
        await broker.staging.commit("a", counter, None, attempt, forget_after=HOUR)
        times.now += 23 * HOUR
        broker.staging.expire()
        with pytest.raises(LimitReached):
            broker.staging.begin("b")
        times.now += 2 * HOUR
        store.fails = True
        broker.staging.expire()
        with pytest.raises(StoreFull):
            await broker.commit()
        store.fails = False
        with pytest.raises(LimitReached):
            broker.staging.begin("b")
        broker.staging.expire()
        await broker.commit()
        with pytest.raises(TakenOver):
            broker.staging.commit("a", counter, None, attempt)
        store.crash()
        broker = await Broker.open(FailingSqlite(tmp_path), Limits(max_producers=1))
        assert broker.staging.begin("b")[0] == 0
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_labels_of_the_last_transactions_are_kept(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        for counter in range(LABELS + 2):
            broker.staging.commit("p", counter, label=f"label {counter}")
        broker.staging.commit("p", LABELS, label="another")
        await broker.staging.commit("without", 0)
        for _ in range(2):
            label = broker.staging.label
            assert [label("p", counter) for counter in (0, 1, 2)] == [None, None, "label 2"]
            assert label("p", LABELS) == f"label {LABELS}"
            assert label("without", 0) is label("nobody", 0) is None
            await broker.close()
            broker = await Broker.open(FailingSqlite(tmp_path))
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_what_could_not_be_stored_is_as_it_was(times: Times) -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        await broker.staging.commit("p", 0, label="first", forget_after=HOUR)
        store.fails = True
        broker.staging.commit("p", 1, label="second")
        broker.staging.commit("q", 0, label="third")
        with pytest.raises(StoreFull):
            await broker.commit()
        assert (broker.staging.last("p"), broker.staging.label("p", 0)) == (0, "first")
        assert broker.staging.label("p", 1) is broker.staging.label("q", 0) is None
        assert names(broker) == 1
        times.now += HOUR
        broker.staging.expire()
        assert names(broker) == 0
        with pytest.raises(StoreFull):
            await broker.commit()
        assert (names(broker), broker.staging.label("p", 0)) == (1, "first")
        store.fails = False
        broker.staging.expire()
        await broker.commit()
        assert names(broker) == 0
        await broker.close()

    run(work())


def test_what_does_not_expire_yet_is_not_looked_at(times: Times) -> None:
    class Unread(dict[str, int]):
        def items(self) -> NoReturn:
            raise AssertionError("all of them are looked at")

        __iter__ = keys = values = items

    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        for number in range(3 * PORTION):
            broker.staging.commit(f"key/{number}", 0, forget_after=HOUR + number)
            broker.staging.commit(f"key/{number}", 1, forget_after=HOUR + number)  # it came again
        broker.staging._expiring = Unread(broker.staging._expiring)
        assert not broker.staging.expire()
        assert len(broker.staging._done) == 3 * PORTION
        times.now += HOUR + 2 * PORTION
        turns = 1
        while broker.staging.expire():
            turns += 1
        assert turns > 1, "others get their turn meanwhile"
        assert len(broker.staging._done) == PORTION - 1
        assert broker.staging.last(f"key/{3 * PORTION - 1}") == 1
        await broker.close()

    run(work())


def test_what_could_not_be_forgotten_is_forgotten_later(times: Times) -> None:
    async def work() -> None:
        broker = await Broker.open(store := FailingMemory())
        broker.staging.commit("key", 0, label="x", forget_after=HOUR)
        await broker.commit()
        times.now += HOUR
        store.fails = True
        for _ in range(2):
            broker.staging.expire()
            assert broker.staging.last("key") == -1
            with pytest.raises(StoreFull):
                await broker.commit()
            assert (broker.staging.last("key"), broker.staging.label("key", 0)) == (0, "x")
        store.fails = False
        broker.staging.expire()
        await broker.commit()
        assert broker.staging.last("key") == -1
        await broker.close()

    run(work())


def test_transactions_that_nobody_commits_go_in_portions_the_longest_unchanged_first(
    tmp_path: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stages under a million names makes nobody wait: neither now nor when they go."""
    monkeypatch.setattr(staging, "PORTION", 3)
    most = 0

    def committed(group: Group) -> None:
        nonlocal most
        most = max(most, len(group.unstaged))

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        times.now += 10 * 365 * 24 * HOUR  # for one message the clock is wrong
        stage(broker, "ahead")
        times.now -= 10 * 365 * 24 * HOUR
        for counter in range(10):
            stage(broker, "many", counter)
        stage(broker, "open")
        await broker.commit()
        times.now += 20 * HOUR
        stage(broker, "many", 4, "another")
        stage(broker, "open")
        await broker.close()
        broker = await Broker.open(store := FailingSqlite(tmp_path))
        commit = store.commit

        async def counted(group: Group) -> None:
            committed(group)
            await commit(group)

        monkeypatch.setattr(store, "commit", counted)
        times.now += 5 * HOUR
        await broker.collector.collect()
        await broker.commit()
        assert set(broker.staging._staged) == {("ahead", 0), ("many", 4), ("open", 0)}
        assert 0 < most <= 3
        times.now += 20 * HOUR
        await broker.collector.collect()
        await broker.commit()
        assert set(broker.staging._staged) == {("ahead", 0)}
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_of_what_is_refused_or_not_stored_nothing_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        stage(broker, "open")
        await broker.commit()
        for counter in range(20):
            some = RowBatch("t", 0, [(0, 0, "p", "", 3, None, b"row")])
            with pytest.raises(OutOfSequence):
                broker.staging.stage_batch("refused", counter, "p", "t", some, sequence=5)
            with pytest.raises(OutOfSequence):
                broker.staging.stage_apart("refused", counter, "p", [some], sequence=5)
        store.fails = True
        stage(broker, "failed")
        stage(broker, "failed", part="q")
        stage(broker, "open")
        with pytest.raises(StoreFull):
            await broker.commit()
        store.fails = False
        assert list(broker.staging._staged) == list(broker.staging._rows) == [("open", 0)]
        assert broker.staging._rows["open", 0]["p", None] == 1
        stage(broker, "failed")
        await broker.staging.commit("failed", 0, {"p": 1})
        await broker.close()

    run(work())
    assert_sound(tmp_path)
