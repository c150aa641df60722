"""The native client: publishing, producing and reading."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.clients.flight.producer import Published
from stafeta.clients.flight.rows import Rows
from stafeta.clients.flight.sender import Sender
from stafeta.errors import (
    ConfigError,
    InvalidMessage,
    InvalidName,
    InvalidSchema,
    StafetaError,
)
from tests.doors.flight.peers import Place, payloads
from tests.waiting import PATIENCE, wait_until

TOO_LARGE = 9 << 20


@pytest.fixture
def broker(place: Place) -> Iterator[Connection]:
    host, port = place
    with stafeta.connect(f"grpc://{host}:{port}", timeout=PATIENCE) as connection:
        yield connection


# --- refused


@pytest.mark.parametrize(
    ("data", "kind", "error", "sentence"),
    [
        ("text", None, InvalidMessage, "'text' is a str; publish a list of messages"),
        (7, None, InvalidMessage, "7 is a int; publish a list"),
        ([None], None, InvalidMessage, "None is a NoneType; a message is text"),
        (["\ud800"], None, InvalidMessage, "half a surrogate pair"),
        ([{"a": {1}}], None, InvalidMessage, "cannot be written as JSON"),
        (["x"], "int", InvalidMessage, "'x' is not of the kind int"),
        (["x"], "colour", InvalidMessage, "'colour' is not a kind of message"),
        (
            pa.table({"a": [1]}),
            None,
            InvalidMessage,
            "The data has the columns a; messages are in a column payload",
        ),
        (pa.table({"payload": [1]}), None, InvalidSchema, "The column payload is of the type int64"),
        (pa.table({"payload": ["a"], "colour": ["red"]}), None, InvalidSchema, "There is no column 'colour'"),
        (pa.table({"payload": ["a", None]}), None, InvalidMessage, "null in it, at row 1"),
        ([b"x" * TOO_LARGE], None, InvalidMessage, "bytes"),
    ],
)
def test_what_cannot_be_published_is_refused_and_nothing_else_suffers(
    broker: Connection, topic: str, data: Any, kind: str | None, error: type[StafetaError], sentence: str
) -> None:
    broker.publish(topic, ["before"])
    with pytest.raises(error, match=sentence):
        broker.publish(topic, data, kind=kind)
    assert broker.publish(topic, ["after"]) == Published(2, 2, 1)
    assert payloads(broker.read(topic)) == [b"before", b"after"]


@pytest.mark.parametrize("name", ["", "a/+", "white space"])
def test_a_bad_topic_is_refused(broker: Connection, name: str) -> None:
    with pytest.raises(InvalidName):
        broker.publish(name, ["x"])
    with pytest.raises(StafetaError), broker.producer(name) as producer:
        producer.send("x")


@pytest.mark.parametrize(
    "use",
    [
        lambda producer: producer.send("more"),
        lambda producer: producer.send_many(["more"]),
        lambda producer: producer.write(pa.table({"payload": ["more"]})),
        lambda producer: producer.flush(),
        lambda producer: producer.close(),
    ],
)
def test_a_producer_that_was_refused_says_so_at_whatever_comes_next(
    broker: Connection, topic: str, use: Callable[[Any], None]
) -> None:
    producer = broker.producer(topic, kind="int")
    producer.send("1")
    producer.flush()
    producer.send("one")
    wait_until(lambda: producer._rows.request.error is not None)
    for _ in range(2):
        with pytest.raises(InvalidMessage, match="'one' is not of the kind int"):
            use(producer)
        if producer._closed:
            break
    assert producer.acknowledged == 1
    producer._end()
    assert payloads(broker.read(topic)) == [b"1"]


@pytest.mark.parametrize("wrong", [None, 7, 2.5])
def test_what_is_no_message_is_refused_at_once(broker: Connection, topic: str, wrong: Any) -> None:
    with broker.producer(topic) as producer:
        with pytest.raises(InvalidMessage, match="is no message; a message is str or bytes"):
            producer.send(wrong)
        with pytest.raises(
            InvalidMessage, match=r"Message 2 is not taken, .* is no message; a message is str"
        ):
            producer.send_many(["first", wrong, "never"])
        with pytest.raises(InvalidMessage, match="is one message; send it"):
            producer.send_many("good")
        producer.send("good")
    assert payloads(broker.read(topic)) == [b"first", b"good"]


@pytest.mark.parametrize("batch_rows", [2, 10_000])
def test_text_that_cannot_be_encoded_takes_nothing_before_it_along(
    broker: Connection, topic: str, batch_rows: int
) -> None:
    with pytest.raises(
        InvalidMessage, match="Message 3 of 4 is refused, and all with it: It has half a surr"
    ):
        broker.publish(topic, ["a", "é", "\ud800", "b"])
    producer = broker.producer(topic, batch_rows=batch_rows, linger=PATIENCE)
    with pytest.raises(InvalidMessage, match="Message 4 is not taken, and none after it: It has half a surr"):
        producer.send_many(["é", "2", b"3", "\ud800", "never"])
    for text in ("4", "5", "\ud800", "never"):
        producer.send(text)
        if batch_rows == 2 and text == "\ud800":
            break
    for use in (producer.flush, producer.close):
        with pytest.raises(InvalidMessage, match="Message 6 of this producer is not sent, and none after it"):
            use()
    assert producer.acknowledged == 5
    assert payloads(broker.read(topic)) == ["é".encode(), b"2", b"3", b"4", b"5"]


def test_a_message_too_large_does_not_take_others_with_it(broker: Connection, topic: str) -> None:
    producer = broker.producer(topic, batch_rows=1)
    producer.send_many(["a", "b"])
    producer.send(b"x" * TOO_LARGE)
    with pytest.raises(InvalidMessage):
        producer.close()
    assert producer.acknowledged == 2
    assert payloads(broker.read(topic)) == [b"a", b"b"]


@pytest.mark.parametrize("options", [{"batch_rows": 0}, {"linger": -1}, {"max_memory": 0}])
def test_a_producer_with_wrong_options(broker: Connection, topic: str, options: Any) -> None:
    with pytest.raises(ConfigError):
        broker.producer(topic, **options)


# --- publishing


def test_rows_of_every_kind(broker: Connection, topic: str) -> None:
    broker.publish(topic, [b"\xff", "ü", {"a": [1]}, ["x"], 12, -1.5e20, 0.1])
    table = broker.read(topic, columns=["kind", "payload"])
    assert list(zip(*table.to_pydict().values(), strict=True)) == [
        ("bytes", b"\xff"),
        ("string", "ü".encode()),
        ("json", b'{"a": [1]}'),
        ("json", b'["x"]'),
        ("int", b"12"),
        ("float", b"-150000000000000000000"),
        ("float", b"0.1"),
    ]


def test_rows_of_a_kind_that_is_named(broker: Connection, topic: str) -> None:
    broker.publish(topic, ["1", "2"], kind="int")
    broker.publish(topic, [b"3", "4"], kind="int")
    broker.publish(topic, pa.table({"payload": ["5"]}), kind="int")
    table = broker.read(topic)
    assert payloads(table) == [b"1", b"2", b"3", b"4", b"5"]
    assert set(table.column("kind").to_pylist()) == {"int"}


def test_publishing_tells_where(broker: Connection, topic: str) -> None:
    assert broker.publish(topic, (str(number) for number in range(3))) == Published(1, 3, 3)
    assert broker.publish(topic, [b"x"]) == Published(4, 4, 1)
    assert broker.publish(topic, []) == Published(None, None, 0)


def test_a_table_that_names_topics_is_split(broker: Connection, topic: str) -> None:
    names = [f"{topic}/{number % 3}" for number in range(9)]
    table = pa.table({"topic": names, "payload": [str(number) for number in range(9)]})
    assert broker.publish(None, table) == Published(None, None, 9)
    for number in range(3):
        assert payloads(broker.read(f"{topic}/{number}")) == [b"%d" % (number + 3 * at) for at in range(3)]
    with pytest.raises(InvalidMessage, match="needs a column topic"):
        broker.publish(None, ["x"])
    with pytest.raises(InvalidMessage, match="has a null in it"):
        broker.publish(None, pa.table({"topic": [topic, None], "payload": ["a", "b"]}))


def test_what_was_read_can_be_published_again(broker: Connection, topic: str) -> None:
    broker.publish(topic, ["a", {"b": 1}])
    broker.publish(f"{topic}/copy", broker.read(topic, columns=["kind", "payload", "timestamp", "offset"]))
    first, second = broker.read(topic), broker.read(f"{topic}/copy")
    for column in ("kind", "payload", "timestamp"):
        assert first.column(column) == second.column(column)


def test_data_larger_than_a_message_of_grpc_goes_in_pieces(broker: Connection, topic: str) -> None:
    table = pa.table({"payload": [b"%09d" % number * 50_000 for number in range(100)]})
    assert broker.publish(topic, table) == Published(1, 100, 100)
    found = [pa.Table.from_batches([batch]) for batch in broker.batches(topic, columns=["payload"])]
    assert [len(one) for table in found for one in payloads(table)] == [450_000] * 100


def test_a_connection_that_is_forgotten_leaves_nothing_running(place: Place, topic: str) -> None:
    before = set(threading.enumerate())
    connection = stafeta.connect("grpc://{}:{}".format(*place))
    connection.publish(topic, ["x"])
    producer = connection.producer(topic)
    producer.send("y")
    producer.flush()
    connection.subscribe(topic)
    assert set(threading.enumerate()) - before
    del connection, producer
    wait_until(lambda: gc.collect() >= 0 and set(threading.enumerate()) <= before)


# --- a producer


def test_a_producer_keeps_the_order_however_it_is_given(broker: Connection, topic: str) -> None:
    with broker.producer(topic, batch_rows=100) as producer:
        expected: list[bytes] = []
        for turn in range(20):
            rows = [b"%d-%d" % (turn, number) for number in range(turn * 17)]
            expected += rows
            if turn % 3 == 0:
                producer.send_many(rows)
            elif turn % 3 == 1:
                producer.write(pa.table({"payload": rows}))
            else:
                for row in rows:
                    producer.send(row)
        assert producer.sent == len(expected)
        producer.flush()
        assert producer.acknowledged == len(expected)
    assert payloads(broker.read(topic)) == expected


def test_a_producer_that_lingers_sends_when_it_is_time(broker: Connection, topic: str) -> None:
    with broker.producer(topic, linger=0.2) as producer:
        began = time.monotonic()
        producer.send("a")
        producer.send("b")
        wait_until(lambda: producer.acknowledged == 2)
        assert time.monotonic() - began >= 0.19
    with broker.producer(topic, linger=60, batch_rows=10) as producer:
        producer.send_many(map(str, range(25)))
        wait_until(lambda: producer.acknowledged == 20)
        producer.flush()
        assert producer.acknowledged == 25


def test_no_two_threads_write_at_a_time(
    broker: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC ends the whole program where they do."""
    writing, second = threading.Lock(), threading.Event()
    write = Sender._write

    def late(sender: Sender, *what: Any) -> None:
        if not writing.acquire(blocking=False):
            second.set()
            writing.acquire()
        try:
            if producer.sent == 1:
                producer.send("waits for the answer")
            write(sender, *what)
            # The answer is there before the call is back.
            wait_until(lambda: second.is_set() or not sender.queue.written)
            second.wait(0.2)
        finally:
            writing.release()

    monkeypatch.setattr(Sender, "_write", late)
    with broker.producer(topic, linger=0) as producer:
        producer.send("first")
        wait_until(lambda: producer.acknowledged == 2 or second.is_set())
    assert not second.is_set()
    assert payloads(broker.read(topic)) == [b"first", b"waits for the answer"]


