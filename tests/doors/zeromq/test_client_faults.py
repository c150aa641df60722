"""Lost replies, lost connections, lost brokers: everything arrives once, in order."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from stafeta import Client
from stafeta.errors import NoReply, Refused
from tests.brokers import BrokerProcess
from tests.doors.zeromq.arrivals import texts
from tests.doors.zeromq.relays import Relay

pytestmark = pytest.mark.slow


@pytest.fixture
def relay(lasting: BrokerProcess) -> Iterator[Relay]:
    with Relay(lasting.address) as relay:
        yield relay


def test_a_put_whose_reply_is_lost_is_stored_once(
    connect: Callable[..., Client], relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=0.3, retries=1000)
    client.subscribe(topic)
    client.put(topic, "before")
    relay.swallow()
    assert client.put(topic, "lost") == 2
    assert relay.swallowed
    assert client.put(topic, "after") == 3
    assert texts(client, topic) == ["before", "lost", "after"]


def test_a_subscription_whose_reply_is_lost_misses_nothing(
    connect: Callable[..., Client], lasting: BrokerProcess, relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=1.0, retries=1000)
    client.topics(topic)
    relay.swallow()
    with Client(lasting.address) as other:

        def put_meanwhile() -> None:
            relay.wait_until_swallowed()
            other.put(topic, "meanwhile")

        putting = threading.Thread(target=put_meanwhile)
        putting.start()
        assert client.subscribe(topic) == 0
        putting.join()
    assert texts(client, topic) == ["meanwhile"]


def test_ending_a_subscription_twice_because_the_reply_is_lost_is_no_error(
    connect: Callable[..., Client], relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=0.3, retries=1000)
    client.subscribe(topic)
    relay.swallow()
    client.unsubscribe(topic)
    assert relay.swallowed
    with pytest.raises(Refused):
        client.unsubscribe(topic)


def test_messages_whose_delivery_or_acknowledgement_is_lost_come_once(
    connect: Callable[..., Client], relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=0.3, retries=1000)
    client.subscribe(topic)
    client.put_many(topic, ["a", "b"])
    relay.swallow()
    first = client.get(topic)
    assert first is not None
    relay.swallow()
    client.ack(first)
    second = client.get(topic)
    assert second is not None
    assert (first.text, second.text) == ("a", "b")


def test_a_connection_that_breaks_is_made_anew_at_once(
    connect: Callable[..., Client], relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=60)
    client.subscribe(topic)
    for number in range(1, 6):
        relay.cut()
        assert client.put(topic, str(number)) == number
    assert relay.accepted == 6


def test_a_pipeline_survives_cuts_and_silences(
    connect: Callable[..., Client], relay: Relay, topic: str
) -> None:
    client = connect(relay.address, timeout=0.3, retries=1000, window=4)
    client.subscribe(topic)

    def disturbed() -> Iterator[str]:
        for number in range(60_000):
            if number % 9000 == 8999:
                relay.cut()
            elif number % 9000 == 4999:
                relay.swallow()
            yield str(number)

    receipt = client.put_many(topic, disturbed())
    assert (receipt.total, receipt.first, receipt.last) == (60_000, 1, 60_000)
    assert relay.accepted > 4
    assert texts(client, topic) == [str(number) for number in range(60_000)]


def test_a_broker_killed_under_a_pipeline_loses_and_repeats_nothing(
    connect: Callable[..., Client], broker: BrokerProcess
) -> None:
    client = connect(broker.address, timeout=2, retries=10)
    client.subscribe("t")
    kills = threading.Thread(target=lambda: [broker.restart() for _ in range(3)])

    def endless() -> Iterator[str]:
        kills.start()
        number = 0
        while kills.is_alive() or number < 1000:
            yield str(number)
            number += 1

    total = client.put_many("t", endless()).total
    kills.join()
    assert texts(client, "t") == [str(number) for number in range(total)]


def test_without_a_broker_the_message_is_kept_and_goes_out_first(
    connect: Callable[..., Client], broker: BrokerProcess
) -> None:
    client = connect(broker.address, "client")
    client.subscribe("t")
    client.close()
    broker.stop()
    client = connect(broker.address, "client", timeout=0.2, retries=2, backoff=0.05)
    begin = time.monotonic()
    with pytest.raises(NoReply, match=rf"{broker.address}: tried 2 times, for 0.2 s each"):
        client.put("t", "a")
    assert time.monotonic() - begin >= 0.39
    with pytest.raises(NoReply):
        client.put_many("t", ["b", "c"])
    with pytest.raises(NoReply):
        client.get("t")
    assert client.count("t") == 3
    client.close()
    broker.start()
    again = connect(broker.address, "client")
    assert again.put("t", "d") == 4
    assert texts(again, "t") == ["a", "b", "c", "d"]


def test_a_kept_message_that_is_refused_does_not_stop_the_next(
    connect: Callable[..., Client], broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(broker.address, "client")
    client.subscribe("numbers")
    client.close()
    broker.stop()
    client = connect(broker.address, "client", timeout=0.2, retries=1)
    for data in ("1", "two", "3"):
        with pytest.raises(NoReply):
            client.put("numbers", data, "int")
    client.close()
    broker.start()
    client = connect(broker.address, "client")
    with caplog.at_level(logging.WARNING, "stafeta.client"):
        assert client.put("numbers", "4", "int") == 3
    assert "two" in caplog.text
    assert texts(client, "numbers") == ["1", "3", "4"]


def test_a_broker_that_lost_its_data_is_met_under_a_new_identity(
    connect: Callable[..., Client], broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(broker.address, "client")
    client.subscribe("t")
    client.put_many("t", ["a", "b", "c"])
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()
    with Client(broker.address) as other:
        other.subscribe("t")
        with caplog.at_level(logging.WARNING, "stafeta.client"):
            assert client.put("t", "d") == 1
            assert client.put_many("t", ["e", "f"]).last == 3
        assert "lost" in caplog.text
        assert client.count("t") == 6
        client.subscribe("t")
        client.put("t", "g")
        assert texts(client, "t") == ["g"]
        assert texts(other, "t") == ["d", "e", "f", "g"]


def test_a_broker_that_lost_the_latest_messages_is_met_where_it_is(
    connect: Callable[..., Client], broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(broker.address, "client")
    client.subscribe("t")
    client.put("t", "a")
    broker.stop()
    shutil.copytree(broker.data, broker.data.with_name("earlier"))
    broker.start()
    client.put_many("t", ["b", "c"])
    broker.kill()
    shutil.rmtree(broker.data)
    shutil.move(broker.data.with_name("earlier"), broker.data)
    broker.start()
    with caplog.at_level(logging.WARNING, "stafeta.client"):
        assert client.put("t", "d") == 2
    assert "lost 2 messages" in caplog.text
    assert client.count("t") == 4
    assert texts(client, "t") == ["a", "d"]
