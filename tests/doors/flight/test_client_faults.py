"""The native client when the broker or the connection breaks: nothing acknowledged is lost, nothing comes twice."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.errors import Disconnected, NoReply, StafetaError
from tests import ports
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that keeps everything, for tests that kill it."""
    options = ("--set", 'topics."#".keep=36500d')
    with BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as process:
        yield process


def address(process: BrokerProcess) -> str:
    return process.flight


@pytest.fixture
def broker(mortal: BrokerProcess) -> Iterator[Connection]:
    with stafeta.connect(address(mortal), timeout=PATIENCE) as connection:
        yield connection


def texts(broker: Connection, topic: str) -> list[str]:
    payloads: list[Any] = broker.read(topic, columns=["payload"]).column("payload").to_pylist()
    return [payload.decode() for payload in payloads]


# --- no broker


def test_an_address_where_nobody_is_raises_no_reply_with_the_address() -> None:
    with ports.held() as nobody:
        port = nobody.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(NoReply, match=rf"grpc://127\.0\.0\.1:{port} .*Connection refused.*Does it run"):
            stafeta.connect(f"grpc://127.0.0.1:{port}", timeout=0.5)
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("wrong", ["", "http://127.0.0.1:1", "grpc://", "grpc://a:b", "1.2.3.4:70000", "a b"])
def test_what_is_no_address_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(
        StafetaError, match=r"is no address of a Flight door; write it as grpc://127\.0\.0\.1:8815"
    ):
        stafeta.connect(wrong)


