"""What a device publishes: one reading a datagram. (docs/protocols/devices.md)

1. A datagram is a topic (50 bytes, padded with NUL), a type (1 byte) and a content of at most 1500 bytes.
2. A number is read as its exact decimal text and written from it; it never is a binary floating point number.
3. There is no negative zero. Bytes after a number's content mean nothing.
4. A string ends at the first NUL. One that is not UTF-8 is of the kind bytes, and goes out again as it came.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

from stafeta.errors import InvalidDatagram, InvalidMessage, InvalidName
from stafeta.message import Kind, check_payload
from stafeta.names import check_name

TOPIC_BYTES: Final = 50
HEAD: Final = TOPIC_BYTES + 1
MAX_CONTENT: Final = 1500
KNOWN: Final = 20_000  # heads remembered

Reader: TypeAlias = Callable[[bytes], tuple[Kind, bytes]]

# Looked up once: an enumeration's members are slow to get at.
_INT, _SHORT_REAL, _FLOAT, _STRING, _BYTES = Kind.INT, Kind.SHORT_REAL, Kind.FLOAT, Kind.STRING, Kind.BYTES
_TYPE_STRING: Final = int(_STRING)

_INT_FORM = struct.Struct(">BI")
_SHORT_REAL_FORM = struct.Struct(">H")
_FLOAT_FORM = struct.Struct(">BIB")

_read_int, _write_int = _INT_FORM.unpack_from, _INT_FORM.pack
_read_short_real, _write_short_real = _SHORT_REAL_FORM.unpack_from, _SHORT_REAL_FORM.pack
_read_float, _write_float = _FLOAT_FORM.unpack_from, _FLOAT_FORM.pack


def topic_of(field: bytes) -> str:
    """The topic that a datagram's first 50 bytes name."""
    name = field.partition(b"\0")[0]
    if not name:
        raise InvalidDatagram("The datagram has no topic.")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise InvalidDatagram(f"The datagram's topic {name!r} is not UTF-8.") from None


def _int(content: bytes) -> tuple[Kind, bytes]:
    try:
        sign, number = _read_int(content)
    except struct.error:
        raise _too_short(_INT, content, _INT_FORM) from None
    if sign:
        number = -_signed(sign, number)
    return _INT, b"%d" % number


def _short_real(content: bytes) -> tuple[Kind, bytes]:
    try:
        (hundredths,) = _read_short_real(content)
    except struct.error:
        raise _too_short(_SHORT_REAL, content, _SHORT_REAL_FORM) from None
    digits = b"%03d" % hundredths
    return _SHORT_REAL, digits[:-2] + b"." + digits[-2:]


def _float(content: bytes) -> tuple[Kind, bytes]:
    try:
        sign, number, decimals = _read_float(content)
    except struct.error:
        raise _too_short(_FLOAT, content, _FLOAT_FORM) from None
    text = b"%d" % number
    if decimals:
        text = text.rjust(decimals + 1, b"0")
        text = text[:-decimals] + b"." + text[-decimals:]
    if sign and _signed(sign, number):
        text = b"-" + text
    return _FLOAT, text


def _string(content: bytes) -> tuple[Kind, bytes]:
    if len(content) > MAX_CONTENT:
        raise InvalidDatagram(
            f"The datagram's content is {len(content)} bytes long; at most {MAX_CONTENT} are allowed."
        )
    text = content.partition(b"\0")[0]
    if text.isascii():
        return _STRING, text
    try:
        text.decode()
    except UnicodeDecodeError:
        return _BYTES, text
    return _STRING, text


# By type byte: from the content to kind and payload. Each raises `InvalidDatagram`.
READERS: Final[tuple[Reader, ...]] = (_int, _short_real, _float, _string)


def _signed(sign: int, number: int) -> int:
    if sign != 1:
        raise InvalidDatagram(f"The datagram's sign byte is {sign}; it must be 0 or 1.")
    return number


def _too_short(kind: Kind, content: bytes, form: struct.Struct) -> InvalidDatagram:
    return InvalidDatagram(
        f"The datagram's content is {len(content)} bytes long; {kind.name} takes {form.size}."
    )


def read(datagram: bytes) -> tuple[str, Kind, bytes]:
    """Topic, kind and payload of a datagram, or `InvalidDatagram`."""
    return read_parts(datagram[:HEAD].ljust(HEAD, b"\0"), datagram[HEAD:], len(datagram))


