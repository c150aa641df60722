"""Whether the log is the one that was archived: the last message of a topic that the lake has is still the same there.

1. Another broker's data under the same address, or data that was put back from a copy and written to since, would go on
   with other messages behind those of the lake, without a gap.
2. What the log has collected cannot be compared, and need not be: what comes after it is either held for the lake, and
   is the same, or is missing, which is found out by the offsets.
"""

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from stafeta.errors import DataLoss, NoSuchOffset, NoSuchTopic, StoreDamaged
from stafeta.pipeline.lake.marks import COLUMNS, checksums

FEW: Final = 10
"""Topics that are looked at with each commit: if the log is another one, they all are."""
MOST: Final = 1000
"""Topics that are looked at when the job starts."""


def check_same_log(address: str, marks: Mapping[str, tuple[int, int]], most: int = MOST) -> None:
    """Raises where the log has another message than one that is in the lake. Of more topics than `most`, others are
    looked at each time."""
    from stafeta import connect

    if not marks:
        return
    chosen = sorted(marks) if len(marks) <= most else random.sample(sorted(marks), most)
    with connect(address) as broker:
        for topic in chosen:
            offset, checksum = marks[topic]
            with suppress(NoSuchOffset, NoSuchTopic, StoreDamaged):  # collected, or nobody can read it
                rows = broker.read(topic, start=offset, end=offset + 1, columns=["offset", *COLUMNS])
                found = [
                    (row.column("offset")[0].as_py(), checksums(row)[0])
                    for row in rows.to_batches(max_chunksize=1)
                ]
                if any(at == offset and sum_ != checksum for at, sum_ in found):
                    raise DataLoss(
                        f"Message {offset} of topic {topic} is another one in the log than in the lake: the broker's "
                        "data is not what was archived there. Put back the data that was; or archive this into "
                        "another lake, or another lake.namespace."
                    )
