"""The devices door: datagrams, what subscribers say, and what they are told.

1. A datagram is a reading or an `InvalidDatagram`; a reading written out again is the same reading, in the same bytes.
2. Any message can be told to a device: whole, or as a string that begins with what it says.
3. Whatever a subscriber or a broker sends is read, or an `InvalidCommand` or `InvalidDelivery` ends it.
4. A stream cut anywhere is read as the same stream in one piece, and what was read can be written again.
"""

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

from fuzz.target import Target, streamed, unstreamed
from stafeta.doors.devices import struct_dialect, text_dialect
from stafeta.doors.devices.codec import Command, Commands, Identify, ReceivedMessage, Subscribe, Unsubscribe
from stafeta.doors.devices.deliveries import DeliveryReader
from stafeta.doors.devices.readings import HEAD, MAX_CONTENT, READERS, content, read, write
from stafeta.errors import InvalidCommand, InvalidDatagram, InvalidDelivery, InvalidMessage, InvalidName
from stafeta.message import Kind, Row, RowBatch, check_payload

_NUMBERS = (Kind.INT, Kind.SHORT_REAL, Kind.FLOAT)
_SIZES = {Kind.INT: 5, Kind.SHORT_REAL: 2, Kind.FLOAT: 6}


def datagrams(data: bytes) -> None:
    try:
        topic, kind, payload = read(data)
    except InvalidDatagram as error:
        str(error).encode()
        return
    check_payload(kind, payload)
    written = write(topic, kind, payload)
    assert read(written) == (topic, kind, payload)
    negative_zero = kind in (Kind.INT, Kind.FLOAT) and not any(data[HEAD + 1 : HEAD + 5])
    if kind in _SIZES and not negative_zero:
        assert written[HEAD:] == data[HEAD : HEAD + _SIZES[kind]]


def contents(data: bytes) -> None:
    kind, payload = Kind(sum(data[:1]) % len(Kind)), data[1:]
    type_, body, changed = content(kind, payload)
    assert len(body) <= MAX_CONTENT
    if changed:
        assert type_ == Kind.STRING
        assert payload.startswith(body)
    elif type_ == Kind.STRING:
        assert body == payload
    else:
        _, told = READERS[type_](body)
        with suppress(InvalidMessage):  # no door publishes such a payload
            check_payload(kind, payload)
            assert Decimal(told.decode()) == Decimal(payload.decode())
            assert told.partition(b".")[2] == payload.partition(b".")[2]


def text_commands(data: bytes) -> None:
    _commands(data[:4] + text_dialect.MARK + data[4:])


def struct_commands(data: bytes) -> None:
    _commands(data)


def text_deliveries(data: bytes) -> None:
    _deliveries(data, text_dialect.Deliveries, text_dialect.frames)


def struct_deliveries(data: bytes) -> None:
    _deliveries(data, struct_dialect.Deliveries, struct_dialect.frames)


def _commands(data: bytes) -> None:
    stream, pieces = unstreamed(data)
    commands, ended = _told([stream])
    assert _told(pieces) == (commands, ended)
    if commands:
        said = [command for command in commands if isinstance(command, Identify | Subscribe | Unsubscribe)]
        assert _told([b"".join(map(_as_text, said))]) == (said, False)
        with suppress(InvalidName):
            assert _told([b"".join(map(_as_struct, said))]) == (said, False)


def _told(pieces: list[bytes]) -> tuple[list[Command], bool]:
    """The commands, and whether nothing can be read after them."""
    reader = Commands()
    commands: list[Command] = []
    try:
        for piece in pieces:
            commands += reader.take(piece)
    except InvalidCommand as error:
        return [*commands, *error.before], bool(str(error).encode())
    return commands, False


def _as_text(command: Command) -> bytes:
    match command:
        case Identify(client):
            return text_dialect.identify(client)
        case Subscribe(topic, sf):
            return text_dialect.subscribe(topic, sf)
        case Unsubscribe(topic):
            return text_dialect.unsubscribe(topic)
    raise AssertionError(f"nobody says {command}")


