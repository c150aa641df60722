from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.columns import NAMES, TYPES, Block, ColumnBatch, joined, together
from stafeta.errors import StoreDamaged
from stafeta.message import KIND, PAYLOAD, TIME, Row, RowBatch
from stafeta.store.blocks import (
    MENDED,
    batch_of,
    checksum,
    decode,
    encode_columns,
    encode_rows,
    make_header,
    read_header,
    runs_of,
    verified,
)

ROWS = st.lists(
    st.tuples(
        st.integers(1, 1 << 62),
        st.integers(0, 1 << 50),
        st.sampled_from(["", "p", "ș"]),
        st.sampled_from(["", "127.0.0.1:1"]),
        st.integers(0, 5),
        st.none() | st.integers(-(1 << 62), 1 << 62),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=30,
)


def stored(rows: list[Row], *cuts: int) -> tuple[bytes, bytes]:
    columns, body = encode_rows(rows)
    edges = [0, *sorted(cuts), len(rows)]
    runs = [(topic, 100, b - a, 0, 0) for topic, (a, b) in enumerate(pairwise(edges))]
    return make_header(1, len(rows), columns, runs), bytes(body)


@given(ROWS, st.data())
def test_what_is_stored_comes_back(rows: list[Row], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    header, body = stored(rows, cut)
    block, _ = decode(1, header, body)
    back: list[tuple[object, ...]] = []
    for run in runs_of(1, header):
        batch = batch_of("t", block, run)
        reference = RowBatch("t", 100, rows[run.row : run.row + run.rows])
        assert batch.size == reference.size
        assert list(batch.positions) == list(reference.positions)
        if batch.count:
            assert batch.last_position == reference.last_position
            assert batch.lengths == reference.lengths
            heads = {length: b"%d:" % length for length in batch.lengths}
            assert batch.framed(heads) == reference.framed(heads)
            for index in range(len(rows[0])):
                assert batch.constant(index) in (None, reference.constant(index))
        if batch.count > 1:
            assert batch.cut(101, 102).payloads == reference.cut(101, 102).payloads
        back += zip(*(batch.column(index) for index in range(7)), strict=True)
    assert back == rows


@given(ROWS, st.data())
def test_any_flipped_bit_is_found(rows: list[Row], data: st.DataObject) -> None:
    import zlib

    header, body = stored(rows)
    expected = checksum(header, zlib.crc32(body))
    assert verified(1, header, body, expected) == (header, body)
    both = bytearray(header + body)
    bits = data.draw(st.sets(st.integers(0, len(both) * 8 - 1), min_size=1, max_size=2))
    for at in bits:
        both[at // 8] ^= 1 << at % 8
    damaged = bytes(both[: len(header)]), bytes(both[len(header) :])
    if len(bits) == 1 and len(both) <= MENDED:
        assert verified(1, *damaged, expected) == (header, body)
        assert read_header(1, damaged[0]) == read_header(1, header)
    else:
        with suppress(StoreDamaged):  # or they lie so that each is put right
            assert verified(1, *damaged, expected) == (header, body)


@given(st.lists(ROWS, min_size=1, max_size=6), st.booleans(), st.data())
def test_batches_that_are_joined_say_what_they_said_apart(
    commits: list[list[Row]], counting: bool, data: st.DataObject
) -> None:
    expected: list[Row] = []
    batches: list[ColumnBatch] = []
    base = 10
    for rows in commits:
        if counting:  # positions as a single publisher's messages have them
            rows = [(base + at, *row[1:]) for at, row in enumerate(rows)]
        header, body = stored(rows)
        run = runs_of(1, header)[0]._replace(base=base)
        batch = batch_of("t", decode(1, header, body)[0], run)
        start = data.draw(st.integers(0, len(rows) - 1)) if not batches else 0  # as a reader cuts the first
        batches.append(batch.cut(base + start, batch.end))
        expected += rows[start:]
        base += len(rows)
    assert [batch.base for batch in joined([batches[0], *batches[2:]])][1:] == [
        batch.base for batch in batches[2:3]
    ], "what is missing between two is no reason to join them"
    (joint,) = joined(batches)
    assert (joint.base, joint.count) == (batches[0].base, len(expected))
    reference = RowBatch("t", joint.base, expected)
    for index in range(len(expected[0])):
        assert list(joint.column(index)) == list(reference.column(index))
    assert joint.size == reference.size
    assert joint.last_position == reference.last_position
    middle = joint.base + joint.count // 2
    assert list(joint.cut(middle, joint.end).payloads) == list(reference.cut(middle, joint.end).payloads)


def test_a_small_part_of_a_block_does_not_keep_the_block_in_memory() -> None:
    header, body = stored([(at, 0, "", "", 3, None, bytes(1000)) for at in range(500)])
    block, runs = decode(1, header, body)
    batch = batch_of("t", block, runs[0])
    (part,) = joined([batch.cut(batch.base + 10, batch.base + 20)])
    assert part.payloads == [bytes(1000)] * 10
    assert list(part.positions) == list(range(10, 20))
    assert part.block.columns[PAYLOAD].get_total_buffer_size() < 20_000


@given(st.binary(max_size=70), st.integers(0, 2))
def test_a_message_alone_is_stored_as_arrow_has_it(payload: bytes, row: int) -> None:
    field = pa.field("payload", pa.binary(), nullable=False)
    array = pa.array([payload], pa.binary())
    expected = pa.RecordBatch.from_arrays([array], schema=pa.schema([field])).serialize().to_pybytes()
    one: Row = (5, 6, "p", "127.0.0.1:1", 3, 7, payload)
    constants = dict(zip(NAMES[:-1], one[:-1], strict=True))
    header, body = encode_rows([one])
    assert (header.constants, header.counting, bytes(body)) == (constants, {}, expected)
    around = [b"", b"x" * 9, b"yy"]
    around[row] = payload
    payloads, counters = pa.array(around, pa.binary()), range(7 - row, 10 - row)
    block = Block(3, (5 - row, 6, "p", "127.0.0.1:1", 3, counters, payloads))
    header, body = encode_columns(ColumnBatch("t", 1, 1, block, row))
    counting = {"counter": constants.pop("counter")}
    assert (header.constants, header.counting, bytes(body)) == (constants, counting, expected)


PARTS = st.lists(
    st.tuples(st.integers(1, 10**12), st.integers(0, 5), st.integers(0, 5), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(parts=PARTS)
def test_parts_of_blocks_that_are_put_together_keep_each_value(
    parts: list[tuple[int, int, int, bool]],
) -> None:
    """Each part: the position of its block's first row, the row it begins with, how many it has, and whether times and
    kinds differ within the block."""
    batches = []
    for position, row, count, spread in parts:
        rows = row + count + 1
        times: Any = pa.array(range(position, position + rows), TYPES[TIME]) if spread else position
        kinds: Any = pa.array([number % 3 for number in range(rows)], TYPES[KIND]) if spread else 1
        payloads = pa.array([b"%d %d" % (position, number) for number in range(rows)], TYPES[PAYLOAD])
        columns = (position, times, "p", f"{spread}", kinds, None, payloads)
        batches.append(ColumnBatch("t", 1, count, Block(rows, columns), row))
    block = together(batches)
    whole = ColumnBatch("t", 1, block.rows, block, 0)
    for index in range(len(NAMES)):
        wanted = [value for batch in batches for value in batch.array(index).to_pylist()]
        assert whole.array(index).to_pylist() == wanted
    assert whole.size == sum(batch.size for batch in batches)
