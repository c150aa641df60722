"""Bodies in JSON: one object.

1. A published message is kept as the text in which it came: a number keeps its digits, however many, and an object its
   spaces.
2. `NaN` and `Infinity`, which Python writes where it should not, are no JSON.
"""

import json
import re
from typing import Any, ClassVar, Final, NoReturn

from stafeta.doors.frames import values
from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind

_WHITE: Final = re.compile(r"[ \t\n\r]+")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# Numbers stay text: those who want them as such take their digits from there.
_decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_no_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_ascii_encoder = json.JSONEncoder(allow_nan=False)


def is_json(text: bytes) -> bool:
    try:
        _decoder.decode(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


class JsonBodies:
    name: ClassVar[str] = "JSON"
    code: ClassVar[int] = 0

    def check(self, value: object) -> None:
        """`dump` does it."""

    def dump(self, fields: dict[str, object]) -> bytes:
        try:
            try:
                return _encoder.encode(fields).encode()
            except UnicodeEncodeError:  # half a surrogate pair
                return _ascii_encoder.encode(fields).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(f"JSON cannot carry this: {error}.") from None

    def load(self, body: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(body.decode(), parse_int=values.whole_number, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise _unreadable(error) from None
        if not isinstance(fields, dict):
            raise InvalidFrame("The body is JSON, but no object.")
        return fields

    def read(self, body: bytes) -> dict[str, Any]:
        try:
            return _fields(body.decode())
        except (ValueError, RecursionError) as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> InvalidFrame:
    if isinstance(error, RecursionError):
        return InvalidFrame("The body is nested too deep.")
    if isinstance(error, UnicodeDecodeError):
        return InvalidFrame(f"The body is not UTF-8: byte {error.start + 1} cannot be read.")
    return InvalidFrame(f"The body is not JSON: {error}.")


def _fields(text: str) -> dict[str, Any]:
    """The members of an object; of the message its text is taken, too."""
    fields: dict[str, Any] = {}
    at = _past(text, 0, "{")
    if not text.startswith("}", at):
        while True:
            if not text.startswith('"', at):
                raise ValueError(f"a key is missing at character {at + 1}")
            key, end = _decoder.raw_decode(text, at)
            at = _past(text, end, ":")
            value, end = _decoder.raw_decode(text, at)
            fields[key] = _message(value, text[at:end]) if key == "message" else value
            at = _white(text, end)
            if not text.startswith(",", at):
                break
            at = _past(text, at, ",")
    if _past(text, at, "}") < len(text):
        raise ValueError(f"something follows the object, at character {at + 2}")
    return fields


def _past(text: str, at: int, sign: str) -> int:
    """Where the text goes on after this sign and white space around it."""
    at = _white(text, at)
    if not text.startswith(sign, at):
        raise ValueError(f"{sign!r} is missing at character {at + 1}")
    return _white(text, at + 1)


def _white(text: str, at: int) -> int:
    """Where white space that begins here ends."""
    found = _WHITE.match(text, at)
    return found.end() if found else at


def _message(value: object, text: str) -> tuple[Kind, bytes]:
    first = text[0]
    if first == '"':
        return values.pack(value)
    if first in "-0123456789":
        return values.number(text)
    if first in "[{":
        if text.count("[") + text.count("{") > values.MAX_DEPTH:
            _check_depth(value)
        if values.maybe_tagged(text.encode()) and _has_tags(text):
            return values.pack(json.loads(text))
    return Kind.JSON, text.encode()


def _check_depth(value: object) -> None:
    """Level by level, since it may be as deep as the decoder goes."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        if depth > values.MAX_DEPTH + 1:
            raise InvalidFrame(f"The message is nested more than {values.MAX_DEPTH} deep.")
        level = [
            part
            for one in level
            if isinstance(one, list | dict)
            for part in (one.values() if isinstance(one, dict) else one)
        ]


def _has_tags(text: str) -> bool:
    found = False

    def look(value: dict[str, Any]) -> dict[str, Any]:
        nonlocal found
        found = found or values.reads_like_a_tag(value)
        return value

    json.loads(text, object_hook=look, parse_float=str, parse_int=str)
    return found
