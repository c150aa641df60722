"""Messages that are looked at as Arrow data count as they do one by one."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.flight import take
from stafeta.bench.message_header import number_of
from stafeta.errors import InvalidMessage

BEGIN, NOW, SIZE = 1_000, 10**10, 20
HEAD = struct.Struct("<qq")


@given(
    st.lists(
        st.tuples(st.integers(0, NOW), st.integers(0, 2), st.integers(0, 500), st.integers(1, 100)),
        min_size=1,
        max_size=8,
    )
)
def test_arrow_data_counts_as_its_rows_do(runs: list[tuple[int, int, int, int]]) -> None:
    message_header = [
        (time, number_of(publisher, first + at))
        for time, publisher, first, count in runs
        for at in range(count)
    ]
    together, single = DeliveryStats(BEGIN), DeliveryStats(BEGIN)
    take(pa.array(padded(message_header)), SIZE, together, NOW)
    single.take(message_header, NOW)
    assert together.to_plain([1_000] * 3) == single.to_plain([1_000] * 3)


@pytest.mark.parametrize("count", [1, 1_000])
def test_rows_of_another_size_are_somebody_elses(count: int) -> None:
    rows = [*padded([(NOW, number) for number in range(count)]), b"news"]
    with pytest.raises(InvalidMessage, match="--topic"):
        take(pa.array(rows), SIZE, DeliveryStats(BEGIN), NOW)


def padded(message_header: list[tuple[int, int]]) -> list[bytes]:
    return [HEAD.pack(*head).ljust(SIZE, b"\0") for head in message_header]
