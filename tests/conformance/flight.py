"""Strangers at the Flight door, with plain pyarrow.flight.

A client has one stream for each of its filters. One that wants a single sequence, as the suite does, joins them: by
`position`, a message's place in the whole log, it knows what comes first and what it has had already.
"""

import json
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from tests.brokers import Doors
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.encrypted import flight_of
from tests.waiting import PATIENCE

COLUMNS = ["position", "topic", "offset", "kind", "payload"]
# A connection of its own for each, as strangers have who are not in one process.
OPTIONS: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]


class Row(NamedTuple):
    """A message as it is in a batch."""

    position: int
    topic: str
    offset: int
    kind: str
    payload: bytes


class Stream:
    """A subscription's messages. Nothing is read while nobody waits for them, but for one batch."""

    def __init__(
        self, client: flight.FlightClient, ticket: dict[str, object], told: threading.Condition
    ) -> None:
        self._reader = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
        self._told = told
        self._wanted = False
        self._over = False
        self._arrived: list[Row] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def want(self, wanted: bool) -> None:
        """Whether to read on; with the condition held."""
        self._wanted = wanted
        self._told.notify_all()

    def take(self) -> list[Row]:
        """What has come; with the condition held."""
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def over(self) -> bool:
        return self._over

    def cancel(self) -> None:
        with self._told:
            self._over = True
            self._told.notify_all()
        self._reader.cancel()
        self._thread.join()

    def _read(self) -> None:
        try:
            while True:
                with self._told:
                    self._told.wait_for(lambda: self._wanted or self._over)
                    if self._over:
                        return
                data: Any = self._reader.read_chunk().data
                rows = [
                    Row(*row) for row in zip(*(column.to_pylist() for column in data.columns), strict=True)
                ]
                with self._told:
                    self._arrived += rows
                    self._told.notify_all()
        except (StopIteration, flight.FlightError):
            with self._told:
                self._over = True
                self._told.notify_all()


class Flight(Stranger):
    def __init__(self, broker: Doors, name: str) -> None:
        self._name = name
        address, secrets = flight_of(broker)
        self._client = flight.FlightClient(address, generic_options=OPTIONS, **secrets)
        self._told = threading.Condition()
        self._streams: dict[str, Stream] = {}
        self._seen: set[int] = set()

    def subscribe(self, topic: str) -> None:
        self._act("subscribe", client=self._name, filter=topic)
        if topic not in self._streams:
            self.resume(topic)

    def resume(self, topic: str) -> None:
        ticket = {"client": self._name, "filter": topic, "follow": True, "columns": COLUMNS}
        self._streams[topic] = Stream(self._client, ticket, self._told)

    def unsubscribe(self, topic: str) -> None:
        if topic in self._streams:
            self._streams.pop(topic).cancel()
        self._act("unsubscribe", client=self._name, filter=topic)

    def publish(self, topic: str, text: str) -> None:
        self.put(topic, pa.array([text], pa.utf8()))

    def put(self, topic: str, payload: Any, kind: str = "") -> None:
        """Publishes with what the door has beyond text."""
        arrays = [payload, pa.array([kind])] if kind else [payload]
        batch = pa.RecordBatch.from_arrays(arrays, names=["payload", "kind"][: len(arrays)])
        writer: flight.FlightStreamWriter
        answers: Any
        writer, answers = self._client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
        writer.write_batch(batch)
        answer = answers.read()
        writer.close()  # says what went wrong
        assert json.loads(answer.to_pybytes())["rows"] == 1

    def receive(self, count: int) -> list[Received]:
        found: list[Row] = []
        taken: dict[str, list[Row]] = {}

        def enough() -> bool:
            for filter_, stream in self._streams.items():
                rows = stream.take()
                taken.setdefault(filter_, []).extend(rows)
                found.extend(row for row in rows if row.position not in self._seen)
                self._seen.update(row.position for row in rows)
            return len(found) >= count or any(stream.over for stream in self._streams.values())

        with self._told:
            for stream in self._streams.values():
                stream.want(True)
            self._told.wait_for(enough, PATIENCE)
            for stream in self._streams.values():
                stream.want(False)
        assert len(found) >= count, f"{len(found)} of {count} messages have come"
        for filter_, rows in taken.items():
            if rows:
                self._act("ack", client=self._name, filter=filter_, ranges=ranges(rows))
        return [
            Received(row.topic, row.payload.decode(errors="backslashreplace"), (row.kind, row.payload))
            for row in sorted(found)
        ]

    def close(self) -> None:
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()
        self._client.close()

    def _act(self, action: str, **body: object) -> None:
        options = flight.FlightCallOptions(timeout=PATIENCE)
        assert (
            len(list(self._client.do_action(flight.Action(action, json.dumps(body).encode()), options))) == 1
        )


def ranges(rows: Iterable[Row]) -> list[tuple[str, int, int]]:
    """What acknowledges exactly these."""
    found: list[tuple[str, int, int]] = []
    for topic, offset in sorted((row.topic, row.offset) for row in rows):
        if found and found[-1][0] == topic and found[-1][2] == offset:
            found[-1] = topic, found[-1][1], offset + 1
        else:
            found.append((topic, offset, offset + 1))
    return found


FLIGHT = Dialect("flight", "flight", Flight, durable=True, pushes=True, makes_topics=True)
