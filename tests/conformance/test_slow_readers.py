"""A client that does not read holds up nobody, and loses nothing."""

import pytest

from tests.brokers import BrokerProcess
from tests.conformance import zeromq
from tests.conformance.dialects import Connect, Dialect, new_name
from tests.conformance.every import DIALECTS, each

pytestmark = pytest.mark.slow

SENT = [f"{number} ".ljust(1400, "x") for number in range(8000)]  # more than all buffers on the way hold


@each("receiving", lambda dialect: dialect.pushes)
def test_a_subscriber_that_does_not_read_holds_up_nobody_and_gets_everything_later(
    connect: Connect, topic: str, receiving: Dialect
) -> None:
    deaf, other, publisher = connect(receiving), connect(receiving), zeromq_client(connect)
    deaf.subscribe(topic)
    other.subscribe(topic)
    publisher.client.put_many(topic, SENT)
    assert same(other.texts(len(SENT)), SENT)
    assert same(deaf.texts(len(SENT)), SENT)


def test_one_that_asks_and_does_not_read_holds_up_nobody(
    one_broker: BrokerProcess, connect: Connect, topic: str
) -> None:
    publisher = zeromq_client(connect)
    receivers = [connect(dialect) for dialect in DIALECTS]
    for receiver in receivers:
        receiver.subscribe(topic)
    with zeromq.deaf(one_broker, topic, new_name()):
        publisher.client.put_many(topic, SENT[:1000])
        for receiver in receivers:
            assert same(receiver.texts(1000), SENT[:1000])


def zeromq_client(connect: Connect) -> zeromq.Own:
    stranger = connect(zeromq.CLIENT)
    assert isinstance(stranger, zeromq.Own)
    return stranger


def same(found: list[str], sent: list[str]) -> bool:
    """Whether they are; without pytest's showing all the megabytes where they are not."""
    for text, other in zip(found, sent, strict=True):
        assert text[:10] == other[:10]
    return found == sent