def test_connecting_waits_for_a_broker_that_is_still_starting(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", doors=("flight",)).start()
    process.kill()
    starting = threading.Timer(0.3, process.start)
    starting.start()
    try:
        with stafeta.connect(address(process), timeout=PATIENCE) as broker:
            assert broker.publish("late", ["at last"]).count == 1
    finally:
        starting.join()
        process.kill()


def test_what_is_sent_while_the_broker_is_away_goes_out_when_it_is_back(
    mortal: BrokerProcess, broker: Connection
) -> None:
    with broker.producer("away") as producer:
        producer.send("before")
        producer.flush()
        mortal.kill()
        producer.send_many(["during", "still"])
        with pytest.raises(NoReply, match=r"has not answered for 0\.3 s"):
            producer.flush(timeout=0.3)
        assert (producer.sent, producer.acknowledged) == (3, 1)
        mortal.start()
        producer.flush()
        assert producer.acknowledged == 3
    assert texts(broker, "away") == ["before", "during", "still"]


# --- a broker that is killed


def test_a_producer_goes_on_over_kills_of_the_broker(
    mortal: BrokerProcess, broker: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stafeta.client")
    acknowledged: list[int] = []

    def kill() -> None:
        for _ in range(3):
            enough = producer.acknowledged + 5_000
            wait_until(lambda: producer.acknowledged >= enough)  # noqa: B023 - called at once
            acknowledged.append(enough)
            mortal.restart()

    with broker.producer("kills", batch_rows=500, max_memory=200_000) as producer:
        killer = threading.Thread(target=kill)
        killer.start()
        while killer.is_alive():
            producer.send(str(producer.sent))
        producer.flush()
        total = producer.sent
    assert len(acknowledged) == 3
    assert texts(broker, "kills") == [str(number) for number in range(total)]
    assert "Trying again in 0.1 s." in caplog.text
    assert "connected again; kills goes on at row" in caplog.text


def test_publishing_goes_on_over_kills_of_the_broker(mortal: BrokerProcess, broker: Connection) -> None:
    found: list[int | None] = []
    for _ in range(3):
        killing = threading.Timer(0.05, mortal.restart)
        killing.start()
        while killing.is_alive():
            found.append(broker.publish("one", [str(len(found))]).first)
    assert found == list(range(1, len(found) + 1))
    assert texts(broker, "one") == [str(number) for number in range(len(found))]


def test_a_subscription_goes_on_over_kills_of_the_broker(mortal: BrokerProcess, broker: Connection) -> None:
    total = 20_000
    with broker.subscribe("sub/#", name="reader") as subscription, broker.producer("sub/a", linger=0) as a:
        found: list[str] = []
        for start in range(0, total, total // 4):
            a.send_many(str(number) for number in range(start, start + total // 4))
            a.flush()
            while len(found) < start + total // 8:
                batch = next(subscription)
                found += [payload.decode() for payload in batch.payloads()]
                if start % 2:
                    batch.ack()
            mortal.restart()
        while len(found) < total:
            batch = next(subscription)
            found += [payload.decode() for payload in batch.payloads()]
            batch.ack()
    assert found == [str(number) for number in range(total)]


@pytest.mark.parametrize("what", ["follow/it", "follow/+"])
def test_following_goes_on_over_a_kill_of_the_broker(
    mortal: BrokerProcess, broker: Connection, what: str
) -> None:
    broker.publish("follow/it", ["old"])
    found: list[bytes] = []
    with broker.subscribe(what, columns=["payload"]) as subscription:
        for turn in range(3):
            broker.publish("follow/it", [f"{turn}-{number}" for number in range(100)])
            while len(found) < 100 * (turn + 1) - 30 * (turn < 2):
                found += next(subscription).payloads()
            mortal.restart()
    assert found == [b"%d-%d" % (turn, number) for turn in range(3) for number in range(100)]


# --- a broker that does not answer


def test_a_broker_that_is_stopped_ends_in_no_reply(mortal: BrokerProcess) -> None:
    with stafeta.connect(address(mortal), timeout=1) as broker:
        producer = broker.producer("stopped")
        subscription = broker.subscribe("stopped")
        reader = broker.batches("stopped", follow=True)
        producer.send("one")
        producer.flush()
        assert next(subscription).payloads() == [b"one"]
        assert next(reader).num_rows == 1
        mortal.send_signal(signal.SIGSTOP)
        producer.send("three")
        try:
            for hangs in (
                lambda: next(subscription),
                lambda: next(reader),
                lambda: broker.publish("stopped", ["two"]),
                producer.flush,
                broker.stats,
                lambda: broker.read("stopped"),
                lambda: broker.subscribe("stopped"),
            ):
                began = time.monotonic()
                with pytest.raises(NoReply, match=r"has not answered for 1 s"):
                    hangs()
                assert time.monotonic() - began < 30
        finally:
            mortal.send_signal(signal.SIGCONT)
        producer.flush()
        wait_until(lambda: len(texts(broker, "stopped")) == 3)
        assert sorted(texts(broker, "stopped")) == ["one", "three", "two"]
        assert next(subscription).payloads() in ([b"two"], [b"three"], [b"two", b"three"], [b"three", b"two"])
        subscription.close()
        producer.close()


def test_a_producer_against_a_stopped_broker_holds_no_more_than_it_may(mortal: BrokerProcess) -> None:
    with stafeta.connect(address(mortal), timeout=2) as broker:
        producer = broker.producer("full", max_memory=1 << 20, batch_rows=100)
        producer.send("first")
        producer.flush()
        mortal.send_signal(signal.SIGSTOP)
        sent = 0
        try:
            with suppress(NoReply):
                while sent < 10_000:
                    producer.send("x" * 10_000)
                    sent += 1
        finally:
            mortal.send_signal(signal.SIGCONT)
        assert 50 < sent < 300
        producer.close()
        assert broker.topics("full")[0].rows == sent + 2  # the one that it waited with was taken


def test_leaving_by_an_error_does_not_wait_for_ever(mortal: BrokerProcess) -> None:
    began = time.monotonic()
    with (
        suppress(ZeroDivisionError),
        stafeta.connect(address(mortal), timeout=2) as broker,
        broker.producer("left") as producer,
    ):
        mortal.kill()
        producer.send("lost")
        raise ZeroDivisionError
    assert time.monotonic() - began < 60


# --- what was closed


def test_what_was_closed_says_so(mortal: BrokerProcess) -> None:
    broker = stafeta.connect(address(mortal))
    producer = broker.producer("closed")
    subscription = broker.subscribe("closed")
    broker.close()
    broker.close()
    for use in (
        lambda: producer.send("x"),
        lambda: producer.send_many(["x"]),
        lambda: next(subscription),
        lambda: broker.publish("closed", ["x"]),
        lambda: broker.read("closed"),
        broker.stats,
        lambda: broker.producer("closed"),
        lambda: broker.subscribe("closed"),
        lambda: next(iter(broker.batches("closed"))),
    ):
        with pytest.raises(Disconnected, match=r"was closed; make a new one\."):
            use()
