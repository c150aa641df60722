"""What is said beside Arrow data: JSON in tickets, descriptors, metadata and actions.

1. Each is an object. A key that is not known, or a value of another type than the page says, is an error.
2. A ticket that is no object is the name of a topic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from reprlib import repr as shown
from typing import Any, Final, NamedTuple

import orjson

from stafeta.errors import InvalidRequest, OutOfSequence, StafetaError
from stafeta.message import COLUMNS
from stafeta.times import micros_of

MORE_COLUMNS: Final = ("counter", "position")
BATCH_ROWS: Final = 65_536
MAX_PARTITIONS: Final = 10_000
MAX_TOGETHER: Final = 1_000  # spans that are read together: of each, a part of the index is in memory
SENTENCE: Final = 500  # characters
MAX_BODY: Final = 1 << 20  # bytes
_LARGEST: Final = (1 << 63) - 1


class Range(NamedTuple):
    """Which messages of a topic, by offset or by time; None where an end is open."""

    start: int | None = None
    stop: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    latest: bool = False  # from now on

    @property
    def offsets(self) -> bool:
        return self.start is not None or self.stop is not None


ALL: Final = Range()


class Span(NamedTuple):
    """Offsets of a topic, from `start` up to, not including, `stop`."""

    topic: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ticket:
    topic: str | None = None
    filter: str | None = None
    client: str | None = None
    range: Range = ALL
    columns: tuple[str, ...] = COLUMNS
    limit: int | None = None
    follow: bool = False
    batch_rows: int = BATCH_ROWS
    runs: bool = False
    mark: str | None = None
    spans: tuple[Span, ...] = ()
    """In place of a topic or a filter: the offsets of several topics."""
    together: bool = False
    """Their messages come in the order of the log, and not one topic after the other."""

    @property
    def wanted(self) -> str:
        """The topic or the filter."""
        return self.topic if self.topic is not None else self.filter or ""

    def encode(self) -> bytes:
        """The ticket of an endpoint."""
        answer: dict[str, Any] = {"topic": self.topic, "from": self.range.start, "to": self.range.stop}
        return orjson.dumps(answer)


class Description(NamedTuple):
    """What `get_flight_info` is asked to describe."""

    topic: str | None
    filter: str | None
    range: Range
    partitions: int | None


class Stage(NamedTuple):
    """The part of a transaction that batches are put aside for."""

    producer: str
    counter: int
    part: str
    attempt: int | None = None


class Target(NamedTuple):
    """Where the batches of a `do_put` go."""

    topic: str | None
    producer: str | None = None
    stage: Stage | None = None


class Note(NamedTuple):
    """What the metadata of a batch says."""

    topic: str | None = None
    sequence: int | None = None


# --- reading


def read_ticket(data: bytes) -> Ticket:
    if not data.lstrip().startswith(b"{"):
        return Ticket(topic=_text_of(data, "ticket"))
    body = Body(data, "ticket")
    spans = _spans(body)
    topic, filter_ = _what(body) if not spans else (None, None)
    client = body.text("client", optional=True)
    if client is not None and filter_ is None:
        raise InvalidRequest("A ticket with a client needs the filter that it has subscribed to.")
    range_ = _range(body)
    if client is not None and range_ != ALL:
        raise InvalidRequest("A client reads from its cursor on: its ticket has no from, to or times.")
    if topic is None and range_.offsets:
        raise InvalidRequest("Offsets are a topic's own: with a filter, from is earliest or latest.")
    follow = body.flag("follow")
    if follow and (range_.stop is not None or range_.to_time is not None):
        raise InvalidRequest("What follows has no end: leave out to and to_time, or follow.")
    if spans and (follow or range_ != ALL):
        raise InvalidRequest("A ticket with spans has their offsets: leave out from, to, times and follow.")
    together = body.flag("together")
    if together and not 0 < len(spans) <= MAX_TOGETHER:
        raise InvalidRequest(f"What is read together are spans, and at most {MAX_TOGETHER}.")
    columns = body.texts("columns", optional=True)
    ticket = Ticket(
        topic=topic,
        filter=filter_,
        client=client,
        range=range_,
        columns=COLUMNS if columns is None else _columns(columns),
        limit=body.number("limit", least=0, optional=True),
        follow=follow,
        batch_rows=body.number("batch_rows", least=1, optional=True) or BATCH_ROWS,
        runs=body.flag("runs"),
        mark=body.text("mark", optional=True),
        spans=spans,
        together=together,
    )
    body.end()
    return ticket


def read_description(data: bytes) -> Description:
    body = Body(data, "descriptor's command")
    topic, filter_ = _what(body)
    range_ = _range(body)
    if topic is None and range_.offsets:
        raise InvalidRequest("Offsets are a topic's own: with a filter, use from_time and to_time.")
    partitions = body.number("partitions", least=1, optional=True)
    if partitions is not None and partitions > MAX_PARTITIONS:
        raise InvalidRequest(f"At most {MAX_PARTITIONS} partitions can be asked for, not {partitions}.")
    body.end()
    return Description(topic, filter_, range_, partitions)


def read_target(path: Sequence[bytes], command: bytes | None) -> Target:
    """From a descriptor's path, or its command."""
    if command is None:
        return Target(topic_of(path))
    body = Body(command, "descriptor's command")
    topic = body.text("topic", optional=True)
    producer = body.text("producer", optional=True)
    staged = body.part("stage", optional=True)
    stage = None
    if staged is not None:
        stage = Stage(
            staged.text("producer"),
            staged.number("counter", least=0),
            staged.text("part"),
            staged.number("attempt", least=1, optional=True),
        )
        staged.end()
        if producer is not None:
            raise InvalidRequest("A staged batch's producer is that of the transaction: leave out producer.")
    body.end()
    return Target(topic, producer, stage)


