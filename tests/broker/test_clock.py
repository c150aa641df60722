"""A clock that jumps, for a moment or for good."""

from stafeta.broker.clock import PATIENCE, STEP, Clock

SECOND = 1_000_000_000
YEARS = 10 * 365 * 86_400 * SECOND


class Times:
    """A system's clock that can be set, and one that goes on steadily."""

    def __init__(self) -> None:
        self.system = 1_800_000_000 * SECOND
        self.steady = 5 * SECOND

    def pass_by(self, nanoseconds: int) -> None:
        self.system += nanoseconds
        self.steady += nanoseconds

    def clock(self) -> Clock:
        return Clock(lambda: self.system, lambda: self.steady)


def test_it_is_the_systems_time_and_never_goes_back_a_little() -> None:
    times = Times()
    clock = times.clock()
    for step in (0, 1000, SECOND, 3600 * SECOND):
        times.pass_by(step)
        assert clock.now() == times.system // 1000
    last = clock.now()
    times.system -= STEP // 2
    assert clock.now() == last
    times.pass_by(STEP)
    assert clock.now() == times.system // 1000


def test_a_jump_for_one_message_is_not_followed() -> None:
    times = Times()
    clock = times.clock()
    before = clock.now()
    for jump in (YEARS, -YEARS):
        times.system += jump
        assert clock.now() == before
        times.system -= jump
        times.pass_by(SECOND)
        before += SECOND // 1000
        assert clock.now() == before


def test_a_clock_that_is_set_is_followed_after_a_while() -> None:
    for jump in (YEARS, -YEARS):
        times = Times()
        clock = times.clock()
        clock.now()
        times.system += jump
        first = clock.now()
        times.pass_by(PATIENCE // 2)
        assert clock.now() == first + PATIENCE // 2000, "it goes on as if it had not been set"
        times.pass_by(PATIENCE)
        assert clock.now() == times.system // 1000
        times.pass_by(SECOND)
        assert clock.now() == times.system // 1000
