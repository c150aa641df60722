"""Marks of the log: whoever has one is told of a loss where there is one, and only there."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker.runs import Runs
from stafeta.errors import DataLoss, InvalidRequest

STEPS = st.lists(st.sampled_from(["append", "append", "restart", "copy", "restore"]), max_size=25)


class Broker:
    """A log of numbered messages, each of which there is once in the world, and the runs that are stored with it."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.stored: list[tuple[int, str]] = []
        self.start()

    def start(self) -> None:
        self.runs = Runs(self.stored, len(self.log) + 1)

    def append(self, message: int) -> None:
        if self.runs.current not in self.stored:
            self.stored.append(self.runs.current)
        self.log.append(message)


@given(STEPS, st.booleans())
def test_a_loss_is_told_where_there_is_one(steps: list[str], begins_with_messages: bool) -> None:
    messages = count(1)
    broker = Broker()
    if begins_with_messages:  # of a version that stored no runs
        broker.log = [next(messages)]
        broker.start()
    copy: tuple[list[int], list[tuple[int, str]]] = list(broker.log), []
    marks: list[tuple[str, list[int]]] = []
    for step in steps:
        if step == "append":
            broker.append(next(messages))
        elif step == "copy":
            copy = list(broker.log), list(broker.stored)
        elif step == "restore":
            broker.log, broker.stored = list(copy[0]), list(copy[1])
        if step in ("restart", "restore"):
            broker.start()
        ends = {len(broker.log), len(broker.log) // 2}  # not all of it is known to every reader
        marks += [(broker.runs.mark(end), broker.log[:end]) for end in ends]
        for mark, seen in marks:
            if broker.log[: len(seen)] == seen:
                broker.runs.check(mark)
            else:
                with pytest.raises(DataLoss):
                    broker.runs.check(mark)


def test_what_is_no_mark_is_refused() -> None:
    runs = Runs([], 1)
    for mark in ("", "x", "1.2.3", f"{runs.mark(1)}.", "ab.1.zz.1", "ab.1.cd.-1", f"ab.1.cd.{10**30}"):
        with pytest.raises(InvalidRequest, match="is no mark"):
            runs.check(mark)
