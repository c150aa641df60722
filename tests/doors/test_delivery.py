"""What is made for one connection and kept for the next."""

import gc

from stafeta.doors.delivery import SHARED, Encoder
from stafeta.message import Batch, Kind, RowBatch


def test_an_encoder_holds_no_more_of_batches_than_of_what_it_made_of_them() -> None:
    encoder = Encoder(lambda batch: [b"." * batch.count], overhead=1)
    size = 1 << 20
    for offset in range(4 * SHARED // size):
        assert encoder.encode([_batch(offset, size)]) == b"."
    held = [one for one in gc.get_objects() if type(one) is RowBatch and one.topic == "held?"]
    assert sum(batch.held for batch in held) <= SHARED


def test_what_is_asked_for_again_is_made_once() -> None:
    made: list[Batch] = []

    def encode(batch: Batch) -> list[bytes]:
        made.append(batch)
        return [b"."]

    encoder = Encoder(encode, overhead=1)
    batch = _batch(0, 1000)
    assert [encoder.encode([batch]) for _ in range(3)] == [b"."] * 3
    assert made == [batch]


def _batch(offset: int, size: int) -> Batch:
    return RowBatch("held?", offset, [(offset + 1, 0, "", "", Kind.BYTES, None, bytes(size))])
