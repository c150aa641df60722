"""Counters that are there twice, and those that only look so."""

from pyspark.sql import SparkSession

from stafeta.pipeline.jobs import audit
from stafeta.pipeline.jobs.auditing import counters
from stafeta.pipeline.jobs.auditing.findings import Tally
from stafeta.pipeline.jobs.auditing.offset_bits import Bounds
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, published

SCHEMA = "topic string, offset bigint, producer string, payload binary, counter bigint"


class Sending:
    """Messages, with the offsets that they get."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, str, bytes, int | None]] = []
        self._next: dict[str, int] = {}

    def send(self, topic: str, producer: str, *sent: tuple[int | None, str]) -> None:
        for counter, payload in sent:
            offset = self._next.get(topic, 1)
            self._next[topic] = offset + 1
            self.rows.append((topic, offset, producer, payload.encode(), counter))


def counting(start: int, stop: int) -> list[tuple[int | None, str]]:
    return [(counter, f"message {counter}") for counter in range(start, stop)]


def test_counters_that_are_there_twice_are_found_and_others_are_not(spark: SparkSession) -> None:
    sending = Sending()
    # Sound: two producers with the same counters, one on two topics, many without counters.
    for topic in ("a", "b"):
        for producer in ("p", "q"):
            sending.send(topic, producer, *counting(1, 100))
        sending.send(topic, "", *[(None, "x")] * 20)
    sending.send("a", "from the middle", *counting(1_000_000_000_000, 1_000_000_000_070))
    # Random draws that meet: with another payload, or long after.
    drawn: list[tuple[int | None, str]] = [(counter * 7919, "x") for counter in range(20)]
    sending.send("draws", "d", *drawn, (7919 * 19, "another"), (7919 * 3, "x"))
    sending.send("once", "d", (5, "x"), (5, "y"))
    # A client that begins to count anew.
    sending.send("anew", "p", *counting(1, 30), *[(counter, "other") for counter in range(1, 9)])
    # The message itself is there twice, which another check finds.
    sending.rows.append(sending.rows[3])
    # Wrong: a batch that was stored again, a number with another payload, a retry that was not recognised.
    sending.send("again", "p", *counting(1, 50), *counting(31, 50), *counting(50, 60))
    sending.send("other", "p", *counting(1, 50), (40, "something else"), *counting(50, 60))
    sending.send("changed", "p", *counting(1, 12), (11, "message 12"), *counting(13, 30))
    sending.send("retried", "d", *drawn, drawn[-3])

    messages = spark.createDataFrame(sending.rows, SCHEMA)
    doubtful = counters.producers_in_doubt(messages, 100)
    assert doubtful == [
        ("a", "p"),
        ("again", "p"),
        ("anew", "p"),
        ("changed", "p"),
        ("draws", "d"),
        ("once", "d"),
        ("other", "p"),
        ("retried", "d"),
    ]
    tally = Tally()
    counters.judge(tally, counters.repeated(messages, doubtful))
    found = tally.findings()
    assert [(one.topic, one.where, one.count) for one in found] == [
        ("again", "50-68", 19),
        ("changed", "12", 1),
        ("other", "50", 1),
        ("retried", "21", 1),
    ]
    assert found[0].what == "a counter of producer 'p' again"


def test_of_the_log_counters_are_read_where_the_lake_has_none_of_them(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    published(broker, a=["1", "2", "3", "4", "5"], b=["x"])
    wanted = audit.Wanted("#")
    with connect(broker) as connection:
        topics = wanted.topics(connection)

    def rest(**said: tuple[tuple[int, int], ...]) -> list[tuple[str, int]] | None:
        bounds = {name: Bounds(name, said.get(name, ()), one.first, one.next) for name, one in topics.items()}
        found = audit._rest(spark, address(broker), wanted, topics, bounds)
        return None if found is None else sorted((row["topic"], row["offset"]) for row in found.collect())

    assert rest(a=((1, 4),), b=((1, 2),)) == [("a", 4), ("a", 5)]
    assert rest(a=((1, 3), (4, 5))) == [("a", 3), ("a", 5), ("b", 1)]
    assert rest(a=((1, 6),), b=((1, 2),)) is None, "and then it is not read at all"
