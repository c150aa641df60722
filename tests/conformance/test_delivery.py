"""What is published through any door is received through every other, in order."""

import pytest

from tests.conformance.dialects import Connect, Dialect
from tests.conformance.every import DIALECTS, each

pytestmark = pytest.mark.slow

TEXTS = [
    "plain",
    "two words",
    "ștafetă 🙂",
    "a:b::/c",
    "<&\"'>",
    '{"not": JSON',
    "12",
    " spaces ",
    "tab\tand\nline",
]


@each("publishing")
@each("receiving")
def test_a_message_goes_from_any_door_to_any_other(
    connect: Connect, topic: str, publishing: Dialect, receiving: Dialect
) -> None:
    receiver, publisher = connect(receiving), connect(publishing)
    receiver.subscribe(topic)
    for text in TEXTS:
        publisher.publish(topic, text)
    found = receiver.receive(len(TEXTS))
    assert [(message.topic, message.text) for message in found] == [(topic, text) for text in TEXTS]


@each("publishing")
def test_everyone_gets_exactly_what_one_publisher_says_at_the_same_time(
    connect: Connect, topic: str, publishing: Dialect
) -> None:
    receivers = [connect(dialect) for dialect in DIALECTS for _ in range(2)]
    for receiver in receivers:
        receiver.subscribe(topic)
    publisher = connect(publishing)
    sent = [f"message {number}: {'x' * (number * 37 % 1000)}" for number in range(100)]
    for text in sent:
        publisher.publish(topic, text)
    for receiver in receivers:
        assert receiver.texts(len(sent)) == sent


@each("receiving")
def test_what_several_publishers_say_comes_in_the_order_of_each(
    connect: Connect, topic: str, receiving: Dialect
) -> None:
    receiver = connect(receiving)
    receiver.subscribe(topic)
    publishers = {dialect.name: connect(dialect) for dialect in DIALECTS}
    sent = {name: [f"{name} {number}" for number in range(10)] for name in publishers}
    for number in range(10):
        for name, publisher in publishers.items():
            publisher.publish(topic, sent[name][number])
    found = receiver.texts(10 * len(publishers))
    for name, texts in sent.items():
        assert [text for text in found if text.startswith(f"{name} ")] == texts
    assert len(found) == 10 * len(publishers)


@each("publishing")
@each("receiving")
def test_messages_of_several_topics_come_in_the_order_of_publication(
    connect: Connect, topic: str, publishing: Dialect, receiving: Dialect
) -> None:
    receiver, publisher = connect(receiving), connect(publishing)
    receiver.subscribe(receiving.below(topic))
    sent = [(f"{topic}/{number % 3}", f"number {number}") for number in range(12)]
    for name, text in sent:
        publisher.publish(name, text)
    found = receiver.receive(len(sent))
    assert [message.text for message in found] == [text for _, text in sent]
    if receiving.names_topics:
        assert [message.topic for message in found] == [name for name, _ in sent]
