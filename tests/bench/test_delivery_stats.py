"""A subscriber notices what is missing and what comes again, however many publishers there are."""

from hypothesis import given
from hypothesis import strategies as st

from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.message_header import number_of

BEGIN = 1_000


@given(st.data(), st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_lost_and_repeated_messages_are_counted(data: st.DataObject, published: list[int]) -> None:
    numbers = [number_of(publisher, at) for publisher, total in enumerate(published) for at in range(total)]
    came = data.draw(st.lists(st.sampled_from(numbers), max_size=100) if numbers else st.just([]))
    stats = DeliveryStats(BEGIN)
    stats.take([(BEGIN, number) for number in came], BEGIN + 5)
    assert stats.received == len(set(came))
    assert stats.lost(published) == len(numbers) - len(set(came))
    assert stats.repeated == len(came) - len(set(came))
    assert stats.latency.total == len(came)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=10))
def test_numbers_in_a_row_count_as_one_after_the_other(rows: list[tuple[int, int]]) -> None:
    together, single = DeliveryStats(0), DeliveryStats(0)
    for number, count in rows:
        together.take_numbers(number, count)
        for one in range(number, number + count):
            single.take_numbers(one, 1)
    assert (together.received, together.repeated) == (single.received, single.repeated)


def test_what_was_there_before_is_not_counted() -> None:
    stats = DeliveryStats(BEGIN)
    stats.take([(0, 0), (BEGIN - 1, 7)], BEGIN + 1)
    assert (stats.received, stats.last, stats.latency.total) == (0, 0, 0)
