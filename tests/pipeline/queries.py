"""Topics from both sides: through Spark, and through the native client that checks on it."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import stafeta
from stafeta.clients.flight.connection import Connection
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE, wait_until


class Seen(NamedTuple):
    topic: str
    offset: int
    payload: str


def address(broker: BrokerProcess) -> str:
    return broker.flight


def connect(broker: BrokerProcess) -> Connection:
    return stafeta.connect(address(broker), timeout=PATIENCE)


def numbered(first: int, last: int) -> list[str]:
    """Payloads, both ends included."""
    return [str(number) for number in range(first, last + 1)]


def published(broker: BrokerProcess, **topics: list[str]) -> None:
    """Publishes to topics, in whose names `__` stands for a slash."""
    with connect(broker) as connection:
        for name, payloads in topics.items():
            connection.publish(name.replace("__", "/"), payloads)


def payloads(broker: BrokerProcess, topic: str) -> list[str]:
    """What a topic holds, in the order of its offsets; nothing, where there is no such topic."""
    with connect(broker) as connection:
        if not connection.topics(topic):
            return []
        return [bytes(one.as_py()).decode() for one in connection.read(topic).column("payload")]


# --- a broker that drops messages


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that keeps nothing that nobody waits for."""
    with BrokerProcess(tmp_path / "forgetful", doors=("flight",)) as process:
        yield process


def dropped(connection: Connection, topic: str, offset: int, name: str = "somebody") -> None:
    """The one who has held the topic is done with the messages below the offset, and the broker has dropped them."""
    connection.acknowledge(topic, {topic: offset}, name=name)
    wait_until(lambda: all(one.first >= offset for one in connection.topics(topic)))


# --- in batch


def read(spark: SparkSession, broker: BrokerProcess, subscribe: str, /, **options: object) -> DataFrame:
    reader = spark.read.format("stafeta").option("broker", address(broker)).option("subscribe", subscribe)
    return reader.options(**_texts(options)).load()


def write(rows: DataFrame, broker: BrokerProcess, /, **options: object) -> None:
    writer = rows.write.format("stafeta").mode("append").option("broker", address(broker))
    writer.options(**_texts(options)).save()


def seen(rows: DataFrame | list[Row]) -> list[Seen]:
    """Topic, offset and payload, by topic and offset. What is there twice is there twice."""
    found = rows.collect() if isinstance(rows, DataFrame) else rows
    return sorted(Seen(row["topic"], row["offset"], bytes(row["payload"]).decode()) for row in found)


def rows_from_source(rows: DataFrame) -> int:
    """How many rows have left the source for the JVM, of a DataFrame that was collected: the scan's own count."""
    plan: Any = rows._jdf.queryExecution().executedPlan()
    return int(plan.collectLeaves().head().metrics().apply("numOutputRows").value())


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the shared session, for a while."""
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


# --- streams


class Copy:
    """A query that collects its micro-batches here, with a checkpoint of its own; can be started again."""

    def __init__(
        self, spark: SparkSession, broker: BrokerProcess, folder: Path, subscribe: str, **options: object
    ) -> None:
        self.batches: list[tuple[int, list[Row]]] = []
        self.broker = broker
        self.checkpoint = folder
        self._spark = spark
        self._options = {"broker": address(broker), "subscribe": subscribe} | _texts(options)

    def start(self, now: bool = False, /, **options: object) -> StreamingQuery:
        """Starts it: to read what is there `now`, or until it is stopped."""
        rows = self._spark.readStream.format("stafeta").options(**self._options | _texts(options)).load()
        writer = rows.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        return (
            writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        ).start()

    def run(self, **options: object) -> StreamingQuery:
        """Reads what is there now, until the end."""
        query = self.start(True, **options)
        assert query.awaitTermination(PATIENCE), "the query does not end"
        return query

    @contextmanager
    def running(self, **options: object) -> Iterator[StreamingQuery]:
        query = self.start(False, **options)
        try:
            yield query
        finally:
            query.stop()

    def take(self, batch: DataFrame, number: int) -> None:
        """What is done with a micro-batch. A new query that finds nothing begins with an empty one: Spark has it so."""
        if rows := batch.collect():
            self.batches.append((number, rows))

    def wait_for(self, count: int) -> None:
        """Waits until so many rows are there."""
        wait_until(lambda: len(self.rows) >= count)

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def seen(self) -> list[Seen]:
        return seen(self.rows)

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in self.batches]


def waiting(query: StreamingQuery) -> bool:
    """Whether it has read what there is, and knows where it began."""
    return bool(query.status["message"] == "Waiting for data to arrive")


# --- side by side


@contextmanager
def in_background(action: Callable[[], object]) -> Iterator[None]:
    """Does it on a thread while what is within is done, and waits for it; an error of its own is raised here."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(action)
        try:
            yield
        finally:
            doing.result(PATIENCE)


# --- errors


@contextmanager
def told(sentence: str) -> Iterator[None]:
    """What is done within fails with this sentence, and without Python's traceback."""
    with pytest.raises(Exception, match=re.escape(sentence)) as caught:
        yield
    assert "Traceback" not in str(caught.value), caught.value


def _texts(options: dict[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
