"""Alerts micro-batch by micro-batch: what comes out is what the evaluation says of each topic by itself, wherever the
job is broken off and started again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stafeta.errors import Unsound
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.jobs.alerting import alert_source, evaluation
from stafeta.pipeline.jobs.alerting.alert_messages import payload_of, topic_of
from stafeta.pipeline.jobs.alerting.alert_source import AlertStream
from stafeta.pipeline.jobs.alerting.alert_state import Messages
from stafeta.pipeline.jobs.alerting.evaluation import State, due, evaluate, expire
from stafeta.pipeline.jobs.alerting.rules import Rule
from stafeta.pipeline.jobs.alerts import Alerting
from stafeta.pipeline.jobs.batches.readings import Readings

BEGIN = 1_800_000_000_000  # milliseconds
TOPICS = ("a", "b", "b/c")
RULES: tuple[Rule, ...] = (
    Rule("above", "#", "above", (5.0,), 2.0, 3.0),
    Rule("outside", "b/#", "outside", (-3.0, 4.0), 1.0, 1.0),
    Rule("changed", "a", "changed_by_more_than", (4.0,)),
    Rule("z", "b", "z_score", (2.0,), 0.5, window=16.0),
    Rule("gone", "a", "silent_for", (7.0,)),
    Rule("quiet", "b/#", "silent_for", (30.0,)),
)
OTHERS: tuple[Rule, ...] = (
    Rule("above", "#", "above", (6.0,)),
    Rule("gone", "#", "silent_for", (9.0,)),
    RULES[3],
)

Message = tuple[str, int, int, float | None]
"""Topic, offset, time (microseconds) and number."""

numbers = st.none() | st.integers(-9, 9).map(float) | st.sampled_from([float("nan"), 0.1, 1e200])
messages = st.tuples(st.sampled_from(TOPICS), st.integers(-12_000, 12_000), numbers)
"""Topic, how far its time is from the clock (milliseconds), and number."""


@dataclass
class Batch:
    """A micro-batch: how long after the one before, what comes, and what happens to the job."""

    after: int
    messages: list[tuple[str, int, float | None]]
    cut: int
    is_restarted: bool
    is_broken_off: bool
    is_repeated: bool
    rules: tuple[Rule, ...]


batches = st.lists(
    st.builds(
        Batch,
        st.sampled_from([1, 500, 4_000, 9_000, 60_000]),
        st.lists(messages, max_size=12),
        st.integers(0, 12),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from([RULES, RULES, OTHERS]),
    ),
    max_size=8,
)


@dataclass
class Reference:
    """Each topic by itself, with a timer that is set once and goes off; its state is never written."""

    states: dict[str, State] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    late: int = 0
    ahead: int = 0

    def take(self, rules: Sequence[Rule], found: Sequence[Message], now: int) -> None:
        for topic in TOPICS:
            mine = [rule for rule in rules if rule.matches(topic)]
            takes_all = any(rule.kind == "silent_for" for rule in mine)
            rows = [one[1:] for one in found if one[0] == topic and (takes_all or one[3] is not None)]
            if not rows:
                continue
            offsets, times, values = zip(*rows, strict=True)
            readings = evaluation.Readings(
                np.array(offsets),
                np.array(times),
                np.array([np.nan if one is None else one for one in values]),
            )
            self._note(topic, mine, evaluate(mine, self.states.get(topic, State()), readings, now))
        for topic in [topic for topic, timer in self.timers.items() if timer <= now]:
            del self.timers[topic]
            mine = [rule for rule in rules if rule.matches(topic)]
            self._note(topic, mine, expire(mine, self.states[topic], now))

    def _note(self, topic: str, rules: Sequence[Rule], found: evaluation.Evaluation) -> None:
        self.states[topic] = found.state
        deadline = due(rules, found.state)
        if deadline is not None:
            self.timers[topic] = min(deadline, self.timers.get(topic, deadline))
        self.late, self.ahead = self.late + found.late, self.ahead + found.ahead
        self.told += [(topic_of(one.rule.name, topic), payload_of(one, topic)) for one in found.events]


class BrokenOff(Exception):
    pass


class Recording(Alerting):
    """Hands on to a dict, which takes each micro-batch once as the broker does, or fails before."""

    def __init__(self, rules: Sequence[Rule], folder: Path, taken: dict[int, Messages]) -> None:
        super().__init__(rules, "", str(folder / "alerts"), str(folder))
        self.taken = taken
        self.is_broken_off = False

    def hand_on(self, results: Messages, notes: Any, number: int) -> None:
        if self.is_broken_off:
            self.is_broken_off = False
            raise BrokenOff
        assert self.taken.setdefault(number, results) == results, "it is the same when it is repeated"


def planned(folder: Path, number: int, now: int) -> None:
    """As Spark notes a micro-batch before it is read."""
    (folder / "offsets").mkdir(exist_ok=True)
    entry = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": now, "conf": {}})
    (folder / "offsets" / str(number)).write_text(f"v1\n{entry}\n{{}}")


def packed(rules: Sequence[Rule], found: Sequence[Message]) -> list[tuple[int, bytes]]:
    """What a task makes of messages."""
    silent = [rule.topics for rule in rules if rule.kind == "silent_for"]
    valued = [rule.topics for rule in rules if rule.kind != "silent_for"]
    options = ReadOptions.of({"subscribe": "#"}, streaming=True)
    stream = AlertStream(options, silent, valued, "")
    rows = sorted(found, key=lambda one: one[:2])
    rows = [one for one in rows if stream.wants(one[0])]
    if not rows:
        return []
    topics = sorted({one[0] for one in rows})
    pack = stream.packed(
        Readings(
            topics,
            np.array([topics.index(one[0]) for one in rows]),
            np.array([one[1] for one in rows]),
            np.array([one[2] for one in rows]),
            np.array([np.nan if one[3] is None else one[3] for one in rows], float),
            np.array([one[3] is not None for one in rows]),
        ),
        0,
    )
    return [] if pack is None else [(0, pack)]


@settings(max_examples=25)
@given(batches)
def test_whatever_comes_and_wherever_it_is_broken_off_the_alerts_are_those_of_each_topic(
    given_batches: list[Batch],
) -> None:
    reference = Reference()
    taken: dict[int, Messages] = {}
    offsets, now = dict.fromkeys(TOPICS, 0), BEGIN
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = Recording(RULES, folder, taken)
        rules = RULES
        for number, batch in enumerate(given_batches):
            now += batch.after
            found: list[Message] = []
            for topic, age, value in batch.messages:
                offsets[topic] += 1
                found.append((topic, offsets[topic], (now + age) * 1000, value))
            if batch.is_restarted:  # which is when rules change
                rules = batch.rules
                job = Recording(rules, folder, taken)
            reference.take(rules, found, now)
            planned(folder, number, now)
            edges = [0, min(batch.cut, len(found)), len(found)]
            packs = [pack for first, end in pairwise(edges) for pack in packed(rules, found[first:end])][::-1]
            job.is_broken_off = batch.is_broken_off
            try:
                job.take(packs, number)
            except BrokenOff:
                job = Recording(rules, folder, taken)
                job.take(iter(()), number)  # it was computed: nobody asks what there was
            if batch.is_repeated:
                job.take(iter(()), number)
            job.is_broken_off = False
            told = [one for batch in taken.values() for one in batch]
            assert sorted(told) == sorted(reference.told)
            notes = json.loads((folder / "alerts" / "done.json").read_bytes())
            assert (notes["alerts"], notes["late"], notes["ahead"]) == (
                len(told),
                reference.late,
                reference.ahead,
            )
            assert notes["due"] == 0 or notes["due"] > now, "a deadline that has passed is looked at"
            if not any(one.is_restarted and one.rules is OTHERS for one in given_batches):
                deadlines = [due(rules_of(topic), state) for topic, state in reference.states.items()]
                assert notes["due"] == min((one for one in deadlines if one is not None), default=0)


def rules_of(topic: str) -> list[Rule]:
    return [rule for rule in RULES if rule.matches(topic)]


def test_a_micro_batch_that_was_not_written_is_computed_again_and_comes_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the same process, whose state it has left alone."""
    taken: dict[int, Messages] = {}
    job = Recording(RULES, tmp_path, taken)
    found = [
        [("a", 1, BEGIN * 1000, 1.0)],
        [("a", 2, BEGIN * 1000 + 1, 9.0), ("a", 3, BEGIN * 1000 + 2, 1.0)],
    ]
    planned(tmp_path, 0, BEGIN)
    job.take(packed(RULES, found[0]), 0)
    planned(tmp_path, 1, BEGIN + 1_000)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            job.take(packed(RULES, found[1]), 1)
    assert not taken
    assert not list(tmp_path.rglob(".*")), "nothing is left of what could not be written"
    job.take(packed(RULES, found[1]), 1)
    states = [(json.loads(payload)["rule"], json.loads(payload)["state"]) for _, payload in taken[1]]
    assert states == [("changed", "raised")]
    assert json.loads((tmp_path / "alerts" / "done.json").read_bytes())["due"] == BEGIN + 1_000 + 7_000


