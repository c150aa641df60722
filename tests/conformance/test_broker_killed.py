"""What a door has promised holds when the broker is killed and comes back.

Each rule is a generator: what it does before the broker is killed, and after. All of them, for every dialect, are
brought to that point; then the broker is killed, once, and each is a test of its own from there.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.brokers import BrokerProcess
from tests.conformance import zeromq
from tests.conformance.dialects import Dialect, new_name
from tests.conformance.every import DIALECTS, DOORS

Rule = Callable[[BrokerProcess, str, Dialect], Iterator[None]]


def what_anyone_published_while_a_subscriber_was_away_waits_for_it(
    broker: BrokerProcess, topic: str, receiving: Dialect
) -> Iterator[None]:
    name = new_name()
    with zeromq.TEXT.connect(broker, new_name()) as witness:
        witness.subscribe(topic)
        with receiving.connect(broker, name) as receiver:
            receiver.subscribe(topic)
            witness.publish(topic, "seen")
            assert receiver.texts(1) == witness.texts(1) == ["seen"]
        sent = [f"{dialect} was here" for dialect in DIALECTS]
        for dialect, text in zip(DIALECTS, sent, strict=True):
            with dialect.connect(broker, new_name()) as publisher:
                publisher.publish(topic, text)
                assert witness.texts(1) == [text]
    yield
    with receiving.connect(broker, name) as receiver, zeromq.JSON.connect(broker, new_name()) as publisher:
        receiver.resume(topic)
        publisher.publish(topic, "newer")
        assert receiver.texts(len(sent) + 1) == [*sent, "newer"]


def what_was_received_is_not_received_again(
    broker: BrokerProcess, topic: str, receiving: Dialect
) -> Iterator[None]:
    name = new_name()
    with receiving.connect(broker, name) as receiver, zeromq.JSON.connect(broker, new_name()) as publisher:
        receiver.subscribe(topic)
        for number in range(10):
            publisher.publish(topic, f"{number}")
        assert receiver.texts(10) == [f"{number}" for number in range(10)]
        receiver.close()
        publisher.publish(topic, "missed")  # what happened before is on disk once this is
    yield
    with receiving.connect(broker, name) as receiver, zeromq.JSON.connect(broker, new_name()) as publisher:
        receiver.resume(topic)
        publisher.publish(topic, "newer")
        assert receiver.texts(2) == ["missed", "newer"]


def the_last_value_stays(broker: BrokerProcess, topic: str, receiving: Dialect) -> Iterator[None]:
    with receiving.connect(broker, new_name()) as publisher:
        publisher.publish(topic, "first")
        publisher.publish(topic, "last")
    yield
    with (
        receiving.connect(broker, new_name()) as receiver,
        receiving.connect(broker, new_name()) as publisher,
    ):
        receiver.subscribe(topic)
        publisher.publish(topic, "new")
        assert receiver.texts(2) == ["last", "new"]


def who_has_unsubscribed_stays_so(broker: BrokerProcess, topic: str, subscribing: Dialect) -> Iterator[None]:
    name = new_name()
    with subscribing.connect(broker, name) as receiver:
        for one in (topic, f"{topic}-other"):
            receiver.subscribe(one)
        receiver.unsubscribe(topic)
    yield
    with subscribing.connect(broker, name) as receiver, zeromq.TEXT.connect(broker, new_name()) as publisher:
        publisher.subscribe(topic)
        publisher.publish(topic, "unseen")
        if subscribing.durable:
            receiver.resume(f"{topic}-other")
        else:
            receiver.subscribe(f"{topic}-other")
        publisher.publish(f"{topic}-other", "seen")
        assert receiver.texts(1) == ["seen"]


RULES: dict[Rule, Callable[[Dialect], bool]] = {
    what_anyone_published_while_a_subscriber_was_away_waits_for_it: lambda dialect: dialect.durable,
    what_was_received_is_not_received_again: lambda dialect: dialect.durable,
    the_last_value_stays: lambda dialect: dialect.keeps_last,
    who_has_unsubscribed_stays_so: lambda dialect: True,
}
CASES = {
    f"{rule.__name__}-{dialect}": (rule, dialect)
    for rule, can in RULES.items()
    for dialect in DIALECTS
    if can(dialect)
}


@pytest.fixture(scope="module")
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Iterator[None] | Exception]]:
    """The cases that were chosen, when the broker is back; and what went wrong with one before."""
    cases: dict[str, Iterator[None] | Exception] = {}
    with BrokerProcess(tmp_path_factory.mktemp("killed") / "data", doors=DOORS) as broker:
        chosen = {item.callspec.params["case"] for item in request.session.items if item.path == request.path}  # type: ignore[attr-defined]
        for number, case in enumerate(sorted(chosen)):
            rule, dialect = CASES[case]
            cases[case] = going = rule(broker, f"/killed/{number}", dialect)
            try:
                next(going)
            except Exception as error:  # noqa: BLE001 - raised in the test of this case
                cases[case] = error
        broker.restart()
        yield cases


@pytest.mark.parametrize("case", CASES)
def test_after_a_kill(killed: dict[str, Iterator[None] | Exception], case: str) -> None:
    going = killed[case]
    if isinstance(going, Exception):
        raise going
    with suppress(StopIteration):
        next(going)
        raise AssertionError("the rule has not come to its end")
