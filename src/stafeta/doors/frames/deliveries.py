"""Messages as subscribers get them: batches to frames, in each serializer. (docs/values.md)

1. A number goes out with the digits it has, JSON as the text it is, text as text.
2. What a frame has no room for is text, cut between two characters to what fits.
3. No message can be so strange that those after it do not go out.
"""

import pickle
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeAlias

import orjson

from stafeta.doors.frames import values
from stafeta.doors.frames.codec import HEAD, MAX_BODY
from stafeta.doors.frames.json_bodies import is_json
from stafeta.doors.frames.pickle_bodies import PROTOCOL
from stafeta.doors.frames.serializers import JSON, PICKLE, XML, Serializer
from stafeta.doors.frames.xml_bodies import attribute
from stafeta.message import KIND, Batch, Kind

OVERHEAD: Final = 64  # bytes that a message takes beside its payload, about
MAX_ENCODABLE: Final = 4 << 20  # bytes of payload of which no serializer makes so little that it fits

# A batch's topic and the key of the verb make this: kind and payload to the body of a frame.
Writer: TypeAlias = Callable[[object, bytes], bytes]

_NUMBER: Final = re.compile(rb"(-?)0*(\d+(?:\.\d+)?)")
_CANONICAL: Final = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?")


def encoder(serializer: Serializer, key: str, cut: Callable[[str], None]) -> Callable[[Batch], list[bytes]]:
    """Makes the frames of a batch's messages. `cut` is called with the topic of each message that had to be cut."""
    code = serializer.code
    make = _WRITERS[code]

    def frames(batch: Batch) -> list[bytes]:
        write = make(key, batch.topic)
        made: list[bytes] = []
        for kind, payload in zip(batch.column(KIND), batch.payloads, strict=True):
            body = write(kind, payload) if len(payload) < MAX_ENCODABLE else payload
            if len(body) > MAX_BODY:
                body = _cut(write, payload)
                cut(batch.topic)
            made.append(HEAD.pack(code, len(body)) + body)
        return made

    return frames


def _cut(write: Writer, payload: bytes) -> bytes:
    text = values.text(payload[: MAX_BODY + 1])  # a character takes at least the bytes that it has here

    def body(count: int) -> bytes:
        return write(Kind.STRING, text[:count].encode())

    return body(bisect_right(range(len(text)), MAX_BODY, key=lambda count: len(body(count))) - 1)


# --- JSON


def _json_writer(key: str, topic: str) -> Writer:
    head = b'{"%b":"publish","topic":%b,"message":' % (key.encode(), orjson.dumps(topic))

    def write(kind: object, payload: bytes) -> bytes:
        return b"%b%b}" % (head, _json_value(kind, payload))

    return write


def _json_value(kind: object, payload: bytes) -> bytes:
    match kind:
        case Kind.JSON:
            return _embedded(payload)
        case Kind.INT | Kind.SHORT_REAL | Kind.FLOAT if digits := _json_number(payload):
            return digits
    try:
        return orjson.dumps(payload.decode())
    except UnicodeDecodeError:
        return b'"%b"' % b64encode(payload)


def _json_number(payload: bytes) -> bytes | None:
    """JSON has no zeros in front, and no less than nothing of a whole zero. None where it is no number at all."""
    if _CANONICAL.fullmatch(payload) and payload != b"-0":
        return payload
    found = _NUMBER.fullmatch(payload)
    if found is None:
        return None
    return found[2] if found[2] == b"0" else found[1] + found[2]


def _embedded(payload: bytes) -> bytes:
    if not values.maybe_tagged(payload) and _is_json(payload):
        return payload
    try:
        return values.write(values.nearest_json(values.read(payload)))
    except (ValueError, RecursionError):
        return orjson.dumps(values.text(payload))


def _is_json(payload: bytes) -> bool:
    """Other doors may have been less strict."""
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return is_json(payload)  # orjson is stricter than JSON is: no huge numbers, no half surrogate pairs
    return True


# --- XML


def _xml_writer(key: str, topic: str) -> Writer:
    head = f'<message {key}="publish" topic="{attribute(topic)}" message="'

    def write(kind: object, payload: bytes) -> bytes:
        text = values.text(payload)
        if kind == Kind.JSON and values.maybe_tagged(payload):
            text = values.text(_embedded(payload))
        return f'{head}{attribute(text)}" />'.encode()

    return write


# --- pickle


def _pickle_writer(key: str, topic: str) -> Writer:
    def write(kind: object, payload: bytes) -> bytes:
        try:
            return pickle.dumps(
                {key: "publish", "topic": topic, "message": values.unpack(kind, payload)}, PROTOCOL
            )
        except RecursionError:
            return pickle.dumps({key: "publish", "topic": topic, "message": values.text(payload)}, PROTOCOL)

    return write


_WRITERS: Final = {JSON.code: _json_writer, XML.code: _xml_writer, PICKLE.code: _pickle_writer}
