"""What requests say, without sockets: parameters, bodies, headers. (docs/protocols/http.md)

1. What cannot be read is refused by `InvalidRequest`, with a sentence that names it.
2. A parameter that is not known is refused: a misspelt one would change what is asked for without a word.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from reprlib import repr as shown
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from stafeta import times
from stafeta.errors import ConfigError, InvalidClient, InvalidRequest
from stafeta.names import (
    DEVICES_PREFIX,
    FLIGHT_PREFIX,
    FLIGHT_STREAM_PREFIX,
    FRAMES_PREFIX,
    HTTP_KEY_PREFIX,
    HTTP_PREFIX,
    HTTP_STREAM_PREFIX,
    PREFIXES,
    WATCH_PREFIX,
    check_client,
    owned,
    owner_of,
)

MAX_INT: Final = (1 << 63) - 1
MAX_PARAMETERS: Final = 1000
MAX_KEY: Final = 255  # characters of an idempotency key
MAX_RANGES: Final = 1000
MAX_TIME: Final = 4_102_444_800_000_000 * 10  # microseconds, about the year 3270
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
# What a form of another site can send without asking first.
FORM_TYPES: Final = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
LINES: Final = frozenset({NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines"})

DOORS: Final = {
    "http": HTTP_PREFIX,
    "http-stream": HTTP_STREAM_PREFIX,
    "zeromq": "",
    "watch": WATCH_PREFIX,
    "devices": DEVICES_PREFIX,
    "frames": FRAMES_PREFIX,
    "flight": FLIGHT_PREFIX,
    "flight-stream": FLIGHT_STREAM_PREFIX,
}
"""What stands before the names of clients at the broker, by how they are called here."""


class Named(NamedTuple):
    """A client, by whose it is, through which door it came, and how it calls itself there."""

    user: str
    door: str
    client: str


def named(name: str) -> Named:
    """A client's name as lists of the broker have it."""
    user, rest = owner_of(name)
    for door, prefix in DOORS.items():
        if prefix and rest.startswith(prefix):
            return Named(user, door, rest.removeprefix(prefix))
    return Named(user, "zeromq", rest)


def name_of(client: str, door: str = "http", user: str = "") -> str:
    """What a client is called at the broker."""
    prefix = DOORS.get(door)
    if prefix is None:
        raise InvalidRequest(f"There is no door {shown(door)}; there are {', '.join(DOORS)}.")
    check_client(client)
    if not prefix and client.startswith(PREFIXES):
        raise InvalidClient(f"The client id {client!r:.80} is a client's of another door; name that.")
    if user and ("/" in user or not user.isprintable()):
        raise InvalidRequest(f"{shown(user)} is no name of a user.")
    return owned(user, prefix + client) if user else prefix + client


def key_name(key: str, topic: str) -> str:
    """The producer that stands for an idempotency key of a topic."""
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise InvalidRequest(f"An idempotency key has 1 to {MAX_KEY} visible characters; this one has not.")
    return HTTP_KEY_PREFIX + sha256(f"{key}\n{topic}".encode()).hexdigest()[:40]


# --- headers


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def accepted(header: str, offered: Sequence[str]) -> str | None:
    """Which of these media types is wanted most; the first where anything is, None where none of them is."""
    if not header.strip():
        return offered[0]
    best: tuple[float, int, int] | None = None
    found = None
    for part in header.split(",")[:100]:
        name, *parameters = [one.strip().lower() for one in part.split(";")]
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if not 0.0 < quality <= 1.0:
            continue
        for place, one in enumerate(offered):
            exact = name == one or (one == NDJSON and name in LINES)
            if exact or name in ("*/*", one.partition("/")[0] + "/*"):
                rank = (quality, int(exact), -place)
                if best is None or rank > best:
                    best, found = rank, one
    return found


def cookie(header: str, name: str) -> str | None:
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return None


