"""What is on its way keeps its numbers without gaps, whatever is stored and whatever is refused."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.clients.flight.batching import PublishBatch, PublishQueue, PublishRequest
from stafeta.errors import InvalidMessage


@given(st.data())
def test_the_broker_sees_every_topic_counted_without_gaps(data: st.DataObject) -> None:
    queue = PublishQueue({})
    stored: dict[str | None, int] = {}  # without a topic: rows of all
    requests: list[PublishRequest] = []
    handed: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["new", "add", "store", "refuse"]))
        if step == "new" or not requests:
            requests.append(PublishRequest())
        if step == "add":
            request = data.draw(st.sampled_from(requests))
            if request.error is None:
                topic, rows = data.draw(st.sampled_from(["a", "b", None])), data.draw(st.integers(1, 4))
                columns = {"payload": ["x"] * rows}
                if topic is None:
                    columns["topic"] = data.draw(
                        st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows)
                    )
                queue.add(request, topic, pa.RecordBatch.from_pydict(columns))
                handed[id(request)] = handed.get(id(request), 0) + rows
        elif queue and step == "store":
            first = queue.first
            assert first.sequence == stored.get(first.topic, 0) + 1
            queue.written = 1
            _count(stored, first)
            queue.answered(first.sequence)
        elif queue and step == "refuse":
            request = queue.first.request
            queue.refuse(InvalidMessage("no"))
            assert request.error is not None
            assert all(batch.request is not request for batch in queue)
        expected = dict(stored)
        for batch in queue:
            assert batch.sequence == expected.get(batch.topic, 0) + 1
            _count(expected, batch)
        assert queue.size == sum(batch.size for batch in queue)
    for request in requests:
        if request.error is None and not request.unanswered:
            assert request.acknowledged == handed.get(id(request), 0)


def _count(counts: dict[str | None, int], batch: PublishBatch) -> None:
    named = batch.batch.column("topic").to_pylist() if batch.topic is None else [batch.topic] * batch.rows
    for key in [*named, *[None] * batch.rows]:
        counts[key] = counts.get(key, 0) + 1