def test_rows_that_waited_for_an_answer_are_sent_by_the_thread_that_has_read_it(
    broker: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[str] = []
    write = Sender._write

    def recorded(sender: Sender, *what: Any) -> None:
        writers.append(threading.current_thread().name)
        write(sender, *what)

    monkeypatch.setattr(Sender, "_write", recorded)
    expected = [b"%d" % number for number in range(500)]
    with broker.producer(topic, linger=0) as producer:
        for payload in expected:
            producer.send(payload)
            time.sleep(0.0002)
    assert writers[0] == "stafeta-sender"
    assert "stafeta-answers" in writers
    assert payloads(broker.read(topic)) == expected


def test_a_producer_with_a_name_goes_on_where_it_was(broker: Connection, topic: str, name: str) -> None:
    for turn in range(3):
        with broker.producer(topic, name=name) as producer:
            assert producer.count == 5 * turn
            producer.send_many([str(number) for number in range(5 * turn, 5 * turn + 5)])
            producer.flush()
            assert producer.count == 5 * turn + 5
    assert payloads(broker.read(topic)) == [b"%d" % number for number in range(15)]
    assert set(broker.read(topic).column("producer").to_pylist()) == {f"flight/{name}"}


def test_few_of_many_rows_wake_the_thread_that_sends(
    broker: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking is for a batch, and not for a message."""
    rings = 0
    ring = Rows._ring

    def counted(rows: Rows) -> bool:
        nonlocal rings
        rings += 1
        return ring(rows)

    monkeypatch.setattr(Rows, "_ring", counted)
    count = 200_000
    with broker.producer(topic) as producer:
        for _ in range(count):
            producer.send(b"x" * 100)
    assert producer.acknowledged == count
    assert rings < count // 50
