"""What the client does, and what it says when it cannot: the plain client and its asyncio twin alike."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from stafeta import Client
from stafeta.clients.zeromq.client import ClientClosed, Receipt
from stafeta.errors import ConfigError, InvalidMessage, InvalidName, Refused
from tests.brokers import BrokerProcess
from tests.doors.zeromq.arrivals import everything, texts

MIB = 1024 * 1024


def test_messages_are_numbered_from_one(client: Client, topic: str) -> None:
    assert client.subscribe(topic) == 0
    assert [client.put(topic, text) for text in ("a", "b", "c")] == [1, 2, 3]
    assert client.count(topic) == 3


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        ("", None, "string"),
        ("two words", None, "string"),
        ("ștafetă \U0001f3c3 \0 \n :/ ::", None, "string"),
        (b"plain", None, "bytes"),
        (b"\xff\xfe\0 not UTF-8", None, "bytes"),
        ("-17", "int", "int"),
        ("3.14", "short_real", "short_real"),
        ("0.0001", "float", "float"),
        ('{"a": [1, null]}', "json", "json"),
        (b"text in bytes", "string", "string"),
    ],
)
def test_a_message_arrives_as_it_was_put(
    client: Client, topic: str, data: str | bytes, kind: str | None, told: str
) -> None:
    client.subscribe(topic)
    client.put(topic, data, kind)
    message = client.get(topic)
    assert message is not None
    assert message.data == (data.encode() if isinstance(data, str) else data)
    assert (message.topic, message.id, message.kind) == (topic, 1, told)
    assert abs(message.time - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_largest_message_fits_however_it_is_written(client: Client, topic: str) -> None:
    client.subscribe(topic)
    client.put(topic, "\1" * (8 * MIB))
    message = client.get(topic)
    assert message is not None
    assert message.data == b"\1" * (8 * MIB)
    assert message.kind == "string"


def test_a_message_that_is_too_large_is_not_sent(client: Client, topic: str) -> None:
    client.subscribe(topic)
    with pytest.raises(InvalidMessage, match="8,388,609 bytes; at most 8,388,608"):
        client.put(topic, "x" * (8 * MIB + 1))
    assert client.put(topic, "next") == 1


def test_what_is_no_message_is_said_to_be_none(client: Client, topic: str) -> None:
    client.subscribe(topic)
    with pytest.raises(InvalidMessage, match="not int"):
        client.put(topic, 17)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="'number' is not a kind"):
        client.put(topic, "17", "number")
    with pytest.raises(InvalidMessage, match="surrogate"):
        client.put(topic, "\ud800")
    with pytest.raises(InvalidName):
        client.put("\ud800", "x")
    assert client.count(topic) == 0


def test_a_refused_put_leaves_no_trace(client: Client, topic: str) -> None:
    with pytest.raises(Refused, match=topic):
        client.put(topic, "too early")
    client.subscribe(topic)
    with pytest.raises(Refused, match="x"):
        client.put(topic, "x", "int")
    assert client.put(topic, "17", "int") == 1
    assert texts(client, topic) == ["17"]
    assert client.count(topic) == 1


def test_put_many_keeps_the_order(client: Client, topic: str) -> None:
    client.subscribe(topic)
    client.put(topic, "first")
    wanted = [f"message {number}" for number in range(12_345)]
    assert client.put_many(topic, wanted) == Receipt(12_345, 2, 12_346)
    assert client.put_many(topic, []) == Receipt(0, 0, 0)
    assert texts(client, topic) == ["first", *wanted]


def test_put_many_takes_text_and_bytes_in_turn(client: Client, topic: str) -> None:
    client.subscribe(topic)
    client.put_many(topic, ["text", b"\xff", b"ascii", "more"])
    found = [(message.data, message.kind) for message in everything(client, topic)]
    assert found == [(b"text", "string"), (b"\xff", "bytes"), (b"ascii", "bytes"), (b"more", "string")]


def test_put_many_reads_no_further_than_it_sends(client: Client, lasting: BrokerProcess, topic: str) -> None:
    client.subscribe(topic)
    reader = Client(lasting.address)
    reader.subscribe(topic)

    def endless() -> Iterator[str]:
        for number in range(1_000_000):
            if number == 40_000:
                assert reader.get(topic) is not None
                return
            yield "x" * 100

    with reader:
        assert client.put_many(topic, endless()).total == 40_000


def test_put_many_puts_what_came_before_an_error(client: Client, topic: str) -> None:
    def failing() -> Iterator[str]:
        yield from map(str, range(1500))
        raise ZeroDivisionError

    client.subscribe(topic)
    with pytest.raises(ZeroDivisionError):
        client.put_many(topic, failing())
    with pytest.raises(InvalidMessage):
        client.put_many(topic, ["1500", None])  # type: ignore[list-item]
    assert texts(client, topic) == [str(number) for number in range(1501)]


def test_a_refusal_in_the_middle_of_put_many_stops_it_there(client: Client, topic: str) -> None:
    client.subscribe(topic)
    bad = 4321
    with pytest.raises(Refused, match="bad"):
        client.put_many(topic, ("bad" if number == bad else str(number) for number in range(20_000)), "int")
    stored = texts(client, topic)
    assert stored == [str(number) for number in range(4000)]  # whole requests, of a thousand each
    assert client.count(topic) == len(stored)
    client.put_many(topic, map(str, range(4000, 6000)), "int")
    assert texts(client, topic) == [str(number) for number in range(4000, 6000)]


def test_topics_are_listed_page_by_page(client: Client, topic: str) -> None:
    names = [f"{topic}/{number:04}" for number in range(1100)]
    for name in names:
        client.subscribe(name)
    client.put(names[0], "x")
    found = client.topics(f"{topic}/+")
    assert [one.name for one in found] == names
    assert (found[0].first, found[0].next, found[0].subscriptions) == (1, 2, 1)
    assert found[1].next == 1


def test_a_closed_client_says_so(client: Client, topic: str) -> None:
    client.close()
    with pytest.raises(ClientClosed):
        client.put(topic, "x")
    client.close()


@pytest.mark.parametrize("address", ["tcp://", "nonsense://x:1", "127.0.0.1", "127.0.0.1:port"])
def test_an_address_that_is_none_is_said_to_be_none(connect: Callable[..., Client], address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        connect(address).topics()


def test_an_address_needs_no_scheme(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str
) -> None:
    assert connect(lasting.address.removeprefix("tcp://")).subscribe(topic) == 0


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retries": 0}, {"backoff": -1}, {"window": 17}])
def test_options_have_bounds(connect: Callable[..., Client], options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        connect("127.0.0.1:1", **options)
