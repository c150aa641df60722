"""What a Python value becomes in the log, and what a stored message becomes in Python. (docs/values.md)

1. Text is a string, bytes are bytes, a whole number is an int, any other number a float; None, True, False, lists and
   dictionaries with text for keys are JSON.
2. What JSON has no word for is JSON with tags: `{"$tuple": […]}`, `{"$set": […]}`, `{"$bytes": base64}`,
   `{"$dict": [[key, value], …]}`, `{"$float": "nan"}`. An ordinary dictionary that reads like a tag is itself written
   as `$dict`, so that nothing is ambiguous.
3. A stranger's value may contain itself, or one part a million times over. Written out it is at most `MAX_DEPTH` deep
   and `MAX_SIZE` large.
4. Whatever another door has stored can be read: what is not of the kind that it claims is its text.
"""

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final, cast

from stafeta.errors import InvalidMessage
from stafeta.message import Kind

MAX_DEPTH: Final = 200
MAX_SIZE: Final = 1 << 20
_PART: Final = 8  # bytes that each of its parts is counted for, beside its length
MAX_DIGITS: Final = 1000  # of a number that is kept as one
MAX_INT_DIGITS: Final = (
    4300  # what Python itself converts between digits and int (sys.set_int_max_str_digits)
)
_MAX_EXPONENT: Final = 2 * MAX_DIGITS

_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_SCALARS: Final = (bool, int, float, str, bytes, type(None))


# --- into the log


def pack(value: object) -> tuple[Kind, bytes]:
    """The kind and payload of a plain value. Raises `InvalidMessage`."""
    kind = type(value)
    if kind is str:
        try:
            return Kind.STRING, cast("str", value).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape
            return Kind.JSON, write(value)
    if kind is bytes:
        return Kind.BYTES, cast("bytes", value)
    if kind is int:
        return number(_digits(cast("int", value)))
    if kind is float and math.isfinite(cast("float", value)):
        return number(repr(value))
    return Kind.JSON, write(_Tagging().tagged(value, 0))


def number(text: str) -> tuple[Kind, bytes]:
    """A number as JSON or Python writes it: an int or a float of the same digits, without an exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, point, decimals = mantissa.partition(".")
    if exponent:
        if len(exponent) > len(str(-_MAX_EXPONENT)):
            return Kind.JSON, text.encode()
        whole, decimals = _shifted(whole, decimals, int(exponent))
    if len(whole.lstrip("-")) > MAX_DIGITS or len(decimals) > MAX_DIGITS:
        return Kind.JSON, text.encode()
    if not point and not exponent:
        return Kind.INT, b"0" if whole == "-0" else whole.encode()
    return Kind.FLOAT, (f"{whole}.{decimals}" if decimals else whole).encode()


def _shifted(whole: str, decimals: str, exponent: int) -> tuple[str, str]:
    sign = "-" if whole.startswith("-") else ""
    whole = whole.lstrip("-")
    if exponent >= 0:
        decimals = decimals.ljust(exponent, "0")
        whole, decimals = whole + decimals[:exponent], decimals[exponent:]
    else:
        whole = whole.rjust(1 - exponent, "0")
        whole, decimals = whole[:exponent], whole[exponent:] + decimals
    return sign + (whole.lstrip("0") or "0"), decimals


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        raise InvalidMessage(
            f"A whole number has more than {MAX_INT_DIGITS:,} digits; none that is so long can be kept."
        ) from None


class _Tagging:
    """Makes JSON of one value, and keeps count of how large it becomes."""

    def __init__(self) -> None:
        self._left = MAX_SIZE

    def tagged(self, value: object, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise InvalidMessage(f"The value is nested more than {MAX_DEPTH} deep, or contains itself.")
        kind = type(value)
        self._left -= _PART + _length(value)
        if self._left < 0:
            raise InvalidMessage(f"The value is larger than {MAX_SIZE:,} bytes when it is written out.")
        below = depth + 1
        if kind is list:
            return self._all(cast("list[object]", value), below)
        if kind is dict:
            return self._dictionary(cast("dict[object, object]", value), below)
        if kind is tuple:
            return {"$tuple": self._all(cast("tuple[object]", value), below)}
        if kind is set:
            return {"$set": sorted(self._all(cast("set[object]", value), below), key=write)}
        return _scalar(value)

    def _all(self, values: Iterable[object], depth: int) -> list[object]:
        return [self.tagged(value, depth) for value in values]

    def _dictionary(self, value: dict[object, object], depth: int) -> object:
        if all(type(key) is str for key in value) and not reads_like_a_tag(value):
            return {self.tagged(key, depth): self.tagged(one, depth) for key, one in value.items()}
        return {"$dict": [[self.tagged(key, depth), self.tagged(one, depth)] for key, one in value.items()]}


def _length(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return value.bit_length() // 3 if isinstance(value, int) else 0


def _scalar(value: object) -> object:
    kind = type(value)
    if kind is bytes:
        return {"$bytes": b64encode(cast("bytes", value)).decode()}
    if kind is float and not math.isfinite(cast("float", value)):
        return {"$float": str(value)}
    if kind is int:
        _digits(cast("int", value))
    elif kind not in _SCALARS:
        raise InvalidMessage(
            f"A value of the type {kind.__name__} is no plain data; those are None, bool, int, float, str, bytes, "
            "list, tuple, dict and set."
        )
    return value


def write(value: object) -> bytes:
    """JSON text. Half a surrogate pair is escaped, since UTF-8 cannot carry it."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


