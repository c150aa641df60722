"""What must be true in the end, however often broker, driver and workers were killed.

1. Lake and log together hold every message once; where both have it, it is the same.
2. Every reading that the broker has confirmed is there once, in order. Of those that went by UDP each is there once at
   most, in order: what the broker took.
3. The windows of a topic count each of its readings once; the lake's table and the topics of rollups say the same.
4. Alerts of a topic are raised and cleared in turn, each once, by the readings that crossed the limit.
5. Every order that does not fit its schema is among the dead once, and nothing else is.

Each check returns what is wrong, as sentences.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.pipeline.pipeline_soak_sensors import (
    EXACT,
    LIMIT,
    LOSSY,
    ORDERS,
    WRONG,
    number_of,
    number_of_order,
)
from tests.pipeline.soak_checks import some


class Kept(NamedTuple):
    """A message in the lake or in the log."""

    offset: int
    payload: bytes


class Window(NamedTuple):
    topic: str
    start: int
    """Microseconds since 1970."""
    readings: int


class Event(NamedTuple):
    """An alert, raised or cleared by the reading with this offset."""

    state: str
    offset: int


Messages = Mapping[str, Sequence[Kept]]
"""By topic."""


def merged(lake: Messages, log: Messages) -> dict[str, list[Kept]]:
    """What both hold together, in the order of the offsets, each once: how often it is there is for others to say."""
    together: dict[str, list[Kept]] = {}
    for topic in lake.keys() | log.keys():
        known = dict([*log.get(topic, ()), *lake.get(topic, ())])
        together[topic] = [Kept(offset, known[offset]) for offset in sorted(known)]
    return together


def wrong_union(lake: Messages, log: Messages, ends: Mapping[str, int]) -> list[str]:
    """`ends` are the next offsets of the topics."""
    sentences = []
    for topic in sorted(ends.keys() | lake.keys() | log.keys()):
        archived, logged = lake.get(topic, ()), log.get(topic, ())
        for place, kept in (("the lake", archived), ("the log", logged)):
            times = Counter(one.offset for one in kept)
            if repeated := [offset for offset, often in times.items() if often > 1]:
                sentences.append(f"{topic}: offsets {some(repeated)} are more than once in {place}")
        known = dict(archived)
        if other := [one.offset for one in logged if known.get(one.offset, one.payload) != one.payload]:
            sentences.append(f"{topic}: lake and log differ at offsets {some(other)}")
        have = known.keys() | {one.offset for one in logged}
        should = range(1, ends.get(topic, 1))
        if missing := [offset for offset in should if offset not in have]:
            sentences.append(f"{topic}: offsets {some(missing)} are neither in the lake nor in the log")
        if strange := sorted(offset for offset in have if offset not in should):
            sentences.append(f"{topic}: offsets {some(strange)} were never given")
    return sentences


def wrong_readings(sent: Mapping[str, int], kept: Messages) -> list[str]:
    """`sent` is how many of each topic were sent by UDP or, of the others, are confirmed; they are numbered from 1."""
    sentences: list[str] = []
    for topic in (*EXACT, *LOSSY, ORDERS):
        number_in = number_of_order if topic == ORDERS else number_of
        numbers, strange = _numbers(kept.get(topic, ()), number_in, sent.get(topic, 0))
        if not numbers:
            sentences.append(f"{topic} has no messages")
        if strange:
            sentences.append(f"{some(strange)} in {topic} were never sent")
        if repeated := [number for number, often in Counter(numbers).items() if often > 1]:
            sentences.append(f"{some(repeated)} of {topic} are there more than once")
        if backward := [(one, other) for one, other in pairwise(numbers) if other < one]:
            sentences.append(f"{some(backward)} of {topic} are in the wrong order")
        if topic not in LOSSY:
            there = set(numbers)
            if missing := [number for number in range(1, sent.get(topic, 0) + 1) if number not in there]:
                sentences.append(f"{some(missing)} of {topic} are missing")
    return sentences


def _numbers(
    kept: Sequence[Kept], number_in: Callable[[bytes], int], most: int
) -> tuple[list[int], list[bytes]]:
    """The numbers of those that were sent, and the payloads of those that were not."""
    numbers, strange = [], []
    for _, payload in kept:
        try:
            number = number_in(payload)
        except ValueError:
            strange.append(payload)
            continue
        if 1 <= number <= most:
            numbers.append(number)
        else:
            strange.append(payload)
    return numbers, strange


def wrong_windows(
    readings: Mapping[str, int], table: Sequence[Window], published: Sequence[Window]
) -> list[str]:
    """`readings` are how many each topic has; `table` is the lake's, `published` what the topics of rollups have."""
    sentences = []
    for place, windows in (("the lake", table), ("the topics", published)):
        times = Counter((window.topic, window.start) for window in windows)
        if repeated := [key for key, often in times.items() if often > 1]:
            sentences.append(f"windows {some(repeated)} are more than once in {place}")
        counted: Counter[str] = Counter()
        for window in windows:
            counted[window.topic] += window.readings
        sentences += [
            f"the windows of {topic} in {place} count {counted[topic]} readings of {readings.get(topic, 0)}"
            for topic in sorted(readings.keys() | counted.keys())
            if counted[topic] != readings.get(topic, 0)
        ]
    if other := sorted(set(table) ^ set(published)):
        sentences.append(f"windows {some(other)} are not the same in the lake and in the topics")
    return sentences


