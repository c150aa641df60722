"""How much a client may ask for in a second."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.errors import RateLimited
from stafeta.security import Principal
from stafeta.security.pace import REMEMBERED, Pace, Paces

ANN = Principal("ann", address="10.0.0.1:5")


def test_what_is_too_much_is_refused_and_not_counted() -> None:
    clock = [0.0]
    told: list[Principal] = []
    pace = Pace(lambda: (10, 1000), ANN, told.append, lambda: clock[0])
    for _ in range(10):
        pace.check(1)
    pace.check(1)
    for _ in range(1000):
        clock[0] += 1e-6
        with pytest.raises(RateLimited, match=r"max_client_requests.*Try again"):
            pace.check(1)
    assert told
    clock[0] += 0.5
    assert [pace.allows(1) for _ in range(10)].count(True) in (5, 6)
    clock[0] += 10
    pace.check(5000)  # one may be larger than a second's share, and is paid for afterwards
    assert not pace.allows(0)
    clock[0] += 3.9
    assert not pace.allows(0)
    clock[0] += 0.2
    assert pace.allows(0)


@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 300), st.integers(0, 5)), min_size=1, max_size=200)
)
def test_who_waits_as_long_as_he_is_told_never_has_more_than_his_share(
    sent: list[tuple[float, int, int]],
) -> None:
    clock = [0.0]
    pace = Pace(lambda: (20, 1000), ANN, clock=lambda: clock[0])
    requests = size = 0
    for passed, bytes_, count in sent:
        clock[0] += passed + pace.wait(bytes_, count) + 1e-9
        requests, size = requests + count, size + bytes_
        assert requests <= 20 * (clock[0] + 1) + 1e-3
        assert size <= 1000 * (clock[0] + 1) + 1e-3


def test_a_user_at_one_address_has_one_and_those_at_others_have_theirs() -> None:
    paces = Paces(lambda: (1, 1))
    assert paces.of(ANN) is paces.of(Principal("ann", address="10.0.0.1:6"))
    different = [
        paces.of(Principal(user, address=address))
        for user, address in (
            ("ann", "10.0.0.1:5"),
            ("bob", "10.0.0.1:5"),
            ("ann", "10.0.0.2:5"),
            ("ann", ""),
        )
    ]
    assert all(a is not b for a, b in pairwise(different))
    for number in range(2 * REMEMBERED):
        paces.of(Principal("ann", address=f"{number}:1"))
    assert len(paces._paces) == REMEMBERED
