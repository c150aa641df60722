"""How often a stream asks the broker: once for each micro-batch where that has few messages."""

from collections.abc import Callable
from typing import Any

import pytest

from stafeta.errors import DataLoss
from stafeta.pipeline.connector import stream as streams
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Range, Task, held
from stafeta.pipeline.connector.spark_schema import schema_of
from stafeta.pipeline.connector.stream import Offsets, TopicStream
from stafeta.pipeline.jobs.batches import reading_source
from stafeta.pipeline.jobs.rolling.window_source import WindowStream
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, dropped, forgetful, numbered, published

__all__ = ["forgetful"]  # a fixture


def stream(broker: BrokerProcess, **options: str) -> TopicStream:
    given = {"broker": address(broker), "subscribe": "#", "startingOffsets": "earliest", "durable": "rounds"}
    return TopicStream(
        ReadOptions.of(given | options, streaming=True), schema_of(("topic", "offset"), decode=False)
    )


def latest(one: TopicStream, start: Offsets) -> Offsets:
    return one.latestOffset(start, one.getDefaultReadLimit())


def ranges(one: TopicStream, start: Offsets, end: Offsets) -> list[Range]:
    return [found for task in one.partitions(start, end) if isinstance(task, Task) for found in task.ranges]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the stream asks the broker for, from now on."""
    asked: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            asked.append(name)
            return call(*args, **options)

        return noted

    monkeypatch.setattr(streams, "held", noting("weigh", held))
    monkeypatch.setattr(TopicStream, "_topics", noting("topics", TopicStream._topics))
    return asked


def test_micro_batches_of_few_messages_are_planned_by_what_was_just_seen(
    broker: BrokerProcess, calls: list[str]
) -> None:
    one = stream(broker)
    start = one.initialOffset()
    calls.clear()
    for number in range(1, 2 * streams._GUESSES + 1):
        published(broker, a=[str(number)], b=[str(number)])
        end = latest(one, start)
        assert ranges(one, start, end) == [Range(topic, number, number + 1) for topic in ("a", "b")]
        one.commit(start)
        start = end
    assert calls.count("topics") == 2 * streams._GUESSES
    assert calls.count("weigh") == 2, "the first, and one that came later"
    one.stop()


def test_a_micro_batch_that_was_planned_before_is_looked_for_at_the_broker(
    broker: BrokerProcess, calls: list[str]
) -> None:
    published(broker, a=["1", "2"])
    first = stream(broker)
    start = first.initialOffset()
    end = latest(first, start)
    first.stop()
    again = stream(broker)
    calls.clear()
    for _ in range(2):
        assert ranges(again, start, end) == [Range("a", 1, 3)]
    assert calls == ["weigh", "weigh"]
    again.stop()


def test_messages_that_go_after_the_look_are_told(forgetful: BrokerProcess) -> None:
    one = stream(forgetful)
    start = one.initialOffset()
    with connect(forgetful) as connection:
        connection.hold("a", name="somebody")
        for first in (1, 11):
            connection.publish("a", numbered(first, first + 9))
            end = latest(one, start)
            tasks = one.partitions(start, end)
            if first == 1:
                start = end
        one.stop()
        connection.unsubscribe("#", name="rounds")
        dropped(connection, "a", 14)
    (task,) = tasks
    with pytest.raises(DataLoss, match="3 of the messages 11 to 20 of topic 'a' are gone"):
        list(one.read(task))


def test_few_messages_are_those_of_the_tasks(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a micro-batch by himself reads what Spark's tasks would."""
    given = {"broker": address(broker), "subscribe": "#", "startingOffsets": "earliest"}
    one = WindowStream(ReadOptions.of(given, streaming=True), (1_000_000,), 0)
    start = one.initialOffset()
    for payloads in (["1", "2"], ["3"]):
        published(broker, a=payloads, b=payloads, rollup=payloads)
        end = latest(one, start)
        task = one.few(start, end)
        assert task is not None
        assert list(task.ranges) == ranges(one, start, end)
        assert {topic for topic, _, _ in task.ranges} == {"a", "b"}, "and not what jobs write"
        monkeypatch.setattr(reading_source, "FEW", 2 * len(payloads) - 1)
        assert one.few(start, end) is None
        monkeypatch.undo()
        start = end
    one.stop()
