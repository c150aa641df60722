import pytest

from stafeta.broker.producer import (
    RANGES,
    REMEMBERED,
    CounterProducer,
    SequenceProducer,
    decode,
)
from stafeta.errors import OutOfSequence
from stafeta.names import COUNTER_PREFIX


def test_a_counter_drawn_twice_with_another_payload_is_not_a_retry() -> None:
    producer = CounterProducer()
    producer.record(7, 1, b"first")
    assert producer.stored_at(7, b"first") == 1
    assert producer.stored_at(7, b"second") is None


def test_a_lower_counter_is_not_a_retry() -> None:
    producer = CounterProducer()
    producer.record(900, 1, b"x")
    assert producer.stored_at(3, b"x") is None


def test_a_sequence_is_recognised_for_ever() -> None:
    producer = SequenceProducer()
    for number in range(1, 1000):
        producer.record(number, number, 1)
    assert producer.repeated(1, 1) == 1
    assert producer.repeated(998, 5) == 2
    with pytest.raises(OutOfSequence) as caught:
        producer.repeated(1001, 1)
    assert caught.value.expected == 1000


def test_a_retry_is_answered_with_its_own_offset() -> None:
    producer = SequenceProducer()
    producer.record(1, 10, 3)
    producer.record(4, 20, 1)
    assert [producer.offset_of(n) for n in (1, 3, 4, 5)] == [10, 12, 20, None]


def test_what_is_remembered_has_a_limit_and_survives_storing() -> None:
    producer = SequenceProducer()
    drawing = CounterProducer()
    for number in range(1, 500):
        producer.record(number, number * 2, 1)
        drawing.record(number, number * 2, b"x")
    again = decode("p", producer.encode())
    assert isinstance(again, SequenceProducer)
    assert (again.last, again.ranges) == (producer.last, producer.ranges)
    assert len(again.ranges) == RANGES
    assert again.reached == 998
    drawn = decode(COUNTER_PREFIX + "p", drawing.encode())
    assert isinstance(drawn, CounterProducer)
    assert drawn.recent == drawing.recent
    assert len(drawn.recent) == REMEMBERED
    assert drawn.reached == 998