def host_of(header: str) -> str:
    """The host of a header `Host`, in lower case, without its port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


# --- parameters


class Parameters:
    """Those of a query, or the members of a JSON object, each to be asked for once; `end` refuses the others."""

    def __init__(self, values: dict[str, list[Any]], what: str) -> None:
        self._values = values
        self._what = what

    @classmethod
    def of_query(cls, query: bytes) -> "Parameters":
        try:
            pairs = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
            )
        except ValueError:
            raise InvalidRequest(
                "The query of the URL cannot be read: it is not UTF-8, or too long."
            ) from None
        values: dict[str, list[Any]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value)
        return cls(values, "parameter")

    @classmethod
    def of_body(cls, body: bytes) -> "Parameters":
        found = read_json(body)
        if not isinstance(found, dict):
            raise InvalidRequest("The body must be a JSON object.")
        return cls({name: [value] for name, value in found.items()}, "member")

    def end(self) -> None:
        for name in self._values:
            raise InvalidRequest(f"There is no {self._what} {shown(name)} here.")

    def has(self, name: str) -> bool:
        return name in self._values

    def one(self, name: str) -> Any:
        values = self._values.pop(name, None)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"The {self._what} {name!r} is there {len(values)} times.")
        return values[0]

    def need(self, name: str) -> Any:
        value = self.one(name)
        if value is None:
            raise InvalidRequest(f"The {self._what} {name!r} is missing.")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.one(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InvalidRequest(f"The {self._what} {name!r} must be text.")
        _check_text(name, value)
        return value

    def needed_text(self, name: str) -> str:
        if name not in self._values:
            raise InvalidRequest(f"The {self._what} {name!r} is missing.")
        value = self.text(name)
        if not value:
            raise InvalidRequest(f"The {self._what} {name!r} is empty.")
        return value

    def texts(self, name: str) -> list[str]:
        """All of a name that may be there several times; of JSON, a list, or one."""
        values = self._values.pop(name, [])
        if self._what == "member" and values and isinstance(values[0], list):
            values = values[0]
        for value in values:
            if not isinstance(value, str):
                raise InvalidRequest(f"The {self._what} {name!r} must be text, or several.")
            _check_text(name, value)
        return list(values)

    def number(self, name: str, least: int, most: int = MAX_INT, default: int | None = None) -> int | None:
        value = self.one(name)
        if value is None:
            return default
        if isinstance(value, str) and value.isascii() and len(value) <= 19 and value.isdecimal():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise InvalidRequest(
                f"The {self._what} {name!r} must be a whole number from {least} to {most}, not {shown(value)}."
            )
        return value

    def seconds(self, name: str, most: float) -> float:
        value = self.one(name)
        if value is None:
            return 0.0
        try:
            if isinstance(value, bool):
                raise ValueError(name)
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            found = -1.0
        if not 0.0 <= found <= most:
            raise InvalidRequest(
                f"The {self._what} {name!r} must be a number of seconds up to {most:g}, not {shown(value)}."
            )
        return found

    def flag(self, name: str, default: bool | None = False) -> bool | None:
        value = self.one(name)
        if value is None:
            return default
        if isinstance(value, str):
            value = {"true": True, "false": False, "1": True, "0": False}.get(value.lower())
        if not isinstance(value, bool):
            raise InvalidRequest(f"The {self._what} {name!r} must be true or false.")
        return value

    def word(self, name: str, words: Iterable[str], default: str) -> str:
        value = self.text(name, default)
        if value not in words:
            raise InvalidRequest(
                f"The {self._what} {name!r} must be one of {', '.join(words)}, not {shown(value)}."
            )
        return value

    def time(self, name: str) -> int | None:
        """Microseconds since 1970: ISO 8601 with a zone, or milliseconds since 1970."""
        value = self.one(name)
        if value is None:
            return None
        return time_of(name, value)


def time_of(name: str, value: object) -> int:
    if type(value) is int:
        value = str(value)
    try:
        if not isinstance(value, str) or len(value) > 64:
            raise ConfigError(name)
        # A plus sign in a query is a space, and people write +02:00 as it is.
        found = times.parse(value.replace(" ", "+") if value[10:11] in "Tt" else value)
    except (ConfigError, OverflowError):
        raise InvalidRequest(
            f"{name!r} is {shown(value)}, which is no time; write ISO 8601 with a zone, 2026-11-16T08:00:00Z, or "
            "milliseconds since 1970."
        ) from None
    if not 0 <= found <= MAX_TIME:
        raise InvalidRequest(f"{name!r} is {shown(value)}, which is no time that a message can have.")
    return found


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name!r} has half a surrogate pair in it, which is no text.") from None


def read_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.") from None


def unescaped(part: str) -> str:
    """A part of a URL's path."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("The path of the URL is not UTF-8.") from None


# --- acknowledgements


class Range(NamedTuple):
    """Offsets of a topic, from the first up to and with the last."""

    topic: str
    first: int
    last: int


def ranges_of(value: object) -> list[Range]:
    """`[{"topic": …, "first": …, "last": …}]`, or with `offset` for one."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_RANGES:
        raise InvalidRequest(f"'ranges' must be a list of 1 to {MAX_RANGES} ranges.")
    return [_range(one) for one in value]


def _range(value: object) -> Range:
    match value:
        case {"topic": str(topic), "offset": int(offset), **rest} if not rest:
            first = last = offset
        case {"topic": str(topic), "first": int(first), "last": int(last), **rest} if not rest:
            pass
        case {"topic": str(topic), "last": int(last), **rest} if not rest:
            first = 1
        case _:
            first, last, topic = 1, 0, ""
    if isinstance(first, bool) or isinstance(last, bool) or not 1 <= first <= last <= MAX_INT:
        raise InvalidRequest(
            f"{shown(value)} is no range; one is an object with topic, and with offset, or first and last, or last for "
            "all up to it."
        )
    _check_text("topic", topic)
    return Range(topic, first, last)
