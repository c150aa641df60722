"""Arrow data of every origin, published by the native client."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.clients.flight.data import PIECE, batches, by_topic
from stafeta.errors import InvalidMessage, InvalidSchema
from tests.doors.flight.peers import Place
from tests.waiting import PATIENCE


@pytest.fixture
def broker(place: Place) -> Iterator[Connection]:
    host, port = place
    with stafeta.connect(f"grpc://{host}:{port}", timeout=PATIENCE) as connection:
        yield connection


def found(broker: Connection, topic: str) -> list[tuple[str, bytes]]:
    table = broker.read(topic, columns=["kind", "payload"])
    return list(zip(*table.to_pydict().values(), strict=True))


def test_pandas(broker: Connection, topic: str) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"payload": ["a", "b"], "kind": ["string", "json"]}, index=[7, 8])
    frame["payload"] = ["a", "[1]"]
    broker.publish(topic, frame)
    broker.publish(topic, pd.Series(["c", "d"], name="anything"))
    broker.publish(topic, pd.Series([b"\xff"]))
    with broker.producer(topic) as producer:
        producer.write(frame.iloc[:1])
    assert found(broker, topic) == [
        ("string", b"a"),
        ("json", b"[1]"),
        ("string", b"c"),
        ("string", b"d"),
        ("bytes", b"\xff"),
        ("string", b"a"),
    ]
    with pytest.raises(InvalidMessage, match="The data has the columns number"):
        broker.publish(topic, pd.DataFrame({"number": [1]}))
    with pytest.raises(InvalidSchema, match="payload is of the type int64"):
        broker.publish(topic, pd.Series([1, 2]))


def test_polars(broker: Connection, topic: str) -> None:
    pl = pytest.importorskip("polars")
    broker.publish(topic, pl.DataFrame({"payload": ["a", "b"]}))
    broker.publish(topic, pl.Series("anything", [b"c"]))
    broker.publish(None, pl.DataFrame({"topic": [topic, topic], "payload": ["1", "2"]}), kind="int")
    assert found(broker, topic) == [
        ("string", b"a"),
        ("string", b"b"),
        ("bytes", b"c"),
        ("int", b"1"),
        ("int", b"2"),
    ]
    again = pl.DataFrame(broker.read(topic))
    assert again["payload"].to_list() == [b"a", b"b", b"c", b"1", b"2"]


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"payload": ["a", "b"]}),
        pa.record_batch({"payload": ["a", "b"]}),
        pa.RecordBatchReader.from_batches(
            pa.schema({"payload": pa.string()}), [pa.record_batch({"payload": [one]}) for one in "ab"]
        ),
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"], pa.string_view()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["x", "a", "b", "y"])[1:3],
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_arrow_has(broker: Connection, topic: str, data: Any) -> None:
    broker.publish(topic, data)
    assert found(broker, topic) == [("string", b"a"), ("string", b"b")]


def test_large_data_is_cut_without_being_copied() -> None:
    column: Any = pa.array([b"x" * 1000] * 100_000)
    parts: list[Any] = batches(pa.table({"payload": column}))
    assert len(parts) > 1
    assert sum(part.num_rows for part in parts) == 100_000
    assert all(part.nbytes <= PIECE * 1.1 for part in parts)
    address = column.buffers()[2].address
    assert all(part.column("payload").buffers()[2].address == address for part in parts)


def test_large_rows_are_cut_too() -> None:
    parts = batches([b"x" * (PIECE // 4)] * 10)
    assert [part.num_rows for part in parts] == [2, 3, 2, 3]


def test_the_rows_of_each_topic_stay_in_order() -> None:
    names = pa.array(["a", "b", "a", "c", "b"])
    columns: list[Any] = [names, names.dictionary_encode(), names.cast(pa.large_string())]
    columns += [names.cast(pa.string_view()), pa.concat_arrays([pa.array(["x"]), names]).slice(1)]
    for column in columns:
        batch = pa.record_batch([column, pa.array(list("12345"))], names=["topic", "payload"])
        parts = {topic: part.to_pydict() for topic, part in by_topic(batch)}
        assert parts == {"a": {"payload": ["1", "3"]}, "b": {"payload": ["2", "5"]}, "c": {"payload": ["4"]}}
    with pytest.raises(InvalidMessage, match="it must be text"):
        list(by_topic(pa.record_batch([pa.array([1]), pa.array(["x"])], names=["topic", "payload"])))
