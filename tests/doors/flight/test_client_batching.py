"""What is on its way keeps its numbers without gaps, whatever is stored and whatever is refused."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.clients.flight.batching import PublishQueue, PublishRequest
from stafeta.errors import InvalidMessage


@given(st.data())
def test_the_broker_sees_every_topic_counted_without_gaps(data: st.DataObject) -> None:
    queue = PublishQueue({})
    stored: dict[str, int] = {}
    requests: list[PublishRequest] = []
    handed: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["new", "add", "store", "refuse"]))
        if step == "new" or not requests:
            requests.append(PublishRequest())
        if step == "add":
            request = data.draw(st.sampled_from(requests))
            if request.error is None:
                topic, rows = data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 4))
                queue.add(request, topic, pa.RecordBatch.from_pydict({"payload": ["x"] * rows}))
                handed[id(request)] = handed.get(id(request), 0) + rows
        elif queue and step == "store":
            first = queue.first
            assert first.sequence == stored.get(first.topic, 0) + 1
            queue.written = 1
            stored[first.topic] = first.sequence + first.rows - 1
            queue.answered(first.sequence)
        elif queue and step == "refuse":
            request = queue.first.request
            queue.refuse(InvalidMessage("no"))
            assert request.error is not None
            assert all(batch.request is not request for batch in queue)
        expected = dict(stored)
        for batch in queue:
            assert batch.sequence == expected.get(batch.topic, 0) + 1
            expected[batch.topic] = batch.sequence + batch.rows - 1
        assert queue.size == sum(batch.size for batch in queue)
    for request in requests:
        if request.error is None and not request.unanswered:
            assert request.acknowledged == handed.get(id(request), 0)
