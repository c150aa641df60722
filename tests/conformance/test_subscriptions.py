"""What a subscription gets, and what it does not."""

import pytest

from tests.broker.model import matches
from tests.conformance import zeromq
from tests.conformance.dialects import Connect, Dialect, new_name
from tests.conformance.every import each

END = "the end"
NAMES = ["x", "x/y", "x/y/z", "x/z", "y", "y/x", "xy", "x/", "x//z"]


@pytest.mark.parametrize("pattern", ["x", "+", "x/+", "+/y", "x/+/z", "x/*", "*/z", "x/*/z", "x/*/+", "*"])
@each("receiving")
def test_a_wildcard_stands_for_the_same_at_every_door(
    connect: Connect, topic: str, receiving: Dialect, pattern: str
) -> None:
    receiver, publisher, all_of_it = connect(receiving), connect(zeromq.TEXT), connect(zeromq.TEXT)
    all_of_it.subscribe(f"{topic}/#")  # so that all of the topics are there
    receiver.subscribe(f"{topic}/{pattern}")
    receiver.subscribe(f"{topic}-end")
    for name in NAMES:
        publisher.publish(f"{topic}/{name}", name)
    publisher.publish(f"{topic}-end", END)
    wanted = receiving.meaning(f"{topic}/{pattern}")
    expected = [name for name in NAMES if matches(wanted, f"{topic}/{name}")]
    found = receiver.texts(len(expected) + 1)
    assert sorted(found) == sorted([*expected, END])
    if receiving.pushes:
        assert found == [*expected, END]


@each("receiving", lambda dialect: dialect.pushes)
def test_what_several_subscriptions_match_comes_once(
    connect: Connect, topic: str, receiving: Dialect
) -> None:
    receiver, publisher, witness = connect(receiving), connect(zeromq.TEXT), connect(zeromq.TEXT)
    witness.subscribe(f"{topic}/#")
    for pattern in (f"{topic}/a", f"{topic}/+", f"{topic}/*", f"{topic}/*/b", f"{topic}/a"):
        receiver.subscribe(pattern)
    sent = [("a", "one"), ("b", "two"), ("a", "three"), ("a/b", "four"), ("b/b", "five"), ("a", "six")]
    for name, text in sent:
        publisher.publish(f"{topic}/{name}", text)
    assert receiver.texts(len(sent)) == [text for _, text in sent]
    receiver.unsubscribe(f"{topic}/*")
    receiver.unsubscribe(f"{topic}/+")
    publisher.publish(f"{topic}/a", "seven")
    publisher.publish(f"{topic}/c/d", "nobody wants it")
    publisher.publish(f"{topic}/b", "eight")
    assert receiver.texts(2) == ["seven", "eight"]


@each("receiving")
def test_who_has_unsubscribed_gets_nothing_more_and_may_begin_anew(
    connect: Connect, topic: str, receiving: Dialect
) -> None:
    receiver, publisher, witness = connect(receiving), connect(zeromq.JSON), connect(zeromq.TEXT)
    witness.subscribe(topic)
    receiver.subscribe(topic)
    receiver.subscribe(f"{topic}-other")
    publisher.publish(topic, "before")
    assert receiver.texts(1) == ["before"]
    receiver.unsubscribe(topic)
    publisher.publish(topic, "unseen")
    publisher.publish(f"{topic}-other", "still here")
    assert receiver.texts(1) == ["still here"]
    receiver.subscribe(topic)
    publisher.publish(topic, "after")
    expected = ["unseen", "after"] if receiving.keeps_last else ["after"]  # it is the last value by now
    assert receiver.texts(len(expected)) == expected
    assert witness.texts(3) == ["before", "unseen", "after"]


@each("receiving")
def test_a_subscription_made_twice_is_one(connect: Connect, topic: str, receiving: Dialect) -> None:
    receiver, publisher, witness = connect(receiving), connect(zeromq.JSON), connect(zeromq.TEXT)
    witness.subscribe(topic)
    receiver.subscribe(topic)
    receiver.subscribe(topic)
    publisher.publish(topic, "one")
    publisher.publish(topic, "two")
    assert receiver.texts(2) == ["one", "two"]
    receiver.unsubscribe(topic)
    receiver.subscribe(f"{topic}-other")
    publisher.publish(topic, "unseen")
    publisher.publish(f"{topic}-other", "seen")
    assert receiver.texts(1) == ["seen"]


@each("publishing")
@each("receiving", lambda dialect: dialect.durable)
def test_what_was_published_while_a_subscriber_was_away_waits_for_it(
    connect: Connect, topic: str, publishing: Dialect, receiving: Dialect
) -> None:
    publisher, witness, name = connect(publishing), connect(zeromq.TEXT), new_name()
    witness.subscribe(topic)
    with connect(receiving, name=name) as receiver:
        receiver.subscribe(topic)
        publisher.publish(topic, "seen")
        assert receiver.texts(1) == ["seen"]
    sent = [f"missed {number}" for number in range(5)]
    for text in sent:
        publisher.publish(topic, text)
    assert witness.texts(6) == ["seen", *sent]  # so they are all there
    receiver = connect(receiving, name=name)
    receiver.resume(topic)
    publisher.publish(topic, "newer")
    assert receiver.texts(6) == [*sent, "newer"]


@each("publishing", lambda dialect: dialect.keeps_last)
@each("receiving", lambda dialect: dialect.keeps_last)
def test_who_comes_later_is_given_the_last_value_first(
    connect: Connect, topic: str, publishing: Dialect, receiving: Dialect
) -> None:
    publisher, receiver = connect(publishing), connect(receiving)
    publisher.publish(topic, "first")
    publisher.publish(topic, "last")
    publisher.publish(f"{topic}/below", "of another topic")
    receiver.subscribe(topic)
    publisher.publish(topic, "new")
    assert receiver.texts(2) == ["last", "new"]


@each("publishing", lambda dialect: not dialect.makes_topics)
@each("receiving", lambda dialect: dialect.keeps_last)
def test_the_last_value_may_come_through_another_door(
    connect: Connect, topic: str, publishing: Dialect, receiving: Dialect
) -> None:
    maker, publisher, witness = connect(receiving), connect(publishing), connect(zeromq.TEXT)
    maker.publish(topic, "first")
    witness.subscribe(topic)
    publisher.publish(topic, "last")
    assert witness.texts(1) == ["last"]
    receiver = connect(receiving)
    receiver.subscribe(topic)
    assert receiver.texts(1) == ["last"]
