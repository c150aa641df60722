"""What is on its way keeps its numbers without gaps, whatever is stored and whatever is refused."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.clients.flight.orders import Order, Parcels
from stafeta.errors import InvalidMessage


@given(st.data())
def test_the_broker_sees_every_topic_counted_without_gaps(data: st.DataObject) -> None:
    parcels = Parcels({})
    stored: dict[str, int] = {}
    orders: list[Order] = []
    handed: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["new", "add", "store", "refuse"]))
        if step == "new" or not orders:
            orders.append(Order())
        if step == "add":
            order = data.draw(st.sampled_from(orders))
            if order.error is None:
                topic, rows = data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 4))
                parcels.add(order, topic, pa.RecordBatch.from_pydict({"payload": ["x"] * rows}))
                handed[id(order)] = handed.get(id(order), 0) + rows
        elif parcels and step == "store":
            first = parcels.first
            assert first.sequence == stored.get(first.topic, 0) + 1
            parcels.written = 1
            stored[first.topic] = first.sequence + first.rows - 1
            parcels.answered(first.sequence)
        elif parcels and step == "refuse":
            order = parcels.first.order
            parcels.refuse(InvalidMessage("no"))
            assert order.error is not None
            assert all(parcel.order is not order for parcel in parcels)
        expected = dict(stored)
        for parcel in parcels:
            assert parcel.sequence == expected.get(parcel.topic, 0) + 1
            expected[parcel.topic] = parcel.sequence + parcel.rows - 1
        assert parcels.size == sum(parcel.size for parcel in parcels)
    for order in orders:
        if order.error is None and not order.parcels:
            assert order.acknowledged == handed.get(id(order), 0)
