"""How the readings of a topic are judged: rules that hold for any readings, and each kind by an example."""

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.pipeline.jobs.alerting.evaluation import (
    TOLERANCE,
    Evaluation,
    Event,
    Readings,
    State,
    due,
    dump,
    evaluate,
    expire,
    joined,
    load,
)
from stafeta.pipeline.jobs.alerting.rules import Rule

SECOND = 1_000_000
VALUED = (
    Rule("above", "#", "above", (5.0,)),
    Rule("above for", "#", "above", (5.0,), 2.0, 3.0),
    Rule("below", "#", "below", (-2.0,), 1.5),
    Rule("outside", "#", "outside", (-3.0, 4.0), 1.0, 1.0),
    Rule("changed", "#", "changed_by_more_than", (4.0,)),
    Rule("z", "#", "z_score", (2.0,), 0.5, window=16.0),
)
GONE = Rule("gone", "#", "silent_for", (60.0,))

# Offset, seconds and value; times go back now and then.
rows = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(-8, 8).map(float) | st.sampled_from([float("nan"), 0.1, 1e200])
    ),
    max_size=60,
).map(lambda found: [(offset, time, value) for offset, (time, value) in enumerate(found, 1)])


def readings(found: Sequence[tuple[int, float, float]]) -> Readings:
    offsets, times, numbers = zip(*found, strict=True) if found else ((), (), ())
    return Readings(
        np.array(offsets, np.int64),
        np.array([round(time * SECOND) for time in times], np.int64),
        np.array(numbers, np.float64),
    )


def values(*numbers: float, first: int = 1) -> Readings:
    """One a second."""
    return readings([(first + row, float(first + row), number) for row, number in enumerate(numbers)])


def judged(
    rules: Sequence[Rule], *batches: Readings, state: State | None = None, now: int = 50_000
) -> Evaluation:
    """What comes of batches; the state is kept as bytes between them."""
    state, late, ahead = state or State(), 0, 0
    events: list[Event] = []
    for batch in batches:
        found = evaluate(rules, load(dump(state)), batch, now)
        state, events, late = found.state, events + found.events, late + found.late
        ahead += found.ahead
    return Evaluation(state, events, late, ahead)


def told(events: list[Event]) -> list[tuple[bool, int]]:
    return [(event.raised, event.offset) for event in events]


# --- whatever the readings


@given(rows, st.data())
def test_in_which_batches_readings_come_makes_no_difference(
    found: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(found)), max_size=5)))
    edges = [0, *cuts, len(found)]
    parts = [readings(found[first:end]) for first, end in pairwise(edges)]
    whole, cut = judged(VALUED, readings(found)), judged(VALUED, *parts)
    assert cut.state == whole.state
    assert cut.late == whole.late
    assert sorted(cut.events, key=by_rule) == sorted(whole.events, key=by_rule)
    assert [event.offset for event in cut.events] == sorted(event.offset for event in cut.events)


def by_rule(event: Event) -> tuple[str, int]:
    return event.rule.name, event.offset


@given(rows)
def test_raised_and_cleared_alternate_and_raised_comes_first(found: list[tuple[int, float, float]]) -> None:
    events = sorted(judged(VALUED, readings(found)).events, key=by_rule)
    for _, ones in groupby(events, key=lambda event: event.rule.name):
        since = None
        for number, event in enumerate(ones):
            assert event.raised == (number % 2 == 0)
            assert event.since == since
            since = event.time if event.raised else None


@given(rows, st.data())
def test_what_comes_again_changes_nothing(found: list[tuple[int, float, float]], data: st.DataObject) -> None:
    once = judged(VALUED, readings(found))
    begin = data.draw(st.integers(0, len(found)))
    again = evaluate(VALUED, once.state, readings(found[begin:]), 2000)
    assert again == (once.state, [], 0, 0)


@given(rows)
def test_late_readings_change_nothing_and_are_counted(found: list[tuple[int, float, float]]) -> None:
    newest, in_time = -1.0, []
    for row in found:
        if row[1] >= newest:
            in_time.append(row)
            newest = row[1]
    all_of_them, those = judged(VALUED, readings(found)), judged(VALUED, readings(in_time))
    assert all_of_them.late == len(found) - len(in_time)
    assert all_of_them.events == those.events
    assert all_of_them.state.standings == those.state.standings


@given(rows)
def test_a_state_is_the_same_after_it_was_kept_and_stays_small(
    found: list[tuple[int, float, float]],
) -> None:
    rules = (*VALUED, GONE)
    state = evaluate(rules, State(), readings(found), 50_000).state
    assert load(dump(state)) == state
    assert len(dump(state)) < 4000