def topic_of(path: Sequence[bytes]) -> str:
    if len(path) != 1:
        raise InvalidRequest(f"A descriptor's path is one element, the topic; this one has {len(path)}.")
    return _text_of(path[0], "descriptor's path")


def read_note(data: bytes) -> Note:
    if not data:
        return Note()
    body = Body(data, "batch's metadata")
    note = Note(body.text("topic", optional=True), body.number("sequence", least=1, optional=True))
    body.end()
    return note


def read_criteria(data: bytes) -> str | None:
    """The filter of `list_flights`, if there is one."""
    if not data:
        return None
    body = Body(data, "criteria")
    filter_: str | None = body.text("filter", optional=True)
    body.end()
    return filter_


def _what(body: "Body") -> tuple[str | None, str | None]:
    topic, filter_ = body.text("topic", optional=True), body.text("filter", optional=True)
    if (topic is None) == (filter_ is None):
        raise InvalidRequest(f"A {body.what} has either a topic or a filter.")
    return topic, filter_


def _spans(body: "Body") -> tuple[Span, ...]:
    found = body.take("spans")
    if found is None:
        return ()
    if not isinstance(found, list) or not found or not all(map(_is_span, found)):
        raise InvalidRequest(
            f"The {body.what}'s spans are {shown(found)}; they must be a list of [topic, from, to], with offsets."
        )
    return tuple(Span(*one) for one in found)


def _is_span(one: object) -> bool:
    if not isinstance(one, list) or len(one) != 3 or not isinstance(one[0], str):
        return False
    return all(type(offset) is int and 0 <= offset <= _LARGEST for offset in one[1:])


def _range(body: "Body") -> Range:
    start = body.take("from")
    latest = start == "latest"
    if start in ("earliest", "latest"):
        start = None
    elif start is not None:
        start = body.checked_number("from", start, 0, "an offset, or earliest, or latest")
    stop = body.number("to", least=0, optional=True)
    from_time, to_time = body.time("from_time"), body.time("to_time")
    if (start is not None or latest) and from_time is not None:
        raise InvalidRequest(f"A {body.what} begins at an offset or at a time: leave out from, or from_time.")
    if stop is not None and to_time is not None:
        raise InvalidRequest(f"A {body.what} ends at an offset or at a time: leave out to, or to_time.")
    return Range(start, stop, from_time, to_time, latest)


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    for at, name in enumerate(names):
        if name not in COLUMNS and name not in MORE_COLUMNS:
            known = ", ".join((*COLUMNS, *MORE_COLUMNS))
            raise InvalidRequest(f"There is no column {shown(name)}; there are {known}.")
        if name in names[:at]:
            raise InvalidRequest(f"The column {name!r} is named twice.")
    if not names:
        raise InvalidRequest("The list of columns is empty; leave it out to get all.")
    return tuple(names)