def read_parts(head: bytes, content: bytes, length: int) -> tuple[str, Kind, bytes]:
    """The same, of its head and of what lies behind it; `length` is the datagram's, and content may be longer."""
    if not HEAD <= length <= HEAD + MAX_CONTENT:
        shown = length if length <= HEAD + MAX_CONTENT else f"more than {HEAD + MAX_CONTENT}"
        raise InvalidDatagram(f"The datagram is {shown} bytes long; one has {HEAD} to {HEAD + MAX_CONTENT}.")
    name, reader = _meaning(head)
    kind, payload = reader(content[: length - HEAD])
    return name, kind, payload


@lru_cache(KNOWN)
def _meaning(head: bytes) -> tuple[str, Reader]:
    """The topic that a datagram's head names, and what reads its content."""
    type_ = head[TOPIC_BYTES]
    if type_ >= len(READERS):
        raise InvalidDatagram(f"The datagram's type is {type_}; the types are 0 to {len(READERS) - 1}.")
    name = topic_of(head[:TOPIC_BYTES])
    try:
        check_name(name)
    except InvalidName as error:
        raise InvalidDatagram(str(error)) from None
    return name, READERS[type_]


def write(topic: str, kind: Kind, payload: bytes) -> bytes:
    """The datagram that carries exactly this, or `InvalidMessage`."""
    field = topic.encode(errors="replace")
    if not field or len(field) > TOPIC_BYTES or b"\0" in field or field.decode() != topic:
        raise InvalidMessage(
            f"A device's topic has 1 to {TOPIC_BYTES} bytes of UTF-8 and no NUL; {topic[:60]!r} is not one."
        )
    if kind is Kind.JSON:
        raise InvalidMessage("A device publishes int, short_real, float and string, but not json.")
    check_payload(kind, payload)
    type_, carried, changed = content(kind, payload)
    if changed:
        raise InvalidMessage(f"{_shown(payload)} does not fit {kind.name}: {_RANGES[kind]}.")
    if type_ == _TYPE_STRING and b"\0" in payload:
        raise InvalidMessage(f"{_shown(payload)} has a NUL in it, where a device's string ends.")
    return field.ljust(TOPIC_BYTES, b"\0") + bytes((type_,)) + carried


_RANGES: Final = {
    Kind.INT: "it is from -4294967295 to 4294967295",
    Kind.SHORT_REAL: "it is from 0.00 to 655.35, with two decimals",
    Kind.FLOAT: "it has at most 255 decimals, and without its point is from -4294967295 to 4294967295",
    Kind.STRING: f"it has at most {MAX_CONTENT} bytes",
    Kind.BYTES: f"it has at most {MAX_CONTENT} bytes",
}


def _shown(payload: bytes) -> str:
    return repr(payload[:40].decode(errors="backslashreplace")) + ("…" if len(payload) > 40 else "")


def content(kind: int, payload: bytes) -> tuple[int, bytes, bool]:
    """Type byte and content of what a device is to get, and whether it had to be changed.

    What a device's number cannot hold becomes a string of the same digits; what is longer than 1500 bytes is cut.
    """
    try:
        if kind == 0:
            number = int(payload)
            return (0, _write_int(0, number), False) if number >= 0 else (0, _write_int(1, -number), False)
        if kind == 2:
            whole, _, decimals = payload.partition(b".")
            number = int(whole + decimals)
            if number >= 0:
                return 2, _write_float(0, number, len(decimals)), False
            return 2, _write_float(1, -number, len(decimals)), False
        if kind == 1:
            whole, _, decimals = payload.partition(b".")
            if len(decimals) == 2:
                return 1, _write_short_real(int(whole + decimals)), False
        elif len(payload) <= MAX_CONTENT:
            return 3, payload, False
    except (struct.error, ValueError):
        pass  # too large, or no number at all
    return 3, text_of(payload), True


def text_of(payload: bytes) -> bytes:
    """As much of a payload as fits a string; no character of it is cut in two."""
    if len(payload) <= MAX_CONTENT:
        return payload
    text = payload[:MAX_CONTENT]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.end == MAX_CONTENT and error.reason == "unexpected end of data":
            text = text[: error.start]
    return text
