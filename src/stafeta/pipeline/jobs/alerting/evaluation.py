"""How the readings of one topic are judged by its rules. No Spark, no clock: what it needs is given.

1. A reading is judged once: what has come before (by its offset) changes nothing.
2. A reading that is older than the newest one is late. It is counted, and no rule but silent_for takes notice of it.
3. A reading whose time is ahead of the clock of the one who reads by more than `TOLERANCE` is counted, and judged as if
   it were of the time of its neighbours: it does not make those late that come after it. Without any in its batch it is
   one of `TOLERANCE` ago.
4. Of a rule and a topic, raised and cleared alternate, raised first. A reading that is neither beyond the limit nor far
   enough on this side of it (hysteresis) leaves things as they are.
5. Readings may come in any number of batches: the events are the same, and what is remembered is bounded.
6. Silence is counted on the clock of the one who reads, from the batch in which the last message was read. When a
   deadline is noticed more than `TOLERANCE` late, the reader was away: the whole time is waited once more, and only
   once. Where it is further off than the whole time, the clock was set back: it counts from now on.
7. A rule that judges otherwise than the one of this name before it forgets what that one had seen, but not that it was
   raised.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from stafeta.pipeline.jobs.alerting.rules import Rule
from stafeta.pipeline.jobs.alerting.scores import scored
from stafeta.pipeline.jobs.batches.readings import Integers, Numbers

TOLERANCE: Final = 10_000
"""Milliseconds that clocks may differ, and that a deadline may be noticed late."""

_FORM: Final = 2  # of the bytes that a state is kept as


class Readings(NamedTuple):
    """Messages of a topic in the order of their offsets, as columns. A message that is no number has a NaN."""

    offsets: Integers
    times: Integers
    """Microseconds since 1970."""
    numbers: Numbers

    def where(self, mask: NDArray[np.bool_]) -> "Readings":
        if mask.all():
            return self
        return Readings(self.offsets[mask], self.times[mask], self.numbers[mask])


class Event(NamedTuple):
    """An alert is raised, or cleared: then `since` is when it was raised. Times are microseconds since 1970."""

    rule: Rule
    raised: bool
    offset: int
    time: int
    value: float | None
    since: int | None = None


@dataclass(frozen=True)
class Standing:
    """What is known of one rule on a topic."""

    mark: str
    raised: int | None = None
    beyond: int | None = None
    """Since when readings are beyond the limit, where that does not yet last long enough."""
    memory: list[Any] = field(default_factory=list)
    """changed_by_more_than: the last value. z_score: see `scores`. silent_for: the deadline (milliseconds), and
    whether it is the second."""


@dataclass(frozen=True)
class State:
    """What is known of a topic."""

    offset: int = 0
    time: int = -(1 << 62)
    standings: dict[str, Standing] = field(default_factory=dict)


class Evaluation(NamedTuple):
    state: State
    events: list[Event]
    late: int = 0
    ahead: int = 0


def evaluate(rules: Sequence[Rule], state: State, readings: Readings, now: int) -> Evaluation:
    """What comes of new readings, which are read at `now` (milliseconds)."""
    readings = readings.where(readings.offsets > state.offset)
    if not len(readings.offsets):
        return Evaluation(_of_these(rules, state), [])
    state = _caught_up(rules, state, now)
    ahead = readings.times > (now + TOLERANCE) * 1000
    least = (now - TOLERANCE) * 1000 if ahead.all() else readings.times[~ahead].min()
    times = np.where(ahead, least, readings.times)
    newest = np.maximum.accumulate(np.concatenate(([state.time], times)))
    readings = readings._replace(times=np.where(ahead, newest[1:], times))
    in_time = readings.times >= newest[:-1]
    values = readings.where(in_time & np.isfinite(readings.numbers))
    standings, events = {}, []
    for rule in rules:
        standing = _standing(rule, state)
        if rule.kind == "silent_for":
            standing, found = _heard(rule, standing, readings, now)
        else:
            standing, found = _evaluated(rule, standing, values)
        standings[rule.name] = standing
        events += found
    events.sort(key=lambda event: event.offset)
    after = State(int(readings.offsets[-1]), int(newest[-1]), standings)
    return Evaluation(after, events, int(np.count_nonzero(~in_time)), int(np.count_nonzero(ahead)))


def expire(rules: Sequence[Rule], state: State, now: int) -> Evaluation:
    """What comes of the clock alone."""
    state = _of_these(rules, state)
    events = []
    standings = dict(state.standings)
    for rule, deadline, again in _deadlines(rules, state):
        if deadline > now:
            latest = now + _milliseconds(rule)
            standings[rule.name] = Standing(rule.mark, memory=[min(deadline, latest), again])
            continue
        if now - deadline > TOLERANCE and not again:
            standings[rule.name] = Standing(rule.mark, memory=[now + _milliseconds(rule), True])
        else:
            standings[rule.name] = Standing(rule.mark, now * 1000)
            events.append(Event(rule, True, state.offset, now * 1000, None))
    return Evaluation(replace(state, standings=standings), events)


def due(rules: Sequence[Rule], state: State) -> int | None:
    """When the clock has to be looked at next, in milliseconds."""
    return min((deadline for _, deadline, _ in _deadlines(rules, state)), default=None)


def dump(state: State) -> bytes:
    """The state as bytes, which `load` reads."""
    standings = {
        name: (one.mark, one.raised, one.beyond, one.memory) for name, one in state.standings.items()
    }
    return orjson.dumps((_FORM, state.offset, state.time, standings))


def load(stored: bytes) -> State:
    form, offset, time, *_, standings = orjson.loads(stored)  # in form 1 there was one more, of no use now
    assert form <= _FORM, f"a newer Stafeta has written this state, in form {form}"
    return State(offset, time, {name: Standing(*one) for name, one in standings.items()})


def _standing(rule: Rule, state: State) -> Standing:
    known = state.standings.get(rule.name)
    if known is None:
        return Standing(rule.mark)
    return known if known.mark == rule.mark else Standing(rule.mark, known.raised)


def _caught_up(rules: Sequence[Rule], state: State, now: int) -> State:
    """The state of a topic that stands ahead of the clock, as when that was set back: values are judged anew from now
    on; what is raised stays so."""
    if state.time <= (now + TOLERANCE) * 1000:
        return state
    silent = {rule.name for rule in rules if rule.kind == "silent_for"}
    standings = {
        name: one if name in silent else Standing(one.mark, one.raised)
        for name, one in state.standings.items()
    }
    return replace(state, time=(now - TOLERANCE) * 1000, standings=standings)


def _of_these(rules: Sequence[Rule], state: State) -> State:
    """The state without what is known of rules that are gone, or evaluate otherwise now."""
    known = {rule.name: _standing(rule, state) for rule in rules if rule.name in state.standings}
    return replace(state, standings=known)


# --- silence


def _heard(rule: Rule, standing: Standing, readings: Readings, now: int) -> tuple[Standing, list[Event]]:
    events = []
    if standing.raised is not None:
        first = readings.numbers[0]
        value = float(first) if np.isfinite(first) else None
        offset, time = int(readings.offsets[0]), int(readings.times[0])
        events.append(Event(rule, False, offset, time, value, standing.raised))
    return Standing(rule.mark, memory=[now + _milliseconds(rule), False]), events


def _milliseconds(rule: Rule) -> int:
    return round(rule.limits[0] * 1000)


def _deadlines(rules: Sequence[Rule], state: State) -> Iterator[tuple[Rule, int, bool]]:
    """The rules that wait for silence, with their deadlines, and whether each is the second."""
    for rule in rules:
        standing = state.standings.get(rule.name)
        if rule.kind == "silent_for" and standing is not None and standing.memory:
            yield rule, *standing.memory


# --- values

BEYOND: Final = 1
WITHIN: Final = 0
BETWEEN: Final = -1


def _evaluated(rule: Rule, standing: Standing, values: Readings) -> tuple[Standing, list[Event]]:
    if not len(values.offsets):
        return standing, []
    sides, memory = _sides(rule, standing.memory, values)
    raised, beyond = standing.raised, standing.beyond
    events = []

    def event(raising: bool, row: int, since: int | None = None) -> Event:
        value = float(values.numbers[row])
        return Event(rule, raising, int(values.offsets[row]), int(values.times[row]), value, since)

    if raised is not None:
        beyond = raised
    for is_beyond, first, end in _runs(sides, beyond is not None):
        if is_beyond:
            beyond = int(values.times[first]) if beyond is None else beyond
            if raised is None:
                row = _lasted(sides, values.times, first, end, beyond + round(rule.lasting * 1e6))
                if row is not None:
                    raised = int(values.times[row])
                    events.append(event(True, row))
        else:
            if raised is not None:
                events.append(event(False, first, raised))
            raised = beyond = None
    return Standing(rule.mark, raised, None if raised is not None else beyond, memory), events


def _runs(sides: NDArray[np.int8], is_beyond: bool) -> Iterator[tuple[bool, int, int]]:
    """The runs of readings beyond the limit, and on this side of it: each with its first row and the row after it.
    Those between go with what was before."""
    sure = np.flatnonzero(sides != BETWEEN)
    turns = sure[np.flatnonzero(np.diff(sides[sure], prepend=np.int8(is_beyond)))].tolist()
    edges = [*turns, len(sides)]
    if is_beyond and edges[0] > 0:
        yield True, 0, edges[0]
    for first, end in pairwise(edges):
        is_beyond = not is_beyond
        yield is_beyond, first, end


def _lasted(sides: NDArray[np.int8], times: Integers, first: int, end: int, until: int) -> int | None:
    """The first row of a run that is beyond the limit at this time or later."""
    start = max(first, int(np.searchsorted(times, until)))
    rows = np.flatnonzero(sides[start:end] == BEYOND)
    return start + int(rows[0]) if len(rows) else None


def _sides(rule: Rule, memory: list[Any], values: Readings) -> tuple[NDArray[np.int8], list[Any]]:
    """Where each value is, and what is to be remembered."""
    numbers, limits, room = values.numbers, rule.limits, rule.hysteresis
    match rule.kind:
        case "above":
            return _where(numbers > limits[0], numbers <= limits[0] - room), []
        case "below":
            return _where(numbers < limits[0], numbers >= limits[0] + room), []
        case "outside":
            low, high = limits
            inner = (numbers >= low + room) & (numbers <= high - room)
            return _where((numbers < low) | (numbers > high), inner), []
        case "changed_by_more_than":
            change = np.abs(np.diff(numbers, prepend=memory[0] if memory else np.nan))
            return _where(change > limits[0], change <= limits[0]), [float(numbers[-1])]
        case _:
            scores, memory = scored(values.times, numbers, memory, rule.window)
            return _where(scores > limits[0], scores <= limits[0] - room), memory


def _where(beyond: NDArray[np.bool_], within: NDArray[np.bool_]) -> NDArray[np.int8]:
    return np.where(beyond, BEYOND, np.where(within, WITHIN, BETWEEN)).astype(np.int8)


def joined(parts: Iterable[Readings]) -> Readings:
    """The readings of several parts, in the order of their offsets."""
    ordered = sorted(parts, key=lambda part: int(part.offsets[0]))
    if len(ordered) == 1:
        return ordered[0]
    return Readings(*(np.concatenate(columns) for columns in zip(*ordered, strict=True)))
