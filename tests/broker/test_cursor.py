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
        assert cursor.ack(start, start + length) is bool(news)
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
        cursor.ack(offset, offset + 1)
    assert (cursor.floor, cursor.above) == (1, ((2, 6),))
    cursor.ack(1, 2)
    assert (cursor.floor, cursor.above) == (6, ())
