"""Messages are due when the plan says, whoever publishes them and however late they are sent."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.bench import message_header
from stafeta.bench.plan import DOORS, Plan, batch_of
from stafeta.bench.schedule import Burst, bursts

PLAN = Plan("zeromq", "", "t", 100, 1, None, 1_000, None, 1, 1)


@given(st.integers(1, 10_000), st.integers(1, 20))
def test_publishers_share_all_messages(messages: int, publishers: int) -> None:
    plan = PLAN._replace(messages=messages, publishers=publishers)
    shares = [plan.share(number) or 0 for number in range(publishers)]
    assert sum(shares) == messages
    assert max(shares) - min(shares) <= 1


def test_as_fast_as_possible_messages_go_in_batches() -> None:
    plan = PLAN._replace(batch=300)
    made = list(bursts(plan, 0, time.monotonic_ns()))
    assert [(burst.first, burst.total) for burst in made] == [(0, 300), (300, 300), (600, 300), (900, 100)]


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("publishers", [1, 3])
def test_with_a_rate_messages_are_due_evenly_over_all_publishers(batch: int, publishers: int) -> None:
    plan = PLAN._replace(batch=batch, rate=10_000.0, messages=210, publishers=publishers)
    start = time.monotonic_ns()
    due = sorted(time for number in range(publishers) for time in times(list(bursts(plan, number, start))))
    interval = 100_000 * batch
    assert due == pytest.approx([start + at // batch * interval for at in range(210)], abs=2)


def test_a_stall_does_not_move_what_is_due_after_it() -> None:
    plan = PLAN._replace(rate=1_000.0, messages=100)
    start = time.monotonic_ns()
    made: list[Burst] = []
    for burst in bursts(plan, 0, start):
        if not made:
            time.sleep(0.05)  # the stall
        made.append(burst)
    assert len(made[1].groups) >= 40
    assert times(made) == [start + at * 1_000_000 for at in range(100)]


@pytest.mark.parametrize("rate", [None, 5_000.0])
def test_it_ends_when_the_time_is_over(rate: float | None) -> None:
    plan = PLAN._replace(rate=rate, messages=None, seconds=0.05)
    start = time.monotonic_ns()
    due = times(list(bursts(plan, 0, start)))
    assert start <= due[0]
    assert due[-1] < start + 50_000_000
    if rate:
        assert len(due) == 250


@pytest.mark.parametrize(("size", "rate", "batch"), [(100, None, 10_000), (1 << 20, None, 4), (100, 1.0, 1)])
def test_a_batch_suits_the_size(size: int, rate: float | None, batch: int) -> None:
    assert batch_of(DOORS["flight"], size, rate) == batch


def test_a_message_is_as_large_as_it_should_be_and_tells_its_time_and_number() -> None:
    burst = Burst(5, [(2**40, 2), (2**41, 1)])
    made = list(message_header.texts(burst, 3, 40))
    assert {len(text) for text in made} == {40}
    assert [message_header.read(text, 40) for text in made] == [
        (2**40, message_header.number_of(3, 5)),
        (2**40, message_header.number_of(3, 6)),
        (2**41, message_header.number_of(3, 7)),
    ]


def times(made: list[Burst]) -> list[int]:
    return [time for burst in made for time, count in burst.groups for _ in range(count)]
