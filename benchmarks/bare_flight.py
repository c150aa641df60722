"""Arrow Flight with nothing behind it: what the wire alone makes of a table, as it is and through TLS."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

_BATCH = 20_000  # rows written at once


class _Kept(flight.FlightServerBase):
    """Keeps the last table that it was given in memory, and gives it back."""

    table: pa.Table

    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        self.table = reader.read_all()  # type: ignore[attr-defined]

    def do_get(self, context: object, ticket: object) -> flight.FlightDataStream:
        return flight.RecordBatchStream(self.table)


def _serve(there: Connection, cert: Path | None, key: Path | None) -> None:
    scheme, pairs = "grpc", None
    if cert is not None and key is not None:
        scheme, pairs = "grpc+tls", [(cert.read_bytes(), key.read_bytes())]
    server = _Kept(f"{scheme}://127.0.0.1:0", tls_certificates=pairs)  # type: ignore[arg-type]
    there.send(server.port)
    server.serve()


@contextmanager
def bare_flight(made: Path | None) -> Iterator[flight.FlightClient]:
    """A client of a server in another process; with TLS, if there is a folder with the files that it takes."""
    cert, key = (made / "broker.pem", made / "broker.key") if made else (None, None)
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, cert, key), daemon=True)
    process.start()
    there.close()
    try:
        root = (made / "ca.pem").read_bytes() if made else None
        scheme = "grpc+tls" if made else "grpc"
        address = f"{scheme}://localhost:{here.recv()}"
        with flight.connect(address, tls_root_certs=root) as client:  # type: ignore[arg-type]
            yield client
    finally:
        process.terminate()
        process.join()


def publish(client: flight.FlightClient, table: pa.Table) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("t"), table.schema)
    writer.write_table(table, _BATCH)
    writer.done_writing()
    writer.close()


def consume(client: flight.FlightClient, table: pa.Table) -> None:
    assert client.do_get(flight.Ticket(b"")).read_all().num_rows == table.num_rows