def _text_of(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"The {what} is neither JSON nor the name of a topic in UTF-8.") from None


class Body:
    """An object of which each key is taken once."""

    def __init__(self, data: bytes | dict[str, Any], what: str) -> None:
        self.what = what
        if isinstance(data, dict):
            self._left = dict(data)
            return
        if len(data) > MAX_BODY:
            raise InvalidRequest(f"The {what} has {len(data)} bytes; at most {MAX_BODY} are read.")
        try:
            found = orjson.loads(data or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"The {what} is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise InvalidRequest(f"The {what} is not a JSON object, but {shown(found)}.")
        self._left = found

    def take(self, key: str) -> Any:
        return self._left.pop(key, None)

    def end(self) -> None:
        """Nothing may be left."""
        for key in self._left:
            raise InvalidRequest(f"A {self.what} has no {shown(key)}.")

    def text(self, key: str, *, optional: bool = False) -> Any:
        return self._checked(key, lambda value: isinstance(value, str), "a text", optional=optional)

    def flag(self, key: str) -> bool:
        return bool(self._checked(key, lambda value: isinstance(value, bool), "true or false", optional=True))

    def texts(self, key: str, *, optional: bool = False) -> Any:
        return self._checked(
            key,
            lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
            "a list of texts",
            optional=optional,
        )

    def counts(self, key: str, *, optional: bool = False) -> Any:
        """Texts, in a list or with a number for each."""
        return self._checked(
            key,
            lambda value: (
                isinstance(value, list | dict)
                and all(isinstance(one, str) for one in value)
                and (isinstance(value, list) or all(type(one) is int and one >= 0 for one in value.values()))
            ),
            "a list of texts, or numbers by text",
            optional=optional,
        )

    def items(self, key: str) -> list[Any]:
        found: list[Any] = self._checked(key, lambda value: isinstance(value, list), "a list", optional=False)
        return found

    def part(self, key: str, *, optional: bool = False) -> "Body | None":
        found = self._checked(key, lambda value: isinstance(value, dict), "an object", optional=optional)
        return None if found is None else Body(found, f"{self.what}'s {key}")

    def number(self, key: str, *, least: int, optional: bool = False) -> Any:
        value = self.take(key)
        if value is None and optional:
            return None
        return self.checked_number(key, value, least, "a whole number")

    def checked_number(self, key: str, value: object, least: int, form: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
            raise InvalidRequest(
                f"The {self.what}'s {key} is {shown(value)}; it must be {form}, from {least} on."
            )
        return value

    def time(self, key: str) -> int | None:
        """Microseconds since 1970."""
        value = self.take(key)
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
                if moment.tzinfo is not None:
                    return micros_of(moment)
            except (ValueError, OverflowError):
                pass
        elif value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise InvalidRequest(
            f"The {self.what}'s {key} is {shown(value)}; it must be a time as in 2026-01-02T03:04:05Z, "
            "or microseconds since 1970."
        )

    def _checked(self, key: str, right: Callable[[Any], bool], form: str, *, optional: bool) -> Any:
        value = self.take(key)
        if value is None and optional:
            return None
        if not right(value):
            raise InvalidRequest(f"The {self.what}'s {key} is {shown(value)}; it must be {form}.")
        return value


# --- writing


def answer(topic: str, offset: int | None, rows: int, *, staged: bool) -> bytes:
    answer: dict[str, Any] = {"topic": topic, "rows": rows}
    return orjson.dumps(answer if staged else {"topic": topic, "offset": offset, "rows": rows})


def sentence(error: StafetaError) -> str:
    """The sentence for the client. It travels in a header, which has little room for what a stranger may have sent."""
    text = str(error)
    return text if len(text) <= SENTENCE else f"{text[:SENTENCE]} … (cut)."


def write_error(error: StafetaError) -> bytes:
    answer: dict[str, Any] = {"error": type(error).__name__, "message": sentence(error)}
    if isinstance(error, OutOfSequence):
        answer["expected"] = error.expected
    return orjson.dumps(answer)