@given(rows)
def test_a_score_is_that_of_the_readings_in_the_window(found: list[tuple[int, float, float]]) -> None:
    """Against numpy, with all readings at hand; windows end where their parts do."""
    rule = Rule("z", "#", "z_score", (2.0,), window=16.0)
    last, newest, expected = False, -1.0, []
    before: list[tuple[float, float]] = []
    for offset, time, value in found:
        if time < newest or not np.isfinite(value) or value > 1e100:
            newest = max(newest, time)
            continue
        newest = time
        known = np.array([one for when, one in before if when > time - 16])
        before.append((time, value))
        if len(known) < 8:
            continue
        spread, away = known.std(ddof=1), abs(value - known.mean())
        if abs(away - 2.0 * spread) < 1e-9:
            return  # a matter of rounding
        if (away > 2.0 * spread) != last:
            last = not last
            expected.append((last, offset))
    assert told(judged([rule], readings(found)).events) == expected


# --- each kind


@pytest.mark.parametrize(
    ("rule", "numbers", "expected"),
    [
        (Rule("r", "#", "above", (5.0,)), [5, 5.1, 9, 5, 6], [(True, 2), (False, 4), (True, 5)]),
        (Rule("r", "#", "above", (5.0,), 2.0), [6, 4, 3.1, 6, 3, 4, 6], [(True, 1), (False, 5), (True, 7)]),
        (Rule("r", "#", "below", (5.0,)), [5, 4.9, 5], [(True, 2), (False, 3)]),
        (Rule("r", "#", "below", (5.0,), 1.0), [4, 5, 5.9, 6], [(True, 1), (False, 4)]),
        (Rule("r", "#", "outside", (1.0, 3.0)), [1, 3, 3.5, 0.5, 2], [(True, 3), (False, 5)]),
        (Rule("r", "#", "outside", (0.0, 9.0), 2.0), [10, 8, 1, 5], [(True, 1), (False, 4)]),
        (Rule("r", "#", "changed_by_more_than", (3.0,)), [9, 6, 2, 2, 2], [(True, 3), (False, 4)]),
        (Rule("r", "#", "changed_by_more_than", (3.0,)), [0, 9, 0, 0], [(True, 2), (False, 4)]),
        (Rule("r", "#", "above", (5.0,), 0.0, 2.0), [6, 6, 6, 6, 1], [(True, 3), (False, 5)]),
        (Rule("r", "#", "above", (5.0,), 0.0, 2.0), [6, 6, 1, 6, 6, 1], []),
        (Rule("r", "#", "above", (5.0,), 3.0, 2.0), [6, 3, 3, 6, 6], [(True, 4)]),
        (Rule("r", "#", "z_score", (3.0,), window=60.0), [*[1, 2] * 5, 9, 1.5], [(True, 11), (False, 12)]),
        (Rule("r", "#", "z_score", (3.0,), window=60.0), [*[7] * 9, 8, 7], [(True, 10), (False, 11)]),
        (Rule("r", "#", "z_score", (3.0,), window=60.0), [*[1, 2] * 3, 99], []),
    ],
)
def test_a_rule_is_raised_and_cleared_by_these_readings(
    rule: Rule, numbers: list[float], expected: list[tuple[bool, int]]
) -> None:
    assert told(judged([rule], values(*numbers)).events) == expected


def test_an_event_says_which_reading_and_since_when() -> None:
    events = judged([VALUED[0]], values(1, 9, 3)).events
    assert events == [
        Event(VALUED[0], True, 2, 2 * SECOND, 9.0),
        Event(VALUED[0], False, 3, 3 * SECOND, 3.0, 2 * SECOND),
    ]


def test_parts_are_put_in_the_order_of_their_offsets() -> None:
    parts = [values(9, first=3), values(1, 9)]
    assert joined(parts).offsets.tolist() == [1, 2, 3]


# --- times that are ahead

HOT = Rule("hot", "#", "above", (28.0,))
NOW = 1_000.0  # seconds


@pytest.mark.parametrize("cut", [False, True], ids=["in one batch", "in its own"])
@pytest.mark.parametrize("ahead", [TOLERANCE / 1000 + 0.001, 3_599.0])
def test_one_time_that_is_ahead_mutes_nothing(ahead: float, cut: bool) -> None:
    wrong, others = [(1, NOW + ahead, 20.0)], [(n, NOW - 9 + n / 1000, 99.0) for n in range(2, 1_000)]
    parts = [wrong, others] if cut else [[*wrong, *others]]
    found = judged([HOT], *map(readings, parts), now=round(NOW * 1000))
    assert told(found.events) == [(True, 2)]
    assert (found.late, found.ahead) == (0, 1)
    assert found.state.time == round(others[-1][1] * SECOND)


