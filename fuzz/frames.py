"""The frames door: streams of frames, bodies in each serializer, and deliveries.

1. A stream is commands, or commands and then an `InvalidFrame`; cut anywhere, it is the same.
2. A body is a command or an `InvalidFrame`, and nothing is run by it.
3. Any message can be delivered in each serializer; Python's own readers read what is delivered.
4. What was published in a serializer and is delivered in it is the same message.
"""

import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from xml.etree import ElementTree

from fuzz.target import Target, streamed, unstreamed
from stafeta.doors.frames import values
from stafeta.doors.frames.codec import (
    HEAD,
    MAX_BODY,
    Command,
    Commands,
    ListTopics,
    Publish,
    Subscribe,
    Unsubscribe,
    frame,
)
from stafeta.doors.frames.deliveries import encoder
from stafeta.doors.frames.serializers import JSON, PICKLE, SERIALIZERS, XML, Serializer
from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind, RowBatch, check_payload

_MANY = 1000  # parts of a value


def streams(data: bytes) -> None:
    stream, pieces = unstreamed(data)
    assert _told(pieces) == _told([stream])


def json_bodies(data: bytes) -> None:
    _bodies(JSON, data)


def xml_bodies(data: bytes) -> None:
    _bodies(XML, data)


def pickle_bodies(data: bytes) -> None:
    _bodies(PICKLE, data)


def deliveries(data: bytes) -> None:
    kind, payload = Kind(sum(data[:1]) % len(Kind)), data[1:]
    found = _delivered("t", kind, payload)
    with suppress(InvalidMessage):  # no door publishes such a payload
        check_payload(kind, payload)
        if kind is Kind.STRING:
            assert found[JSON.code] == found[PICKLE.code] == payload.decode()
        elif kind is Kind.BYTES:
            assert found[PICKLE.code] == payload
        elif kind is not Kind.JSON:
            assert float(str(found[JSON.code])) == float(str(found[PICKLE.code])) == float(payload)
            assert found[XML.code] == payload.decode()


def python_values(data: bytes) -> None:
    """Plain values of Python come back as they were, whatever JSON makes of them on the way."""
    try:
        value = PICKLE.load(data)
        if not _small(value):
            return
        kind, payload = values.pack(value)
    except (InvalidFrame, InvalidMessage):
        return
    check_payload(kind, payload)
    again = values.unpack(kind, payload)
    assert repr(again) == repr(value) or values.pack(again) == (kind, payload)


def _small(value: object) -> bool:
    """False for what holds itself, or a part of itself very often: to be told so a million times takes days."""
    found = 0
    parts = [value]
    while parts and found < _MANY:
        part = parts.pop()
        found += 1
        if isinstance(part, dict):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set):
            parts += part
    return found < _MANY


def _bodies(serializer: Serializer, data: bytes) -> None:
    body = data[:MAX_BODY] or b" "
    with suppress(InvalidFrame):
        serializer.load(body)
    commands, ended = _told([HEAD.pack(serializer.code, len(body)) + body])
    assert ended == (not commands)
    for command in commands:
        (again,), _ = _told([_said(serializer, command)])
        assert _same(again, command)


def _same(again: Command, command: Command) -> bool:
    if not isinstance(command, Publish) or not isinstance(again, Publish):
        return again == command
    kind, payload = command.kind, command.payload
    if kind is Kind.JSON:  # the value is kept, its white space is not where it had to be written anew
        return again.kind is kind and repr(values.read(again.payload)) == repr(values.read(payload))
    if kind is Kind.FLOAT and b"." not in payload:  # JSON writes a whole number without its point, and no -0
        return again.kind in (Kind.FLOAT, Kind.INT) and int(again.payload) == int(payload)
    return again == command


def _said(serializer: Serializer, command: Command) -> bytes:
    match command:
        case Publish(topic, kind, payload):
            _delivered(topic, kind, payload)
            if serializer is JSON and kind is Kind.JSON and values.maybe_tagged(payload):
                # Tags are read by Python only; what JSON gets in their place is not what was published.
                return frame(PICKLE, {"command": "publish", "topic": topic, "message": values.read(payload)})
            return _frames(serializer, topic, kind, payload)
        case Subscribe(topic):
            return frame(serializer, {"type": "subscribe", "topic": topic})
        case Unsubscribe(topic):
            return frame(serializer, {"command": "unsubscribe", "topic": topic})
        case ListTopics():
            return frame(serializer, {"command": "listTopics"})