def _as_struct(command: Command) -> bytes:
    match command:
        case Identify(client):
            return struct_dialect.identify(client)
        case Subscribe(topic, sf):
            return struct_dialect.subscribe("c", topic, sf)
        case Unsubscribe(topic):
            return struct_dialect.unsubscribe("c", topic)
    raise AssertionError(f"nobody says {command}")


_Frames = Callable[[RowBatch, Callable[[], None]], list[bytes]]


def _deliveries(data: bytes, reader: Callable[[], DeliveryReader], frames: _Frames) -> None:
    stream, pieces = unstreamed(data)
    deliveries, ended = _received(reader(), [stream])
    assert _received(reader(), pieces) == (deliveries, ended)
    for delivery in filter(_named, deliveries):
        again = b"".join(frames(_batch(delivery), _never))
        ((_, _, *said),), ended = _received(reader(), [again])
        assert (said, ended) == ([*delivery[2:]], False)


def _named(delivery: ReceivedMessage) -> bool:
    """Whether its topic is one that a broker can have."""
    return bool(delivery.topic) and not any("\ud800" <= char <= "\udfff" for char in delivery.topic)


def _received(reader: DeliveryReader, pieces: list[bytes]) -> tuple[list[ReceivedMessage], bool]:
    """The deliveries, and whether nothing can be read after them."""
    deliveries: list[ReceivedMessage] = []
    try:
        for piece in pieces:
            deliveries += reader.take(piece)
    except InvalidDelivery as error:
        return [*deliveries, *error.before], bool(str(error).encode())
    return deliveries, False


def _batch(delivery: ReceivedMessage) -> RowBatch:
    source = f"{delivery.ip}:{delivery.port}"
    payload = delivery.value.encode(errors="surrogateescape")
    row: Row = (1, 0, "", source, int(Kind[delivery.kind]), None, payload)
    return RowBatch(delivery.topic, 1, [row])


def _never() -> None:
    raise AssertionError("what a device was told can be told to a device")


_READINGS = [
    ("t", Kind.INT, b"-4294967295"),
    ("a/b", Kind.SHORT_REAL, b"655.35"),
    ("x" * 50, Kind.FLOAT, b"-1234.4321"),
    ("ș", Kind.FLOAT, b"0." + b"0" * 254 + b"7"),
    ("s", Kind.STRING, "ștafetă".encode()),
    ("s", Kind.BYTES, b"\xff\xfe"),
]
_COMMANDS: list[Command] = [
    Identify("C1"),
    Subscribe("a/+/b", True),
    Subscribe("ș", False),
    Unsubscribe("a/+/b"),
]
_BATCHES = [
    RowBatch(topic, 1, [(1, 0, "", "127.0.0.1:4242", int(kind), None, payload)])
    for topic, kind, payload in _READINGS
]


def _stream(frames: _Frames) -> bytes:
    return b"".join(frame for batch in _BATCHES for frame in frames(batch, _never))


TARGETS = [
    Target("devices.datagrams", datagrams, [write(*reading) for reading in _READINGS]),
    Target(
        "devices.contents",
        contents,
        [
            *(bytes([kind]) + payload for _, kind, payload in _READINGS),
            b"\x00" + b"9" * 1600,
            b"\x01-0.00",
            b"\x05" + "ș".encode() * 800,
        ],
    ),
    Target("devices.text_commands", text_commands, [streamed(b"".join(map(_as_text, _COMMANDS))[2:])], 600),
    Target(
        "devices.struct_commands", struct_commands, [streamed(b"".join(map(_as_struct, _COMMANDS)))], 1100
    ),
    Target("devices.text_deliveries", text_deliveries, [streamed(_stream(text_dialect.frames))], 1600),
    Target(
        "devices.struct_deliveries",
        struct_deliveries,
        [streamed(_stream(struct_dialect.frames)[:3170])],
        3300,
    ),
]
