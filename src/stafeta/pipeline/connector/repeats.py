"""Whether a write whose name and version were used before is the same one, repeated.

1. A write that has a name leaves a label at the broker: how many rows it had, and a sum over them that depends neither
   on their order nor on their partitions. Times do not count: they may be those of the attempt.
2. A repeat has the same rows: they are there, and nothing is lost or doubled. Or it is a micro-batch that its own query
   repeats after a restart, as Spark does with the last one: rows may differ then, where they are made of a clock or
   of lots.
3. Anything else is another write: of a job that has the name too, of a query with a new checkpoint, whose micro-batches
   begin with 0 again, or a second one under the same version. It is refused, since its rows would be lost.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from pyspark import TaskContext

from stafeta.errors import AlreadyWritten

if TYPE_CHECKING:
    import pyarrow as pa

    from stafeta.clients.flight.connection import Connection

QUERY: Final = "sql.streaming.queryId"  # local properties of Spark's
_RUN: Final = "spark.jobGroup.id"  # in a query, the id of its run
_WIDTH: Final = 1 << 64


@dataclass(frozen=True)
class Label:
    rows: int = 0
    sum: int = 0
    query: str = ""
    run: str = ""

    @classmethod
    def of_task(cls) -> "Label":
        """No rows yet, and the query that the task is a part of, where it is."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(QUERY)
        return cls(query=query, run=(context and context.getLocalProperty(_RUN)) or "") if query else cls()

    @classmethod
    def joined(cls, labels: "Iterable[Label]") -> "Label":
        """That of a write, from those of its tasks."""
        found = list(labels) or [cls()]
        rows, total = sum(one.rows for one in found), sum(one.sum for one in found) % _WIDTH
        return cls(rows, total, found[0].query, found[0].run)

    @classmethod
    def parse(cls, text: str | None) -> "Label | None":
        return None if text is None else cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def with_rows(self, batch: "pa.RecordBatch") -> "Label":
        count, total = digest(batch)
        return Label(self.rows + count, (self.sum + total) % _WIDTH, self.query, self.run)

    def repeats(self, before: "Label", *, last: bool) -> bool:
        """Whether a write is the one before; `last` where no later one is known."""
        same_rows = (self.rows, self.sum) == (before.rows, before.sum)
        same_query = self.query != "" and self.query == before.query
        return same_rows or (last and same_query and self.run != before.run)


def digest(batch: "pa.RecordBatch") -> tuple[int, int]:
    """How many rows a batch has, and a sum over them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        batch.column(name).cast(pa.large_binary())
        for name in ("topic", "kind", "payload")
        if name in batch.schema.names
    ]
    join: Any = pc.binary_join_element_wise  # its types know columns or separators, not both
    rows = join(*columns, pa.scalar(b"\0", pa.large_binary()), null_handling="replace", null_replacement="")
    # Squared, since checksums are linear: else changes in several rows could cancel each other out.
    checksums = np.fromiter(map(crc32, rows.to_pylist()), np.uint64, batch.num_rows)
    return batch.num_rows, int(np.square(checksums).sum(dtype=np.uint64))


def check_repeat(connection: "Connection", producer: str, counter: int, label: Label, name: str) -> None:
    """Raises where rows were written under a name and version before, and are not these."""
    last = connection.committed(producer)
    before = Label.parse(connection.label(producer, counter))
    if last is None or (before is None and counter == last):  # an older version of Stafeta wrote no labels
        return
    if before is not None and label.repeats(before, last=counter == last):
        return
    found = (
        f"It is not known what version {counter} of {name!r} was: the last is {last}"
        if before is None
        else f"Version {counter} of {name!r} was written before, with other rows ({before.rows}, now {label.rows})"
    )
    raise AlreadyWritten(
        f"{found}. Another job has this txnAppId, or a query with another checkpoint: name it otherwise, or go on with "
        f"version {last + 1}. Nothing was written.",
        last + 1,
    )