def wrong_alerts(kept: Messages, alerts: Mapping[str, Sequence[Event]]) -> list[str]:
    """`alerts` are the events of the rule for the limit, by the topic of the readings."""
    sentences = []
    for topic in (*EXACT, *LOSSY):
        expected, found = list(crossings(kept.get(topic, ()))), list(alerts.get(topic, ()))
        if not expected:
            sentences.append(f"no reading of {topic} has crossed the limit")
        if backward := [pair for pair in pairwise(found) if pair[0].state == pair[1].state]:
            sentences.append(f"alerts of {topic} do not alternate: {some(backward)}")
        if missing := [event for event in expected if event not in found]:
            sentences.append(f"alerts {some(missing)} of {topic} are missing")
        if repeated := [event for event, often in Counter(found).items() if often > 1]:
            sentences.append(f"alerts {some(repeated)} of {topic} are there more than once")
        if strange := [event for event in found if event not in set(expected)]:
            sentences.append(f"alerts {some(strange)} of {topic} have no reason")
    if others := sorted(alerts.keys() - {*EXACT, *LOSSY}):
        sentences.append(f"there are alerts for {some(others)}, which no rule is about")
    return sentences


def crossings(kept: Sequence[Kept]) -> Iterator[Event]:
    """The alerts that readings give rise to."""
    high = False
    for offset, payload in kept:
        if (float(payload) > LIMIT) != high:
            high = not high
            yield Event("raised" if high else "cleared", offset)


def wrong_silence(alerts: Mapping[str, Sequence[tuple[str, float]]], stopped: float) -> list[str]:
    """`alerts` are states and times of the rule for sensors that stopped, which none did before `stopped`."""
    early = [
        (topic, state, time)
        for topic, events in alerts.items()
        for state, time in events
        if state == "raised" and time < stopped
    ]
    return [f"sensors were taken for silent that were not: {some(early)}"] if early else []


def wrong_dead(
    kept: Messages, published: Sequence[tuple[str, int]], table: Sequence[tuple[str, int]]
) -> list[str]:
    """`published` are topics and offsets that the topics of the dead tell of, `table` those of the lake."""
    expected = {
        (ORDERS, offset) for offset, payload in kept.get(ORDERS, ()) if number_of_order(payload) % WRONG == 0
    }
    sentences = []
    for place, found in (("topics", published), ("the lake", table)):
        times = Counter(found)
        if missing := sorted(expected - times.keys()):
            sentences.append(f"of the dead {some(missing)} are missing in {place}")
        if repeated := [one for one, often in times.items() if often > 1]:
            sentences.append(f"of the dead {some(repeated)} are more than once in {place}")
        if strange := sorted(times.keys() - expected):
            sentences.append(f"{some(strange)} are among the dead in {place} and should not be")
    return sentences
