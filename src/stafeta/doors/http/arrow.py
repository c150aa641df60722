"""Messages as an Arrow stream, with the columns of the Flight door."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from stafeta.doors.flight.encode_batches import BatchEncoder
from stafeta.message import COLUMNS, Batch

COLUMNS_HERE: Final = (*COLUMNS, "position")
ROWS: Final = 10_000  # of a batch


def stream(batches: Sequence[Batch]) -> bytes:
    encoder = BatchEncoder(COLUMNS_HERE, ROWS, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, encoder.schema) as writer:
        for one in encoder.batches(batches) if batches else ():
            assert isinstance(one, pa.RecordBatch)
            writer.write_batch(one)
    return sink.getvalue().to_pybytes()
