"""Flight clients as other people write them: plain pyarrow.flight, and what the protocol's page says."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pytest
from pyarrow import flight

from stafeta.clients.closing import Closing
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE

Place: TypeAlias = tuple[str, int]
Said: TypeAlias = str | bytes | dict[str, Any]
"""A topic, an object, or any bytes."""

# A connection of its own, that is tried again soon: the default is one for a process, and minutes.
OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 60_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 200),
]
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.utf8(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "producer": pa.utf8(),
    "source": pa.utf8(),
    "kind": pa.utf8(),
    "payload": pa.binary(),
}
MORE: dict[str, pa.DataType] = {"counter": pa.int64(), "position": pa.int64()}
SCHEMA = pa.schema(COLUMNS)
EVERY_COLUMN = [*SCHEMA.names, *MORE]


class Peer(Closing):
    """A client of a Flight door."""

    def __init__(self, place: Place, patience: float = PATIENCE) -> None:
        self.client = flight.FlightClient(place, generic_options=OPTIONS)
        self.options = flight.FlightCallOptions(timeout=patience)

    def putting(self, said: Said | flight.FlightDescriptor, schema: pa.Schema) -> "Putting":
        """A stream of batches to the broker; `said` is the topic, or a command."""
        return Putting(self, descriptor(said), schema)

    def put(self, said: Said, batch: pa.RecordBatch, metadata: Said = b"") -> dict[str, Any]:
        """Puts one batch on a stream of its own; returns the answer."""
        with self.putting(said, batch.schema) as stream:
            stream.send(batch, metadata)
            return stream.answer()

    def put_texts(self, said: Said, texts: Iterable[str], metadata: Said = b"") -> dict[str, Any]:
        return self.put(said, rows_of(texts), metadata)

    def reading(self, ticket: Said) -> "Reading":
        return Reading(self.client.do_get(flight.Ticket(as_bytes(ticket)), self.options))

    def batches(self, ticket: Said) -> list[pa.RecordBatch]:
        with self.reading(ticket) as stream:
            return stream.rest()

    def get(self, ticket: Said) -> pa.Table:
        """All that a ticket gives, of a stream that ends."""
        with self.reading(ticket) as stream:
            return pa.Table.from_batches(stream.rest(), stream.schema)

    def texts(self, ticket: Said) -> list[str]:
        return texts_in(self.get(ticket))

    def info(self, said: Said) -> flight.FlightInfo:
        return self.client.get_flight_info(descriptor(said), self.options)

    def told(self, action: str, body: bytes) -> list[dict[str, Any]]:
        """The results of an action."""
        found = self.client.do_action(flight.Action(action, body), self.options)
        return [read_json(result.body) for result in found]

    def act(self, action: str, /, **body: object) -> dict[str, Any]:
        """The one result of an action."""
        (result,) = self.told(action, json.dumps(body).encode())
        return result

    def topics(self, filter_: str) -> list[dict[str, Any]]:
        return self.told("topics", json.dumps({"filter": filter_}).encode())

    def rows(self, topic: str) -> int:
        """How many messages there are of a topic and all below it; 0 where there is none of them."""
        return sum(one["rows"] for one in self.topics(f"{topic}/#"))

    def subscribe(self, name: str, filter_: str, **more: str) -> int:
        result = self.act("subscribe", client=name, filter=filter_, **more)
        assert result.keys() == {"position"}
        return int(result["position"])

    def ack(self, name: str, filter_: str, *ranges: tuple[str, int | None, int]) -> None:
        assert self.act("ack", client=name, filter=filter_, ranges=ranges) == {}

    def close(self) -> None:
        self.client.close()


class Putting:
    """A stream of batches to the broker, and its answers. What goes wrong is raised by `answer`, or when it is left."""

    def __init__(self, peer: Peer, to: flight.FlightDescriptor, schema: pa.Schema) -> None:
        self._writer: flight.FlightStreamWriter
        self._answers: Any  # a FlightMetadataReader, whatever the stubs say
        self._writer, self._answers = peer.client.do_put(to, schema, peer.options)

    def send(self, batch: pa.RecordBatch, metadata: Said = b"") -> None:
        self._writer.write_with_metadata(batch, pa.py_buffer(as_bytes(metadata)))

    def say(self, metadata: bytes) -> None:
        """Sends metadata that no batch is with."""
        self._writer.write_metadata(pa.py_buffer(metadata))

    def done(self) -> None:
        """Says that there are no more batches; the answers are still to come."""
        self._writer.done_writing()

    def read(self) -> dict[str, Any] | None:
        """What is answered next, whatever it is; None where the stream is over."""
        found = self._answers.read()
        return None if found is None else read_json(found)

    def answer(self) -> dict[str, Any]:
        told = self.read()
        if told is None or "error" in told:
            self._writer.close()  # says why
            raise EOFError(f"the stream is over, without a Flight error; the last answer is {told}")
        return told

    def answers(self, count: int) -> list[dict[str, Any]]:
        return [self.answer() for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer.close()
        else:
            with suppress(flight.FlightError, pa.ArrowException):
                self._writer.close()


class Reading(Closing):
    """A stream of batches from the broker."""

    def __init__(self, stream: flight.FlightStreamReader) -> None:
        self._stream = stream

    @property
    def schema(self) -> pa.Schema:
        return self._stream.schema

    def batch(self) -> pa.RecordBatch | None:
        """The next batch; None at the end."""
        try:
            data = self._stream.read_chunk().data
        except StopIteration:
            return None
        assert data is not None, "there is metadata without a batch"
        return data

    def rows(self, count: int) -> pa.Table:
        """Reads until so many rows have come."""
        found: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in found) < count:
            batch = self.batch()
            assert batch is not None, f"the stream has ended after {found}"
            found.append(batch)
        return pa.Table.from_batches(found, self.schema)

    def texts(self, count: int) -> list[str]:
        return texts_in(self.rows(count))

    def rest(self) -> list[pa.RecordBatch]:
        return list(iter(self.batch, None))

    def cancel(self) -> None:
        self._stream.cancel()

    def close(self) -> None:
        self.cancel()


@dataclass(slots=True)
class Told:
    """What an error said."""

    error: str = ""
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)


@contextmanager
def refused(kind: type[flight.FlightError] = flight.FlightServerError) -> Iterator[Told]:
    """Expects a Flight error as the page describes them: a sentence, and the same with a name in `extra_info`."""
    told = Told()
    with pytest.raises(flight.FlightError) as raised:
        yield told
    error = raised.value
    assert type(error) is kind, repr(error)
    assert error.extra_info, f"there is no extra_info: {error!r}"
    told.info = read_json(error.extra_info)
    told.error, told.message = told.info["error"], told.info["message"]
    assert told.error.isidentifier()
    assert " " in told.message
    assert told.message.endswith("."), told.message
    assert told.message in str(error)
    for word in ("Traceback", 'File "', "object at 0x", ".py"):
        assert word not in str(error)


def descriptor(said: Said | flight.FlightDescriptor) -> flight.FlightDescriptor:
    if isinstance(said, flight.FlightDescriptor):
        return said
    if isinstance(said, str):
        return flight.FlightDescriptor.for_path(said)
    return flight.FlightDescriptor.for_command(as_bytes(said))


def as_bytes(said: Said) -> bytes:
    if isinstance(said, dict):
        return json.dumps(said).encode()
    return said.encode() if isinstance(said, str) else said


def read_json(data: bytes | pa.Buffer) -> dict[str, Any]:
    found = json.loads(data if isinstance(data, bytes) else data.to_pybytes())
    assert isinstance(found, dict)
    return found


def rows_of(
    payloads: Iterable[str | bytes], type_: pa.DataType | None = None, **columns: Any
) -> pa.RecordBatch:
    """A batch of these payloads, text unless a type is given, and whatever columns are wanted beside them."""
    arrays: dict[str, Any] = {"payload": pa.array(list(payloads), type_ or pa.utf8()), **columns}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def texts_in(table: pa.Table) -> list[str]:
    return [payload.decode() for payload in column(table, "payload")]


def column(table: pa.Table | pa.RecordBatch, name: str) -> list[Any]:
    found: list[Any] = table.column(name).to_pylist()
    return found


def numbered(count: int, first: int = 1) -> list[str]:
    return [f"message {number}" for number in range(first, first + count)]


def ranges_in(table: pa.Table) -> list[tuple[str, int | None, int]]:
    """The ranges that acknowledge all that came."""
    found: dict[str, tuple[int, int]] = {}
    for topic, offset in zip(column(table, "topic"), column(table, "offset"), strict=True):
        low, high = found.get(topic, (offset, offset))
        found[topic] = min(low, offset), max(high, offset + 1)
    return [(topic, low, high) for topic, (low, high) in found.items()]


def works(broker: BrokerProcess, topics: Sequence[str] = ("does/it/work",)) -> bool:
    """Whether a client that comes now is served."""
    with Peer(broker.door("flight")) as peer:
        for topic in topics:
            answer = peer.put_texts(topic, ["yes"])
            assert answer["rows"] == 1
            assert peer.texts({"topic": topic, "from": answer["offset"]}) == ["yes"]
    return True


def payloads(table: pa.Table) -> list[Any]:
    """The column payload of a table."""
    found: list[Any] = table.column("payload").to_pylist()
    return found