def test_a_time_that_is_ahead_is_judged_as_one_of_its_neighbours() -> None:
    found = judged(
        [HOT], readings([(1, 5.0, 20.0), (2, NOW * 9, 99.0), (3, 6.0, 20.0)]), now=round(NOW * 1000)
    )
    assert found.events == [
        Event(HOT, True, 2, 5 * SECOND, 99.0),
        Event(HOT, False, 3, 6 * SECOND, 20.0, 5 * SECOND),
    ]


def test_a_time_within_the_tolerance_is_taken_as_it_is() -> None:
    found = judged([HOT], readings([(1, NOW + TOLERANCE / 1000, 99.0)]), now=round(NOW * 1000))
    assert (found.ahead, found.state.time) == (0, round(NOW * SECOND) + TOLERANCE * 1000)


def test_a_topic_all_of_whose_times_are_ahead_goes_by_the_clock() -> None:
    """It is raised after `for` as any other."""
    rule = Rule("hot", "#", "above", (28.0,), lasting=3.0)
    state = State()
    events: list[Event] = []
    for step in range(6):
        second = NOW + step
        found = evaluate([rule], state, readings([(step + 1, second + 3_000, 99.0)]), round(second * 1000))
        state, events = found.state, events + found.events
        assert (found.late, found.ahead) == (0, 1)
    assert told(events) == [(True, 4)]


def test_a_topic_that_stands_ahead_of_the_clock_is_judged_anew_from_there() -> None:
    """As after the clock was set back; what was raised is cleared once."""
    rules = (HOT, *VALUED, GONE)
    later = judged(rules, readings([(1, 2 * NOW, 99.0)]), now=round(2 * NOW * 1000))
    found = judged(rules, readings([(2, NOW, 0.0), (3, NOW + 1, 99.0)]), state=later.state, now=1_000_000)
    assert [(event.raised, event.offset) for event in found.events if event.rule == HOT] == [
        (False, 2),
        (True, 3),
    ]
    assert found.late == 0


# --- rules that change


def test_a_rule_with_other_limits_is_judged_anew_and_its_alert_is_cleared_once() -> None:
    hot, hotter = Rule("hot", "#", "above", (5.0,)), Rule("hot", "#", "above", (7.0,))
    raised = judged([hot], values(6))
    assert told(judged([hotter], values(6, first=2), state=raised.state).events) == [(False, 2)]
    assert told(judged([hotter], values(8, first=2), state=raised.state).events) == [], "it is raised already"


def test_what_is_known_of_a_rule_that_is_gone_is_dropped() -> None:
    raised = judged(VALUED, values(9))
    left = judged(VALUED[:1], values(9, first=2), state=raised.state)
    assert list(left.state.standings) == ["above"]
    assert told(judged(VALUED[1:2], values(9, first=9), state=left.state).events) == []


# --- silence


def test_silence_is_raised_once_and_cleared_by_the_next_message() -> None:
    heard = evaluate([GONE], State(), values(1, 2), 1000)
    assert not heard.events
    assert due([GONE], heard.state) == 61_000
    assert expire([GONE], heard.state, 60_999).events == []
    silent = expire([GONE], heard.state, 61_500)
    assert silent.events == [Event(GONE, True, 2, 61_500_000, None)]
    assert due([GONE], silent.state) is None
    assert expire([GONE], silent.state, 999_000).events == []
    back = evaluate([GONE], silent.state, values(float("nan"), 4, first=3), 70_000)
    assert back.events == [Event(GONE, False, 3, 3 * SECOND, None, 61_500_000)]
    assert due([GONE], back.state) == 130_000


def test_a_late_reading_breaks_silence() -> None:
    silent = expire([GONE], evaluate([GONE], State(), values(1, first=9), 1000).state, 61_000)
    back = evaluate([GONE], silent.state, readings([(10, 2.0, 1.0)]), 70_000)
    assert back.late == 1
    assert told(back.events) == [(False, 10)]


def test_after_an_absence_the_whole_time_is_waited_once_more_and_only_once() -> None:
    heard = evaluate([GONE], State(), values(1), 1000)
    away = 61_000 + TOLERANCE + 1
    back = expire([GONE], heard.state, away)
    assert not back.events
    assert due([GONE], back.state) == away + 60_000
    assert told(expire([GONE], back.state, away + 600_000).events) == [(True, 1)]


def test_a_rule_about_silence_that_changes_waits_for_the_next_message() -> None:
    heard = evaluate([GONE], State(), values(1), 1000)
    sooner = Rule("gone", "#", "silent_for", (5.0,))
    assert due([sooner], expire([sooner], heard.state, 30_000).state) is None
    assert due([sooner], evaluate([sooner], heard.state, values(1, first=2), 30_000).state) == 35_000
