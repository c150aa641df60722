"""Windows of readings against plain Python: each topic is a case of its own."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stafeta.pipeline.jobs.batches.readings import Readings
from stafeta.pipeline.jobs.rolling.closing import advanced, recalled
from stafeta.pipeline.jobs.rolling.window_rows import finished
from stafeta.pipeline.jobs.rolling.windows import Windows, summed_up

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
NEVER = 10**17  # a time after all windows


class Reading(NamedTuple):
    topic: str
    offset: int
    micros: int
    number: float | None


class Key(NamedTuple):
    topic: str
    size: int
    start: int


@dataclass
class Reference:
    """What windows do, one reading at a time."""

    sizes: Sequence[int]
    delay: int
    clocks: dict[str, int] = field(default_factory=dict)
    open: defaultdict[Key, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    closed: dict[Key, list[Reading]] = field(default_factory=dict)
    late: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    ahead: int = 0

    def take(self, batch: Sequence[Reading], idle: int | None, now: int = NEVER) -> None:
        told: dict[str, int] = {}
        for one in batch:
            if one.micros <= now + self.delay:
                told[one.topic] = max(told.get(one.topic, one.micros), one.micros)
            else:
                self.ahead += one.number is not None
            for size in self.sizes if one.number is not None else ():
                key = Key(one.topic, size, one.micros // size * size)
                if key.start + size <= self.clocks.get(one.topic, -NEVER) - self.delay:
                    self.late[one.topic, size] += 1
                else:
                    self.open[key].append(one)
        here = {one.topic for one in batch}
        for topic in {key.topic for key in self.open} | told.keys():
            by_day = now if topic in here else idle
            ends = [key.start + key.size + self.delay for key in self.open if key.topic == topic]
            over = [end for end in ends if by_day is not None and end <= by_day]
            known = [told[topic]] if topic in told else over
            if known:
                self.clocks[topic] = max(self.clocks.get(topic, -NEVER), *known)
        for key in [*self.open]:
            if key.start + key.size <= self.clocks.get(key.topic, -NEVER) - self.delay:
                assert key not in self.closed
                self.closed[key] = self.open.pop(key)


def columns(readings: Sequence[Reading]) -> Readings:
    """Readings as a task has them: topic by topic, each in the order of its offsets."""
    ordered = sorted(readings, key=lambda one: (one.topic, one.offset))
    topics = sorted({one.topic for one in readings})
    return Readings(
        topics,
        np.array([topics.index(one.topic) for one in ordered], np.int64),
        np.array([one.offset for one in ordered], np.int64),
        np.array([one.micros for one in ordered], np.int64),
        np.array([math.nan if one.number is None else one.number for one in ordered]),
        np.array([one.number is not None for one in ordered], bool),
    )


class Outcome(NamedTuple):
    closed: list[dict[str, Any]]
    late: dict[tuple[str, int], int]
    ahead: int


def outcome(
    batches: Sequence[Sequence[Reading]],
    idles: Sequence[int | None],
    sizes: Sequence[int],
    delay: int,
    nows: Sequence[int] = (),
    tasks: int = 1,
) -> Outcome:
    """All batches one after the other, each read by so many tasks, and then nothing for a very long time, which closes
    all windows. Between two batches the state goes to the disk and back."""
    state = Windows.empty()
    closed: list[dict[str, Any]] = []
    late: dict[tuple[str, int], int] = defaultdict(int)
    ahead = 0
    times = [*(nows or [NEVER] * len(batches)), NEVER]
    for batch, idle, now in zip([*batches, []], [*idles, NEVER], times, strict=True):
        parts = [
            Windows.unpack(summed_up(columns(batch[task::tasks]), sizes, now + delay).pack())
            for task in range(tasks)
        ]
        after = advanced(state, Windows.joined(parts), delay=delay, now=now, idle=idle)
        state = Windows.unpack(after.open.pack())
        ahead += after.ahead
        closed += finished(after.closed, {size: f"{size}us" for size in sizes}).to_pylist()
        for row in after.late.to_arrow().to_pylist():
            late[row["topic"], row["size"]] += row["count"]
    assert set(state["size"].tolist()) <= {0}  # the clocks
    return Outcome([row | {"micros": (row["start"] - EPOCH) // MICROSECOND} for row in closed], late, ahead)


def same(found: Outcome, wanted: Reference) -> None:
    by_key = {
        Key(row["topic"], int(row["size"].removesuffix("us")), row["micros"]): row for row in found.closed
    }
    assert len(by_key) == len(found.closed)
    assert by_key.keys() == wanted.closed.keys()
    assert found.late == wanted.late
    assert found.ahead == wanted.ahead
    for key, row in by_key.items():
        alike(row, key, wanted.closed[key])


def alike(row: dict[str, Any], key: Key, readings: Sequence[Reading]) -> None:
    values = [one.number for one in readings if one.number is not None]
    ordered = sorted(values)
    order = sorted(readings, key=lambda one: (one.micros, one.offset))
    assert row["end"] - row["start"] == timedelta(microseconds=key.size)
    assert row["count"] == len(values)
    assert (row["min"], row["max"]) == (ordered[0], ordered[-1])
    assert (row["first"], row["last"]) == (order[0].number, order[-1].number)
    scale = max(map(abs, values))
    assert row["mean"] == pytest.approx(statistics.fmean(values), rel=1e-12, abs=scale * 1e-12)
    if len(values) == 1:
        assert row["stddev"] is None
    else:
        assert row["stddev"] == pytest.approx(statistics.stdev(values), rel=1e-6, abs=scale * 1e-9)
    for name, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        if len(values) <= 200:
            assert row[name] == ordered[math.ceil(rank * len(values)) - 1], (name, ordered)
        else:
            below = sum(value < row[name] for value in values) / len(values)
            upto = sum(value <= row[name] for value in values) / len(values)
            assert below - 0.02 <= rank <= upto + 0.02


SIZES = (10 * SECOND, 15 * SECOND)  # of which neither is made of the other
DELAY = 3 * SECOND
times = st.integers(-60 * SECOND, 60 * SECOND) | st.integers(-6, 6).map(lambda n: n * 5 * SECOND)
values = st.integers(-(10**9), 10**9).map(lambda n: n / 1000) | st.sampled_from([0.0, 1e9, 1e9 + 0.001, -5.0])
case = st.lists(st.lists(st.tuples(times, st.none() | values), max_size=6), min_size=3, max_size=3)


@settings(deadline=None)
@given(
    st.lists(case, min_size=1, max_size=5),
    st.lists(st.none() | times, min_size=3, max_size=3),
    st.lists(times | st.just(NEVER), min_size=3, max_size=3),
    st.integers(1, 3),
)
def test_windows_are_those_of_plain_python(
    cases: list[list[list[tuple[int, float | None]]]], idles: list[int | None], nows: list[int], tasks: int
) -> None:
    """Whatever the order of the readings, however they are cut into batches and among tasks, whichever topics are
    silent, and whatever the time of the day is."""
    wanted = Reference(SIZES, DELAY)
    batches: list[list[Reading]] = []
    for step in range(3):
        batches.append(
            [
                Reading(f"t/{number}", 100 * step + place, micros, value)
                for number, one in enumerate(cases)
                for place, (micros, value) in enumerate(one[step])
            ]
        )
        wanted.take(batches[-1], idles[step], nows[step])
    wanted.take([], NEVER)
    same(outcome(batches, idles, SIZES, DELAY, nows, tasks), wanted)


def test_a_time_that_is_ahead_moves_no_clock_past_the_time_of_the_day() -> None:
    """One wrong time mutes nothing; and a topic all of whose times are wrong goes by the time of the day."""
    now = 1_000 * SECOND
    steps = [now + step * SECOND for step in range(0, 60, 20)]
    one = [[Reading("one", 10 * step, at, 1.0) for at in (steps[step] - SECOND,)] for step in range(3)]
    one[0].append(Reading("one", 5, now + 3_600 * SECOND, 9.0))
    all_of_them = [[Reading("all", step, at + 3_600 * SECOND, 1.0)] for step, at in enumerate(steps)]
    batches = [[*left, *right] for left, right in zip(one, all_of_them, strict=True)]
    wanted = Reference(SIZES, DELAY)
    for batch, at in zip(batches, steps, strict=True):
        wanted.take(batch, None, at)
    assert wanted.clocks == {"one": steps[2] - SECOND}
    wanted.take([], NEVER)
    found = outcome(batches, [None] * 3, SIZES, DELAY, steps)
    assert (found.late, found.ahead) == ({}, 4)
    assert sum(row["count"] for row in found.closed) == 7 * len(SIZES), "every reading is in its windows"
    same(found, wanted)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-40, 40), st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)))),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 8),
)
@example([(0, [("a", 0)]), (13, []), (6, [("a", 9)]), (0, [("a", 0)])], 2)  # lost, and older readings come
def test_a_clock_that_is_set_back_or_a_lost_state_mutes_no_topic_and_closes_no_window_twice(
    steps: list[tuple[int, list[tuple[str, int]]]], lost: int
) -> None:
    """What is of now, or still to come, is late only for a window that is closed."""
    state, closed, counted = Windows.empty(), set[Key](), 0

    def known(topics: Sequence[str], after: int) -> Windows:
        some = [key for key in sorted(closed) if key.topic in topics and key.start + key.size > after]
        columns = (np.array([key[place] for key in some], np.int64) for place in (1, 2))
        return Windows.closed_before(pa.array([key.topic for key in some], pa.string()), *columns)

    for number, (now, offsets) in enumerate([*steps, (10**6, [])]):
        micros = now * SECOND
        batch = [
            Reading(topic, 100 * number + place, micros + second * SECOND, 1.0)
            for place, (topic, second) in enumerate(offsets)
        ]
        parts = summed_up(columns(batch), SIZES, micros + DELAY)
        if number == lost:
            counted += int(state["count"][state["size"] > 0].sum())
            state = Windows.empty()
        state = recalled(Windows.unpack(state.pack()), parts, delay=DELAY, now=micros, closed=known)
        after = advanced(state, parts, delay=DELAY, now=micros, idle=micros)
        found = [Key(*row) for row in zip(*keys(after.closed), strict=True)]
        assert not closed & {*found}
        assert len({*found}) == len(found)
        for key in map(Key._make, zip(*keys(after.late), strict=True)):
            assert key in closed or key.start + key.size <= micros
        counted += int(after.closed["count"].sum() + after.late["count"].sum())
        state = after.open
        closed |= {*found}
    assert counted == len(SIZES) * sum(len(offsets) for _, offsets in steps)
    assert set(state["size"].tolist()) <= {0}, "what was closed is not remembered for longer than it takes"


def keys(windows: Windows) -> tuple[list[str], list[int], list[int]]:
    return windows.topics.to_pylist(), windows["size"].tolist(), windows["start"].tolist()


def test_a_backlog_is_not_late_because_another_topic_is_ahead() -> None:
    """Nor where it is cut. Then all is closed, as the time of the day has it."""
    readings = [
        Reading(topic, number, begin + number * SECOND // 4, float(number % 17))
        for topic, begin in (("ahead", 5_000 * SECOND), ("behind", 0), ("long ago", -9_000 * SECOND))
        for number in range(400)
    ]
    behind = [one for one in readings if one.topic != "ahead"]
    batches = [
        [one for one in readings if one.topic == "ahead"],
        [one for one in behind if one.offset < 150],
        [one for one in behind if 150 <= one.offset < 151],
        [one for one in behind if one.offset > 150],
    ]
    wanted = Reference(SIZES, DELAY)
    wanted.take(readings, None)
    wanted.take([], NEVER)
    found = outcome(batches, [None] * 4, SIZES, DELAY)
    assert found.late == {}
    same(found, wanted)


def test_large_windows_and_large_numbers_are_summed_up_well() -> None:
    many = [Reading("skewed", n, n * 100, math.exp(n % 4_999 / 500)) for n in range(5_000)]
    near = [Reading("near", n, n * 100, 1e9 + (n % 10) / 1000) for n in range(199)]
    far = [Reading("infinite", n, n * 100, math.inf if n == 3 else 1.0) for n in range(5)]
    minute = 60 * SECOND
    wanted = Reference((minute,), 0)
    wanted.take([*many, *near], None)
    wanted.take([], NEVER)
    batches = [many[::2] + near[:70] + far[:2], many[1::2] + near[70:] + far[2:]]
    found = outcome(batches, [None, None], (minute,), 0)
    infinite = [row for row in found.closed if row["topic"] == "infinite"]
    assert [(row["count"], row["max"], row["p50"], row["last"]) for row in infinite] == [
        (5, math.inf, 1.0, 1.0)
    ]
    same(found._replace(closed=[row for row in found.closed if row["topic"] != "infinite"]), wanted)
    (row,) = (row for row in found.closed if row["topic"] == "near")
    assert row["stddev"] == pytest.approx(statistics.stdev(one.number or 0 for one in near), rel=1e-3)


def test_topics_that_have_no_numbers_have_no_windows() -> None:
    text = [Reading("text", n, n * SECOND, None) for n in range(50)]
    mixed = [Reading("mixed", 1, 0, 1.0), Reading("mixed", 2, 40 * SECOND, None)]  # which moves the clock
    again = [Reading("mixed", 3, 0, 1.0), Reading("mixed", 4, 36 * SECOND, 1.0)]
    found = outcome([text + mixed, again], [None, None], SIZES, DELAY)
    assert sorted((row["size"], row["micros"], row["count"]) for row in found.closed) == [
        ("10000000us", 0, 1),
        ("10000000us", 30 * SECOND, 1),
        ("15000000us", 0, 1),
        ("15000000us", 30 * SECOND, 1),
    ]
    assert found.late == {("mixed", size): 1 for size in SIZES}