def test_silence_is_noticed_in_time_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing comes from then on."""
    taken: dict[int, Messages] = {}
    job, ahead = Recording(RULES, tmp_path, taken), BEGIN + 3_600_000

    def goes_by_clock(now: int) -> bool:
        options = ReadOptions.of({"subscribe": "#", "idleTrigger": "0s"}, streaming=True)
        monkeypatch.setattr(alert_source, "time_of_day", lambda: now * 1000)
        return AlertStream(options, ["a"], [], str(tmp_path / "alerts")).goes_by_clock({"a": 2})

    planned(tmp_path, 0, ahead)
    job.take(packed(RULES, [("a", 1, ahead * 1000, 1.0)]), 0)
    assert [goes_by_clock(now) for now in (ahead + 6_999, ahead + 7_000, BEGIN)] == [False, True, True]
    planned(tmp_path, 1, BEGIN)
    job.take([], 1)
    assert [goes_by_clock(now) for now in (BEGIN, BEGIN + 6_999, BEGIN + 7_000)] == [False, False, True]
    planned(tmp_path, 2, BEGIN + 7_000)
    job.take([], 2)
    assert [json.loads(payload)["rule"] for _, payload in taken[2]] == ["gone"]


def test_a_state_that_is_missing_is_told(tmp_path: Path) -> None:
    taken: dict[int, Messages] = {}
    for number in (0, 2):
        planned(tmp_path, number, BEGIN)
    Recording(RULES, tmp_path, taken).take([], 0)
    with pytest.raises(Unsound, match="What alerts knew after micro-batch 1 is missing"):
        Recording(RULES, tmp_path, taken).take([], 2)
