"""Messages as requests bring them: one as it is, or many as JSON. No sockets. (Arrow streams: arrow.py)"""

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from io import BytesIO
from json import JSONDecoder
from reprlib import repr as shown
from typing import Any, Final

import orjson

from stafeta.broker import Verbs
from stafeta.doors.http.codec import JSON, read_json
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidMessage, InvalidRequest
from stafeta.message import Kind, check_payload

MAX_MESSAGES: Final = 100_000  # of one request

PORTION: Final = 256  # messages before others get their turn
PORTION_SIZE: Final = 64 << 10  # and bytes of them
STAGED: Final = 1 << 20  # bytes that are put aside together
STAGED_ROWS: Final = 10_000  # and messages of them

Message = tuple[int, bytes]  # kind and payload


class Rows:
    """The messages of a request, which the broker takes in portions."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.count = len(messages)
        self.size = sum(len(payload) for _, payload in messages)

    def check(self, verbs: Verbs) -> None:
        """Refuses messages that are too long."""
        verbs.check_lengths([payload for _, payload in self.messages])

    def publishing(
        self, verbs: Verbs, name: str, source: str, *, keep_last: bool
    ) -> Iterator[Callable[[], tuple[int, int]]]:
        """What publishes one portion after the other, and returns the first and the last offset of each."""

        def publish(some: list[Message]) -> tuple[int, int]:
            offsets = [
                verbs.publish(name, payload, kind, source, create=True, keep_last=keep_last)
                for kind, payload in some
            ]
            return offsets[0], offsets[-1]

        return (partial(publish, some) for some in self._portions(PORTION, PORTION_SIZE))

    def staging(
        self, verbs: Verbs, name: str, source: str, producer: str, part: str
    ) -> Iterator[Callable[[], asyncio.Future[None]]]:
        """What puts one portion after the other aside for the first transaction of a producer."""
        return (
            partial(verbs.stage, producer, 0, part, name, some, source)
            for some in self._portions(STAGED_ROWS, STAGED)
        )

    def _portions(self, most: int, size: int) -> Iterator[list[Message]]:
        some: list[Message] = []
        room = size
        for message in self.messages:
            if some and (len(some) >= most or room < len(message[1])):
                yield some
                some, room = [], size
            some.append(message)
            room -= len(message[1])
        yield some

    def digest(self) -> str:
        """The same for the same messages."""
        found = sha256()
        for kind, payload in self.messages:
            found.update(b"%d %d\n" % (kind, len(payload)))
            found.update(payload)
        return found.hexdigest()[:32]


def one_message(body: bytes, type_: str, kind: str) -> Rows:
    """A body that is one message: its kind is what is named, or what its media type says."""
    return Rows([(_kind_of(body, type_, kind), body)])


def _kind_of(body: bytes, type_: str, kind: str) -> Kind:
    if kind:
        found = Kind.of(kind)
        check_payload(found, body)
        return found
    if type_ == JSON or type_.endswith("+json"):
        check_payload(Kind.JSON, body)
        return Kind.JSON
    if type_.startswith("text/") or type_ == "":
        try:
            body.decode()
        except UnicodeDecodeError:
            if type_:
                raise InvalidMessage("The body is text, but not UTF-8.") from None
            return Kind.BYTES
        return Kind.STRING
    return Kind.BYTES


def many_messages(body: bytes, *, lines: bool) -> Rows:
    """Several messages, each a JSON object: in an array, or one in each line."""
    messages: list[Message] = []
    for number, fields in enumerate(_lines(body) if lines else _array(body), 1):
        try:
            messages.append(message_of(fields))
        except (InvalidRequest, InvalidMessage) as error:
            raise type(error)(f"Message {number}: {error}") from None
    if not messages:
        raise InvalidRequest("There is no message in the body.")
    return Rows(messages)


def _lines(body: bytes) -> Iterator[Any]:
    if body.count(b"\n") > MAX_MESSAGES:  # before there is an object for each
        raise too_many()
    for number, line in enumerate(BytesIO(body), 1):
        if not line.strip():
            continue
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"Line {number} is not JSON: {error}.") from None


def _array(body: bytes) -> list[Any]:
    if body.count(b",") >= MAX_MESSAGES:
        _check_elements(body)
    array = read_json(body)
    if not isinstance(array, list):
        raise InvalidRequest("The body must be a JSON array of messages.")
    return array


_SPACE: Final = re.compile(r"[ \t\r\n]*")


def _check_elements(body: bytes) -> None:
    """Refuses an array of too many elements, of which only one is in memory at a time. Whatever else may be wrong is
    found when it is read as a whole."""
    try:
        text = body.decode()
        at = _after_space(text, 0)
        decode, before = JSONDecoder().raw_decode, "["
        for _ in range(MAX_MESSAGES):
            if text[at] != before:
                return
            _, end = decode(text, _after_space(text, at + 1))
            at, before = _after_space(text, end), ","
    except (ValueError, IndexError, RecursionError):
        raise InvalidRequest("The body is not JSON, or nested too deeply.") from None
    if text[at : at + 1] == ",":
        raise too_many()


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def too_many() -> HttpProblem:
    return HttpProblem(
        413,
        f"There are more messages in the body than go in one request, {MAX_MESSAGES}. Send them in several.",
    )


_MEMBERS: Final = frozenset({"payload", "kind", "encoding", "value"})


def message_of(fields: object) -> Message:
    """A message of `payload`, `kind` and `encoding`, or any JSON as `value`."""
    if not isinstance(fields, dict):
        raise InvalidRequest("It must be an object with payload or value.")
    for name in fields:
        if name not in _MEMBERS:
            raise InvalidRequest(
                f"There is no member {shown(name)}; there are payload, kind, encoding and value."
            )
    if "value" in fields:
        if len(fields) > 1:
            raise InvalidRequest("A value stands alone: its kind is json.")
        try:
            # A copy: what orjson returns keeps the kilobytes that it was written into, for each message.
            return Kind.JSON, bytes(memoryview(orjson.dumps(fields["value"])))
        except orjson.JSONEncodeError as error:  # it reads deeper nesting than it writes
            raise InvalidMessage(f"It cannot be stored: {error}.") from None
    payload, encoding = fields.get("payload"), fields.get("encoding")
    if not isinstance(payload, str):
        raise InvalidRequest("Its payload must be text; any other JSON is a value.")
    if encoding is None:
        try:
            data = payload.encode()
        except UnicodeEncodeError:
            raise InvalidMessage("Its payload has half a surrogate pair in it, which is no text.") from None
    elif encoding == "base64":
        try:
            data = b64decode(payload, validate=True)
        except ValueError:
            raise InvalidMessage("Its payload is not base64.") from None
    else:
        raise InvalidRequest(f"Its encoding is {shown(encoding)}; it must be base64, or left out.")
    default = "string" if encoding is None else "bytes"
    kind = Kind.of(fields.get("kind", default))
    check_payload(kind, data)
    return kind, data
