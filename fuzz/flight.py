"""The Flight door: what is said beside Arrow data, and which Arrow data is taken.

1. Tickets, descriptors, metadata, criteria and bodies are read, or refused by an error that is short enough to tell.
2. The ticket of an endpoint is read as what it was made of.
3. A batch is taken as it came if every payload is what its kind says, and is refused if one is not.
"""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from fuzz.target import Target
from stafeta.doors.flight import codec
from stafeta.doors.flight.codec import MORE_COLUMNS, Body, Range, Ticket
from stafeta.doors.flight.decode_batches import check_schema, take
from stafeta.errors import InvalidMessage, StafetaError
from stafeta.message import COLUMNS, KIND, Kind, check_payload

_LONGEST_ERROR = 4000  # bytes, as it is told: gRPC carries 8 KiB or more
_LARGEST = 8 << 20  # bytes of a payload
_NOW = 1_800_000_000_000_000


def tickets(data: bytes) -> None:
    for said in (data, _composed(data, _TICKETS)):
        ticket = _read(codec.read_ticket, said)
        if ticket is None:
            continue
        assert (ticket.topic is None) != (ticket.filter is None)
        assert ticket.client is None or ticket.filter is not None
        assert ticket.columns
        assert set(ticket.columns) <= {*COLUMNS, *MORE_COLUMNS}
        assert ticket.batch_rows >= 1
        assert ticket.limit is None or ticket.limit >= 0
        _round_trip(ticket)


def _round_trip(ticket: Ticket) -> None:
    start, stop, *_ = ticket.range
    if ticket.topic is not None and start is not None and stop is not None and start >= 0:
        again = Ticket(topic=ticket.topic, range=Range(start, stop))
        assert codec.read_ticket(again.encode()) == again


def descriptions(data: bytes) -> None:
    for said in (data, _composed(data, _TICKETS)):
        found = _read(codec.read_description, said)
        if found is not None:
            assert (found.topic is None) != (found.filter is None)
            assert found.partitions is None or found.partitions >= 1
    _read(codec.topic_of, data.split(b"\0"))


def puts(data: bytes) -> None:
    for said in (data, _composed(data, _TARGETS)):
        target = _read(codec.read_target, [], said)
        if target is not None and target.stage is not None:
            assert target.stage.counter >= 0
        note = _read(codec.read_note, said)
        if note is not None:
            assert note.sequence is None or 1 <= note.sequence < 1 << 63
        _read(codec.read_criteria, said)


def bodies(data: bytes) -> None:
    for said in (data, _composed(data, [*_TICKETS, *_TARGETS])):
        for take_ in _TAKES:
            _read(_taken, take_, said)


def batches(data: bytes) -> None:
    """The first two bytes say the kind and the Arrow type; payloads are parted by \\xfe."""
    kind, type_ = Kind(sum(data[:1]) % len(Kind)), _TYPES[sum(data[1:2]) % len(_TYPES)]
    payloads = data[2:].split(b"\xfe")
    array = _array(payloads, type_)
    kinds = pa.array([kind.word] * len(payloads))
    if sum(data[:1]) & 0x80:  # as one of several kinds in the batch
        array, kinds = _beside(array), pa.concat_arrays([kinds, pa.array(["bytes"])])
        payloads = [*payloads, b"\0"]
    batch: Any = pa.RecordBatch.from_arrays([array, kinds], names=["payload", "kind"])
    right = _all_right(kind, payloads[: len(kinds) - bool(sum(data[:1]) & 0x80)])
    check_schema(batch.schema)
    taken = _read(take, batch, "t", _NOW, _LARGEST)
    assert (taken is not None) == right
    if taken is not None:
        assert list(taken.payloads) == payloads
        words = [Kind(one).word for one in taken.column(KIND)]
        assert words == kinds.to_pylist()


def _all_right(kind: Kind, payloads: list[bytes]) -> bool:
    try:
        for payload in payloads:
            check_payload(kind, payload)
    except InvalidMessage:
        return False
    return True


def _array(payloads: list[bytes], type_: Any) -> Any:
    array: Any = pa.array(payloads, pa.binary())
    if type_ is _DICTIONARY:
        return array.dictionary_encode()
    try:
        return array.cast(type_)
    except pa.ArrowInvalid:  # is no text
        return array


