import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker.cursor import Cursor

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=20)


@given(RANGES)
def test_acknowledged_in_any_order_is_the_set_of_what_was_acknowledged(ranges: list[tuple[int, int]]) -> None:
    cursor = Cursor(10)
    done = set(range(10))
    for start, length in ranges:
        news = set(range(start, start + length)) - done
        floor = cursor.floor
        assert bool(cursor.ack([(start, start + length)])) is bool(news)
        done |= news
        assert cursor.floor >= floor, "a cursor never goes back"
    pending = {offset for start, stop in cursor.pending(60) for offset in range(start, stop)}
    assert pending == set(range(60)) - done
    assert cursor.floor == min(set(range(61)) - done)
    edges = [cursor.floor, *(edge for span in cursor.above for edge in span)]
    assert edges == sorted(set(edges)), "ranges are sorted and apart"


def test_a_gap_that_closes_leaves_nothing_behind() -> None:
    cursor = Cursor(1)
    for offset in (5, 3, 4, 2):
        cursor.ack([(offset, offset + 1)])
    assert (cursor.floor, cursor.above) == (1, [(2, 6)])
    cursor.ack([(1, 2)])
    assert (cursor.floor, cursor.above) == (6, [])


@given(RANGES, st.integers(0, 60))
def test_what_is_pending_from_any_offset_on(ranges: list[tuple[int, int]], start: int) -> None:
    cursor = Cursor(10)
    done = set(range(10))
    for first, length in ranges:
        cursor.ack([(first, first + length)])
        done |= set(range(first, first + length))
    left = sorted(set(range(start, 60)) - done)
    span = cursor.next_pending(start, 60)
    assert (span is None) is (not left)
    if span is not None:
        assert span[0] == left[0]
        assert set(range(*span)) <= set(left)
        assert span[1] not in left


@given(RANGES, RANGES, st.sets(st.integers(0, 60), min_size=1))
def test_what_is_taken_back_leaves_no_trace(
    kept: list[tuple[int, int]], undone: list[tuple[int, int]], together: set[int]
) -> None:
    spans = [(offset, offset + 1) for offset in sorted(together)]
    cursor = Cursor(10)
    for start, length in kept:
        cursor.ack([(start, start + length)])
    before = cursor.floor, cursor.above
    moves = [move for start, length in undone for move in cursor.ack([(start, start + length)])]
    moves += cursor.ack(spans)
    for move in reversed(moves):
        cursor.take_back(move)
    assert (cursor.floor, cursor.above) == before
    assert cursor.gaps == len(before[1])


@given(RANGES, st.sets(st.integers(0, 60), min_size=1), st.sampled_from([0, 1, 16]))
def test_many_at_once_are_the_same_as_one_by_one(
    before: list[tuple[int, int]], together: set[int], limit: int
) -> None:
    spans = [(offset, offset + 1) for offset in sorted(together)]
    one, other = Cursor(10), Cursor(10)
    for start, length in before:
        one.ack([(start, start + length)])
        other.ack([(start, start + length)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stafeta.broker.cursor.TOGETHER", limit)
        moves = one.ack(spans)
    for span in spans:
        other.ack([span])
    assert (one.floor, one.above) == (other.floor, other.above)
    stored = {start: stop for move in moves for start, stop in move.added}
    assert all(stored.get(start, stop) == stop for start, stop in one.above)


@pytest.mark.parametrize("span", [(0, -1), (3, 3), (-5, 2), (0, 10), (20, 20), (30, 15)])
def test_a_range_with_nothing_in_it_changes_nothing(span: tuple[int, int]) -> None:
    for above in ((), ((15, 17),)):
        cursor = Cursor(10, above)
        assert cursor.ack([span]) == []
        assert cursor.ack([span, span]) == []
        assert (cursor.floor, cursor.above) == (10, list(above))
