"""The sink's transactions, without Spark around them."""

from collections.abc import Iterator
from dataclasses import replace
from secrets import token_urlsafe

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from stafeta.errors import NotStaged, OutOfSequence
from stafeta.pipeline.connector import staging
from stafeta.pipeline.connector.options import WriteOptions
from stafeta.pipeline.connector.sink import BatchSink, Staged, _abort, _commit, _stage, put_aside
from stafeta.pipeline.connector.source import DefaultSource
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, payloads
from tests.waiting import wait_until

ROWS = StructType([StructField("payload", StringType())])


def rows(*texts: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"payload": pa.array(texts)})


@pytest.fixture
def options(broker: BrokerProcess) -> WriteOptions:
    return WriteOptions.of({"broker": address(broker), "topic": "out"}, streaming=True)


def written(options: WriteOptions, counter: int, *texts: str) -> Staged:
    staged = _stage(options, "spark/query", counter, rows(*texts), before=counter)
    _commit(options, [staged])
    return staged


def test_a_checkpoint_that_is_older_than_its_topics_is_refused(
    broker: BrokerProcess, options: WriteOptions
) -> None:
    for counter in range(3):
        written(options, counter, str(counter))
    with pytest.raises(OutOfSequence, match="written its micro-batches up to 2 before, and now writes 1:"):
        written(options, 1, "again")
    assert written(options, 2, "replayed").is_done
    written(options, 5, "5")  # those between had no rows
    assert payloads(broker, "out") == ["0", "1", "2", "5"]


def test_a_batch_whose_rows_were_aborted_meanwhile_is_not_committed(
    broker: BrokerProcess, options: WriteOptions
) -> None:
    staged = _stage(options, "spark/query", 0, rows("1", "2"), before=0)
    _abort(options, [staged])
    with pytest.raises(NotStaged):
        _commit(options, [staged])
    assert payloads(broker, "out") == []


def test_who_writes_alone_leaves_nothing_of_earlier_attempts(broker: BrokerProcess) -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["out"], "payload": ["1"], "kind": ["string"]})
    commits = [put_aside(address(broker), "job", 0, batch, None) for _ in range(3)]
    for late in commits[:2]:
        with pytest.raises(NotStaged):
            late()
    commits[2]()
    commits[0]()  # it is what was committed
    put_aside(address(broker), "job", 0, batch, None)()
    assert payloads(broker, "out") == ["1"]


def test_tasks_write_side_by_side(broker: BrokerProcess, options: WriteOptions) -> None:
    staged = [_stage(options, "spark/query", 0, rows(text), before=0) for text in ("1", "2", "3")]
    _commit(options, staged)
    assert payloads(broker, "out") == ["1", "2", "3"]


def test_a_write_may_have_tens_of_thousands_of_tasks(broker: BrokerProcess, options: WriteOptions) -> None:
    first = _stage(options, "spark/query", 0, rows("1"), before=0)
    others = [replace(first, part=token_urlsafe(9), rows=1_000_000) for _ in range(39_999)]
    with pytest.raises(NotStaged):  # which the broker says once it has read the names
        _commit(options, [first, *others])


def test_nothing_is_left_of_a_task_at_the_broker(broker: BrokerProcess, options: WriteOptions) -> None:
    for counter in range(10):
        written(options, counter, str(counter))
    with connect(broker) as connection:
        wait_until(lambda: connection.stats()["streams"] == 0)


def test_a_name_counts_for_each_topic_by_itself(broker: BrokerProcess) -> None:
    for _ in range(2):
        for topic in ("a", "b"):
            source = DefaultSource(
                {"broker": address(broker), "topic": topic, "txnAppId": "job", "txnVersion": "1"}
            )
            sink = source.writer(ROWS, overwrite=False)
            assert isinstance(sink, BatchSink)
            sink.commit([sink.write(rows("1", "2"))])
    assert payloads(broker, "a") == payloads(broker, "b") == ["1", "2"]


# --- a broker that is killed meanwhile


@pytest.mark.parametrize("named", [False, True], ids=["plain", "named"])
def test_a_broker_that_is_killed_between_staging_and_commit_changes_nothing(
    broker: BrokerProcess, *, named: bool
) -> None:
    name = {"txnAppId": "app", "txnVersion": "0"} if named else {}
    sink = BatchSink(WriteOptions.of({"broker": address(broker), "topic": "out", **name}, streaming=False))
    staged: list[WriterCommitMessage | None] = []
    for number in range(3):
        staged.append(sink.write(rows(str(number))))
        broker.restart()
    late = sink.write(rows("of an attempt that does not count"))
    for _ in range(2):
        sink.commit(staged)
        broker.restart()
        assert payloads(broker, "out") == ["0", "1", "2"]
    sink.abort([*staged, late])
    assert payloads(broker, "out") == ["0", "1", "2"]


def test_a_broker_that_is_killed_before_a_write_is_given_up_leaves_nothing_of_it(
    broker: BrokerProcess, options: WriteOptions
) -> None:
    staged = _stage(options, "spark/query", 0, rows("1"), before=0)
    broker.restart()
    _abort(options, [staged])
    broker.restart()
    with pytest.raises(NotStaged):
        _commit(options, [staged])
    written(options, 0, "2")
    assert payloads(broker, "out") == ["2"]


def test_a_broker_that_is_killed_while_a_task_writes_has_each_of_its_rows_once(
    broker: BrokerProcess, options: WriteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PORTION", 1)

    def coming() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            yield from rows(*(f"{number} {row}" for row in range(3)))
            if number % 2:
                broker.restart()

    _commit(options, [_stage(options, "spark/query", 0, coming(), before=0)])
    assert payloads(broker, "out") == [f"{number} {row}" for number in range(6) for row in range(3)]