def _beside(array: Any) -> Any:
    """With one more payload, of bytes."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return pa.concat_arrays([array, pa.array([b"\0"]).cast(array.type)])


def _read(reading: Callable[..., Any], *said: object) -> Any:
    """What was read; None where it is refused."""
    try:
        return reading(*said)
    except StafetaError as error:
        refusal = error
    told = codec.write_error(refusal)
    assert len(told) < _LONGEST_ERROR
    assert json.loads(told)["message"] == str(refusal)
    return None


def _taken(take_: Callable[[Body], object], said: bytes) -> object:
    return take_(Body(said, "body"))


def _composed(data: bytes, details: list[tuple[str, Any]]) -> bytes:
    """An object whose parts the bytes choose: few bytes that are chosen blindly are JSON."""
    return json.dumps(dict(details[at % len(details)] for at in data[:8])).encode()


def _end(body: Body) -> None:
    body.text("topic")
    body.end()


_TAKES: list[Callable[[Body], object]] = [
    _end,
    lambda body: body.text("topic", optional=True),
    lambda body: body.flag("follow"),
    lambda body: body.texts("columns"),
    lambda body: body.items("columns"),
    lambda body: body.part("stage"),
    lambda body: body.number("from", least=0),
    lambda body: body.time("from_time"),
]
_NAMES: list[object] = ["t", "a/#", "", 12, None, "ș", "\ud800", "x" * 3000, {"a": ["y" * 100]}]
_NUMBERS: list[object] = [0, 1, 7, -1, 1 << 62, 1 << 63, 1 << 80, 0.25, 1e300, None, True, "1"]
_TIMES: list[object] = [
    "2026-01-02T03:04:05Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-02",
]
_LISTS: list[object] = [[], ["payload"], [*COLUMNS], ["payload", "payload"], ["colour"], [1], "payload", None]
_TICKETS: list[tuple[str, Any]] = [
    *((key, name) for key in ("topic", "filter", "client") for name in _NAMES),
    *((key, number) for key in ("from", "to", "limit", "batch_rows", "partitions") for number in _NUMBERS),
    *((key, time) for key in ("from_time", "to_time") for time in [*_TIMES, *_NUMBERS]),
    *(("columns", columns) for columns in _LISTS),
    *(("follow", value) for value in (True, False, 1, None)),
    *(("from", word) for word in ("earliest", "latest", "middle")),
    ("colour", "red"),
]
_TARGETS: list[tuple[str, Any]] = [
    *((key, name) for key in ("topic", "producer", "filter") for name in _NAMES),
    *(("sequence", number) for number in _NUMBERS),
    *(("stage", {"producer": "p", "counter": number, "part": "a"}) for number in _NUMBERS),
    *(("stage", {"producer": name, "counter": 1, "part": name}) for name in _NAMES),
    ("stage", {"producer": "p", "counter": 1}),
    ("stage", {"producer": "p", "counter": 1, "part": "a", "more": 1}),
    ("colour", "red"),
]
_DICTIONARY = object()
_TYPES: list[Any] = [
    pa.binary(),
    pa.utf8(),
    pa.large_binary(),
    pa.large_utf8(),
    pa.binary_view(),
    pa.string_view(),
    _DICTIONARY,
]

_SEEDS = [
    b"t",
    b'{"topic": "t", "from": 3, "to": 9}',
    b'{"filter": "a/+/#", "from": "latest", "follow": true, "columns": ["payload", "position"]}',
    b'{"client": "c", "filter": "a/#", "limit": 5, "batch_rows": 100}',
    b'{"topic": "t", "from_time": "2026-01-02T03:04:05.678901+02:00", "to_time": 1767323045000000}',
    b'{"topic": "t", "partitions": 4}',
    b'{"topic":' + b"[" * 2000,
]

TARGETS = [
    Target("flight.tickets", tickets, _SEEDS, 1000),
    Target("flight.descriptions", descriptions, _SEEDS, 1000),
    Target(
        "flight.puts",
        puts,
        [
            b'{"topic": "t", "producer": "p"}',
            b'{"topic": "t", "stage": {"producer": "p", "counter": 1, "part": "a"}}',
            b'{"sequence": 12, "topic": "t"}',
            b'{"filter": "a/#"}',
        ],
        1000,
    ),
    Target("flight.bodies", bodies, _SEEDS, 1000),
    Target(
        "flight.batches",
        batches,
        [
            b"\x00\x00-12\xfe007\xfe" + b"9" * 1000,
            b"\x00\x001\n",
            b"\x01\x0121.50\xfe-0.00",
            b"\x02\x021234.4321\xfe1500",
            b"\x03\x03" + "ștafetă".encode() + b"\xfe" + "🙂".encode(),
            b'\x04\x04{"a": [1, null]}\xfe"\\ud800"\xfe1e400',
            b"\x84\x05{}\xfeNaN",
            b"\x05\x06\xff\xfe\x00",
            b"\x03\x00\xc3",
        ],
        1500,
    ),
]
