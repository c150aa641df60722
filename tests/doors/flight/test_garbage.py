"""Whatever strangers send to the port, the others are served."""

import random
import socket
import struct
from contextlib import ExitStack, suppress

import pyarrow as pa
import pytest

from stafeta.doors.flight.decode_batches import take
from stafeta.errors import InvalidSchema
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, works

NOISE = random.Random(4).randbytes(200_000)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(NOISE, id="noise"),
        pytest.param(PREFACE[:10], id="half-a-preface"),
        pytest.param(PREFACE + SETTINGS + NOISE, id="noise-after-the-preface"),
        pytest.param(PREFACE + SETTINGS + b"\xff\xff\xff\0\0\0\0\0\x01", id="a-frame-too-long"),
        pytest.param(b"\x16\x03\x01\x02\0" + NOISE[:512], id="tls"),
    ],
)
def test_bytes_that_are_no_grpc_hurt_nobody(flying: BrokerProcess, data: bytes) -> None:
    before = len(flying.stderr.splitlines())
    with Peer(flying.door("flight")) as bystander:
        bystander.put_texts("bystanders", ["before"])
        with socket.create_connection(flying.door("flight"), 20) as connection:
            with suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while connection.recv(65536):
                    pass
        bystander.put_texts("bystanders", ["after"])
    assert works(flying)
    assert len(flying.stderr.splitlines()) - before < 20


def test_connections_that_say_nothing_hurt_nobody(flying: BrokerProcess) -> None:
    with ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(socket.create_connection(flying.door("flight"), 20))
        assert works(flying)
    assert works(flying)


def test_rows_that_are_not_there_are_not_looked_for() -> None:
    """A batch says that it has more rows than its buffers; Arrow reads it as it is."""
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": ["ab"] * 77})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    for rows in (100, 1 << 20, 1 << 40):
        (batch,) = pa.ipc.open_stream(body.replace(struct.pack("<q", 77), struct.pack("<q", rows)))
        assert batch.num_rows == rows
        with pytest.raises(InvalidSchema):
            take(batch, "t", 1 << 50, 1 << 20)


def test_a_buffer_of_offsets_may_end_anywhere() -> None:
    offsets = pa.py_buffer(struct.pack("<iii", 0, 1, 2) + b"x")
    payloads = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"ab")])
    batch = take(pa.record_batch({"payload": payloads}), "t", 1 << 50, 1 << 20)
    assert (batch.size, list(batch.payloads)) == (2, [b"a", b"b"])
