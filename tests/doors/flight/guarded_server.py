"""A Flight service, not Stafeta's, that asks for a token."""

import json
from typing import Any

import pyarrow as pa
from pyarrow import flight

TOKEN = "letmein-0123"


class _Guard(flight.ServerMiddlewareFactory):
    """Lets nobody in without the token, whatever they call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def start_call(self, info: flight.CallInfo, headers: dict[str, Any]) -> None:
        if headers.get("authorization") != [f"Bearer {TOKEN}"]:
            raise flight.FlightUnauthenticatedError("This token is not known.")
        self.calls.append(info.method.name)


class GuardedServer(flight.FlightServerBase):
    """A Flight service that answers the least that a client can go on with."""

    def __init__(self, location: str, **options: Any) -> None:
        self.guard = _Guard()
        super().__init__(location, middleware={"guard": self.guard}, **options)
        self.address = f"{location.rpartition(':')[0]}:{self.port}"

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        return [b'{"version": "0"}']

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(pa.table({"offset": pa.array([1]), "payload": pa.array([b"x"])}))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        return flight.FlightInfo(pa.schema([]), descriptor, [], 0, 0)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        for chunk in reader:
            assert chunk.data is not None
            answer = {"topic": "t", "offset": 1, "rows": chunk.data.num_rows}
            writer.write(pa.py_buffer(json.dumps(answer).encode()))