# --- out of the log


def unpack(kind: object, payload: bytes) -> object:
    """The value that was published: exactly, where it came from Python."""
    try:
        match kind:
            case Kind.BYTES:
                return payload
            case Kind.JSON:
                return read(payload)
            case Kind.INT:
                return whole_number(payload.decode())
            case Kind.SHORT_REAL | Kind.FLOAT:
                return float(payload)
    except (ValueError, RecursionError):
        pass
    return text(payload)


def text(payload: bytes) -> str:
    """What a person reads: stray bytes as `\\xNN`."""
    return payload.decode(errors="backslashreplace")


def whole_number(digits: str) -> int | str:
    """An int, as long as Python converts it; beyond that its digits."""
    return int(digits) if len(digits) <= MAX_INT_DIGITS else digits


def maybe_tagged(payload: bytes) -> bool:
    """False for nearly all JSON, without reading it."""
    return b'"$' in payload or b"\\u0024" in payload


def read(payload: bytes) -> object:
    """The value of JSON text, tags included. Raises `ValueError` or `RecursionError`."""
    hook = _untagged if maybe_tagged(payload) else None
    if len(payload) <= MAX_INT_DIGITS:
        return json.loads(payload, object_hook=hook)
    return json.loads(payload, object_hook=hook, parse_int=whole_number)


def reads_like_a_tag(value: dict[Any, Any]) -> bool:
    """True for what `_untagged` makes something else of."""
    if len(value) != 1:
        return False
    ((tag, content),) = value.items()
    match tag:
        case "$tuple" | "$set":
            return type(content) is list
        case "$dict":
            return type(content) is list and all(type(pair) is list and len(pair) == 2 for pair in content)
        case "$bytes":
            return type(content) is str and _BASE64.fullmatch(content) is not None
        case "$float":
            return type(content) is str and content in _FLOATS
    return False


def _untagged(value: dict[str, Any]) -> object:
    if not reads_like_a_tag(value):
        return value
    ((tag, content),) = value.items()
    try:
        match tag:
            case "$tuple":
                return tuple(content)
            case "$set":
                return set(content)
            case "$dict":
                return dict(content)
            case "$bytes":
                return b64decode(content)
    except TypeError:  # a list in a set, or for a key: another door's, that is no tag
        return value
    return _FLOATS[content]


def nearest_json(value: object) -> object:
    """What comes closest among the values that JSON has."""
    match value:
        case list() | tuple():
            return [nearest_json(one) for one in value]
        case set():
            return sorted((nearest_json(one) for one in value), key=write)
        case dict():
            return {_key(key): nearest_json(one) for key, one in value.items()}
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return None
    return value


def _key(value: object) -> str:
    nearest = nearest_json(value)
    return nearest if isinstance(nearest, str) else write(nearest).decode()
