"""Queues: what a program that uses them sees."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from stafeta.frames import JSONQueue, PickleQueue, Queue, Role, XMLQueue
from tests.doors.frames.peers import Peer, Place
from tests.doors.frames.plain_data import PLAIN_DATA, alike
from tests.doors.frames.queues import Connect, subscribed


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (JSONQueue, [None, True, -1, 2.50, "ș\n", [1, [2]], {"a": {"b": None}}, "\ud800", 10**4000]),
        (XMLQueue, ["", "ș\n\t\r\"'&<>", "  spaces  "]),
        (PickleQueue, [None, (1, {2}), b"\xff", {1: (2,)}, float("inf"), [[]], "\ud800", {"$tuple": [1]}]),
    ],
)
def test_values_arrive_as_they_were(kind: type[Queue], values: list[Any], place: Place, topic: str) -> None:
    with kind(topic, Role.CONSUMER, *place) as consumer, kind(topic, Role.PRODUCER, *place) as producer:
        subscribed(consumer, place)
        for value in values:
            producer.push(value)
        got = [consumer.pull() for _ in values]
    assert [name for name, _ in got] == [topic] * len(values)
    assert all(alike(value, one) for value, (_, one) in zip(values, got, strict=True)), got


def test_any_plain_data_arrives_exactly(place: Place, topic: str) -> None:
    with (
        PickleQueue(topic, "consumer", *place) as consumer,
        PickleQueue(topic, "producer", *place) as producer,
    ):
        subscribed(consumer, place)

        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(PLAIN_DATA)
        def arrives(value: Any) -> None:
            producer.push(value)
            assert alike(consumer.pull(), (topic, value))

        arrives()


def test_through_xml_other_values_arrive_as_their_text(place: Place, topic: str) -> None:
    with XMLQueue(topic, "consumer", *place) as consumer, XMLQueue(topic, "producer", *place) as producer:
        subscribed(consumer, place)
        for value in (1, 21.50, None, [1, "a"], {"a": True}):
            producer.push(value)
        assert [consumer.pull()[1] for _ in range(5)] == ["1", "21.5", "null", '[1, "a"]', '{"a": true}']


def test_a_consumer_gets_what_is_below_its_topic_and_the_last_value_first(queue: Connect, topic: str) -> None:
    for name in (f"{topic}/a", topic):
        producer = queue("producer", name)
        producer.push("old")
        producer.push("last")
        producer.list_topics(lambda topics: None)
    consumer = queue("consumer")
    assert consumer.pull() == (topic, "last")
    queue("producer", f"{topic}/b").push("new")
    assert consumer.pull() == (f"{topic}/b", "new")


def test_a_producer_has_the_topics_when_list_topics_returns(queue: Connect, topic: str) -> None:
    producer = queue("producer")
    producer.push("x")
    told: list[list[str]] = []
    producer.list_topics(told.append)
    producer.list_topics(told.append)
    assert len(told) == 2
    assert all(topic in names and names == sorted(names) for names in told)
    producer.push("y")


def test_a_consumer_has_the_topics_while_it_pulls(queue: Connect, place: Place, topic: str) -> None:
    consumer = queue("consumer")
    subscribed(consumer, place)
    told: list[list[str]] = []
    consumer.list_topics(told.append)
    consumer.list_topics(told.append)
    assert not told
    with Peer(place) as publisher:
        publisher.publish(topic, "x")
        publisher.topics()
        publisher.publish(topic, "y")
    assert consumer.pull() == (topic, "x")
    assert consumer.pull() == (topic, "y")
    assert len(told) == 2


def test_what_the_callback_raises_comes_out_of_pull_which_can_go_on(
    queue: Connect, place: Place, topic: str
) -> None:
    consumer = queue("consumer")
    subscribed(consumer, place)
    consumer.list_topics(lambda topics: topics[-1_000_000])
    with pytest.raises(IndexError):
        consumer.pull()
    queue("producer").push("after")
    assert consumer.pull() == (topic, "after")


def test_a_producer_and_a_consumer_in_two_threads(queue: Connect, place: Place, topic: str) -> None:
    consumer, producer = queue("consumer"), queue("producer")
    subscribed(consumer, place)

    def produce() -> None:
        for number in range(2000):
            producer.push(str(number))

    thread = threading.Thread(target=produce)
    thread.start()
    assert [consumer.pull()[1] for _ in range(2000)] == [str(number) for number in range(2000)]
    thread.join()


def test_the_example_of_the_documentation(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[3] / "docs" / "protocols" / "frames.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    example = example.replace('("/weather")', '("/weather", "consumer")')
    for role in ("consumer", "producer"):
        example = example.replace(f'"{role}")', f'"{role}", *place)')
    exec(example, {"place": place})
    assert capsys.readouterr().out == "/weather {'temperature': 21.5, 'at': (47.2, 27.6)}\n"


def test_queues_import_nothing_heavy() -> None:
    script = "import sys, stafeta.frames; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "stafeta.clients.frames" in modules
    assert not modules & {"asyncio", "orjson", "pyarrow", "stafeta.broker", "stafeta.server", "uvloop", "zmq"}
