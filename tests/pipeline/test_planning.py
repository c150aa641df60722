"""Which task reads what, and how a micro-batch is parted: rules that hold for whatever there is to read."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.errors import DataLoss
from stafeta.pipeline.connector.planning import (
    FEW,
    LEAST,
    MOST,
    OPENING,
    TOGETHER,
    Held,
    Range,
    Task,
    checked,
    slices,
    tasks,
)
from stafeta.pipeline.connector.stream import shared

WEIGHTS = st.floats(1, MOST * 3) | st.integers(1, 300).map(float)


@st.composite
def plans(draw: st.DrawFn, most: int = 300) -> tuple[list[Range], dict[str, Held]]:
    """Ranges of some topics, empty ones among them, and what the broker says of those topics."""
    ranges, topics = [], {}
    for number in range(draw(st.integers(0, 8))):
        start = draw(st.integers(1, 2**62))
        stop = start + draw(st.integers(0, most))
        name = f"t/{number}"
        ranges.append(Range(name, start, stop))
        topics[name] = Held(name, start, stop, start, stop, draw(WEIGHTS))
    return ranges, topics


def held(count: int, rows: int, weight: float) -> tuple[list[Range], dict[str, Held]]:
    """So many topics with so many messages each."""
    topics = {f"t/{n:05}": Held(f"t/{n:05}", 1, rows + 1, 1, rows + 1, weight) for n in range(count)}
    return [Range(name, 1, rows + 1) for name in topics], topics


def rows(task: Task) -> int:
    return sum(one.rows for one in task.ranges)


Plan = tuple[list[Range], dict[str, Held]]
PARTITIONS = st.integers(1, 50)
RECORDS = st.none() | st.integers(1, 50)


@given(plan=plans(), least=PARTITIONS, most=RECORDS)
def test_every_offset_is_in_one_task_and_in_order(plan: Plan, least: int, most: int | None) -> None:
    ranges, topics = plan
    found = [one for task in tasks(ranges, topics, least, most) for one in task.ranges]
    assert all(one.rows > 0 for one in found)
    joined: list[Range] = []
    for one in found:
        if joined and joined[-1].topic == one.topic:
            assert joined[-1].stop == one.start, "a gap, or an offset twice"
            joined[-1] = joined[-1]._replace(stop=one.stop)
        else:
            joined.append(one)
    assert joined == [one for one in ranges if one.rows]


@given(plan=plans(), least=PARTITIONS, most=RECORDS)
def test_no_task_is_empty_nor_has_more_than_it_may(plan: Plan, least: int, most: int | None) -> None:
    found = [rows(task) for task in tasks(*plan, least, most)]
    assert all(count > 0 for count in found)
    if most is not None:
        assert max(found, default=0) <= most


UNLIKE = [Range("a", 1, 2), Range("b", 1, 11)]
UNLIKE_HELD = {"a": Held("a", 1, 2, 1, 2, 1000.0), "b": Held("b", 1, 11, 1, 11, 1.0)}


@given(plan=plans(), least=PARTITIONS, most=RECORDS)
@example(plan=(UNLIKE, UNLIKE_HELD), least=5, most=None)
def test_there_are_as_many_tasks_as_were_asked_for_if_there_are_so_many_messages(
    plan: Plan, least: int, most: int | None
) -> None:
    total = sum(one.rows for one in plan[0])
    assert len(tasks(*plan, least, most)) >= min(least, total)


@given(plan=plans())
def test_a_task_reads_its_share_and_not_more(plan: Plan) -> None:
    ranges, topics = plan
    for task in tasks(ranges, topics):
        size = sum(one.rows * topics[one.topic].weight for one in task.ranges)
        assert size <= MOST * 1.001 or rows(task) == 1


@given(plan=plans())
def test_two_tasks_that_follow_each_other_are_not_less_than_one(plan: Plan) -> None:
    ranges, topics = plan

    def cost(task: Task) -> float:
        return sum(one.rows * topics[one.topic].weight + OPENING for one in task.ranges)

    for one, other in pairwise(tasks(ranges, topics)):
        first = other.ranges[0]
        assert cost(one) + OPENING + topics[first.topic].weight > LEAST, "one more message had room"


@given(plan=plans())
def test_tasks_that_have_a_part_of_every_topic_have_every_offset_once(plan: Plan) -> None:
    ranges, topics = plan
    found = slices(ranges, topics)
    wanted = [one for one in ranges if one.rows]
    if len(wanted) < 2:
        assert not found
        return
    assert all(task.together and task.ranges for task in found)
    for one in wanted:
        parts = [part for task in found for part in task.ranges if part.topic == one.topic]
        assert all(part.rows for part in parts)
        edges = [one.start, *(part.stop for part in parts)]
        assert [part.start for part in parts] == edges[:-1]
        assert edges[-1] == one.stop


def test_parts_of_all_topics_are_as_large_as_parts_of_one() -> None:
    ranges, topics = held(count=100, rows=50_000, weight=40.0)
    found = slices(ranges, topics)
    assert [rows(task) for task in found] == [1_250_000] * FEW
    assert all(len(task.ranges) == 100 for task in found)
    assert len(slices(*held(count=100, rows=10, weight=40.0))) == 1
    large = slices(*held(count=100, rows=10 * MOST // 4000, weight=40.0))
    assert len(large) == 10


def test_of_too_many_topics_each_task_has_some() -> None:
    assert len(slices(*held(count=TOGETHER, rows=1000, weight=80.0))[0].ranges) == TOGETHER
    ranges, topics = held(count=TOGETHER + 1, rows=1000, weight=80.0)
    found = slices(ranges, topics)
    assert [task.ranges for task in found] == [task.ranges for task in tasks(ranges, topics)]
    assert len(found) > 1
    assert all(task.together for task in found)


def test_small_topics_are_read_together() -> None:
    found = tasks(*held(count=20, rows=10, weight=200.0))
    assert len(found) == 1
    assert rows(found[0]) == 200


@pytest.mark.parametrize(
    ("count", "tasks_of_them"), [(50, 1), (1000, FEW), (40_000, 40_000 * OPENING / MOST)]
)
def test_opening_many_small_topics_is_counted(count: int, tasks_of_them: float) -> None:
    found = tasks(*held(count=count, rows=1, weight=200.0))
    assert len(found) == pytest.approx(tasks_of_them, abs=1)


@pytest.mark.parametrize(
    ("size", "count"),
    [(LEAST, 1), (LEAST * 2, 2), (LEAST * FEW, FEW), (MOST * FEW, FEW), (MOST * 10, 10)],
)
def test_a_large_topic_is_parted_among_few_tasks_that_are_neither_small_nor_large(
    size: int, count: int
) -> None:
    found = tasks(*held(count=1, rows=size // 128, weight=128.0))
    assert len(found) == count
    assert max(map(rows, found)) - min(map(rows, found)) <= count


def test_as_many_tasks_as_asked_for_are_of_about_the_same_size() -> None:
    found = [rows(task) for task in tasks(*held(count=1, rows=1000, weight=160.0), 8)]
    assert found == [125] * 8


def test_nothing_to_read_takes_no_task() -> None:
    assert tasks([], {}) == []
    assert tasks(*held(count=3, rows=0, weight=160.0), 4, 10) == []


# --- what is gone


@given(
    start=st.integers(1, 60),
    count=st.integers(0, 60),
    first=st.integers(1, 60),
    held_=st.integers(0, 60),
)
def test_what_is_still_there_is_read_and_what_is_gone_is_told(
    start: int, count: int, first: int, held_: int
) -> None:
    wanted = Range("t", start, start + count)
    topic = Held("t", first, first + held_, first, first + held_, 100.0)
    there = sorted(set(range(start, start + count)) & set(range(first, first + held_)))
    found = checked(wanted, topic, fail=False)
    assert list(range(found.start, found.stop)) == there
    if len(there) == count:
        assert checked(wanted, topic, fail=True).rows == count
    else:
        with pytest.raises(DataLoss, match=rf"^{count - len(there)} of the messages {start} to "):
            checked(wanted, topic, fail=True)


def test_a_topic_that_is_gone_is_lost_whole() -> None:
    wanted = Range("upb/hall", 5, 8)
    assert checked(wanted, None, fail=False).rows == 0
    with pytest.raises(DataLoss, match=r"^3 of the messages 5 to 7 of topic 'upb/hall' are gone"):
        checked(wanted, None, fail=True)


# --- how a micro-batch is parted

WAITING = st.dictionaries(st.text("abc/", min_size=1, max_size=4), st.integers(1, 10**12), min_size=1)


@given(waiting=WAITING, share=st.floats(0, 1), turn=st.integers(0, 1000))
def test_a_micro_batch_is_as_large_as_it_may_be(waiting: dict[str, int], share: float, turn: int) -> None:
    most = max(1, int(sum(waiting.values()) * share))
    found = shared(waiting, most, turn)
    assert sum(found.values()) == most
    assert len(found) == min(len(waiting), most)
    for topic, count in found.items():
        assert 1 <= count <= waiting[topic]


@given(waiting=WAITING, share=st.floats(0, 1))
def test_a_micro_batch_is_parted_in_proportion_to_what_waits(waiting: dict[str, int], share: float) -> None:
    total = sum(waiting.values())
    most = max(1, int(total * share))
    for topic, count in shared(waiting, most).items():
        due = most * waiting[topic] / total
        assert abs(count - due) <= len(waiting) + 1, "further from its due than one of each topic makes"


def test_one_large_topic_does_not_keep_the_small_ones_waiting() -> None:
    waiting = {"large": 1_000_000} | {f"small/{n}": 1 for n in range(50)}
    assert shared(waiting, 100) == {"large": 50} | {f"small/{n}": 1 for n in range(50)}


def test_topics_take_turns_where_there_are_too_many() -> None:
    waiting = {f"t/{n}": 10 for n in range(7)}
    taken = Counter(topic for turn in range(0, 21, 3) for topic in shared(waiting, 3, turn))
    assert set(taken.values()) == {3}


@given(waiting=WAITING, most=st.integers(1, 1000))
def test_whatever_waits_is_taken_in_the_end(waiting: dict[str, int], most: int) -> None:
    waiting = {topic: count % 100 + 1 for topic, count in waiting.items()}
    total = sum(waiting.values())
    for turn in range(-(-total // most) - 1):
        taken = Counter(shared(waiting, most, turn * most))
        waiting = {topic: count - taken[topic] for topic, count in waiting.items() if count > taken[topic]}
    assert sum(waiting.values()) <= most