def _told(pieces: list[bytes]) -> tuple[list[Command], bool]:
    """The commands, and whether nothing can be read after them."""
    reader = Commands()
    commands: list[Command] = []
    try:
        for piece in pieces:
            reader.add(piece)
            while (command := reader.next()) is not None:
                commands.append(command)
    except InvalidFrame as error:
        return commands, bool(str(error).encode())
    return commands, False


def _frames(serializer: Serializer, topic: str, kind: int, payload: bytes) -> bytes:
    batch = RowBatch(topic, 1, [(1, 0, "", "", int(kind), None, payload)])
    return b"".join(encoder(serializer, "command", _cut)(batch))


def _cut(topic: str) -> None:
    """A message is cut where a frame has no room for it."""


def _delivered(topic: str, kind: int, payload: bytes) -> list[object]:
    """The message as Python's own readers read it, by serializer."""
    with suppress(UnicodeEncodeError):  # a name that the broker does not allow
        topic.encode()
        found: list[object] = []
        for serializer in SERIALIZERS:
            made = _frames(serializer, topic, kind, payload)
            code, length = HEAD.unpack_from(made)
            assert (code, length) == (serializer.code, len(made) - HEAD.size)
            fields = _READERS[code](made[HEAD.size :])
            assert (fields["command"], fields.keys()) == ("publish", {"command", "topic", "message"})
            found.append(fields["message"])
        return found
    return []


def _refuse(word: str) -> object:
    raise AssertionError(f"{word} is no JSON")


_READERS: list[Callable[[bytes], dict[str, object]]] = [
    lambda body: dict(json.loads(body, parse_constant=_refuse, parse_int=str)),
    lambda body: dict(ElementTree.fromstring(body).attrib),
    lambda body: dict(pickle.loads(body)),
]

_VALUES: list[object] = [
    "ștafetă",
    12,
    -1.5,
    True,
    None,
    [1, "a", {"b": None}],
    {"$tuple": [1]},
    "",
    10**1200,
]
_PYTHON: list[object] = [b"\xff", (1, (2,)), {1, "a"}, {1: b"", (2,): {3.5}}, float("nan"), -float("inf")]


def _body(serializer: Serializer, **fields: object) -> bytes:
    return serializer.dump(fields)


def _seeds(serializer: Serializer, messages: list[object]) -> list[bytes]:
    return [
        *(_body(serializer, command="publish", topic="/a", message=message) for message in messages),
        *(_body(serializer, type=verb, topic="/a/b") for verb in ("subscribe", "unsubscribe", "listTopics")),
    ]


TARGETS = [
    Target(
        "frames.streams",
        streams,
        [
            streamed(b"".join(HEAD.pack(one.code, len(body)) + body for body in _seeds(one, ["a", 1])))
            for one in SERIALIZERS
        ],
        600,
    ),
    Target(
        "frames.json",
        json_bodies,
        [*_seeds(JSON, _VALUES), b'{"type": "publish", "topic": "t", "message": -0E5}'],
        1000,
    ),
    Target(
        "frames.xml",
        xml_bodies,
        [
            *_seeds(XML, _VALUES),
            b'<?xml version="1.0"?><!-- --><a command="publish" topic="&#47;" message="&lt;&#10;"></a>',
            b'<!DOCTYPE a [<!ENTITY b "c">]><a command="publish" topic="t" message="&b;"/>',
        ],
        1000,
    ),
    Target(
        "frames.pickle",
        pickle_bodies,
        [
            *_seeds(PICKLE, [*_VALUES, *_PYTHON]),
            *(
                pickle.dumps({"command": "publish", "topic": "t", "message": _PYTHON}, number)
                for number in range(5)
            ),
            b"cos\nsystem\n(S'true'\ntR.",
        ],
        1000,
    ),
    Target(
        "frames.deliveries",
        deliveries,
        [
            b"\x00-007",
            b"\x01-0.00",
            b"\x021.50",
            "\x03ș".encode(),
            b'\x04{"a":[1,2.5e3,null,"\\ud800"]}',
            b'\x04{"$set":[{"$tuple":[]},[]]}',
            b'\x04{"a":NaN}',
            b"\x05\xff",
        ],
    ),
    Target(
        "frames.values",
        python_values,
        [pickle.dumps({"a": value}, 4) for value in [*_VALUES, *_PYTHON]],
        1000,
    ),
]
