"""Arrow data as clients send it, made into batches of the broker's: checked, and otherwise as it came.

1. Strangers' buffers are validated in full before anything looks into them.
2. No row becomes a Python object, except JSON payloads, which are parsed to be checked.
"""

from reprlib import repr as shown
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stafeta.columns import Block, ColumnBatch, counting
from stafeta.errors import InvalidMessage, InvalidSchema, LimitReached
from stafeta.message import KIND, TIME, Kind, Row, RowBatch, check_payload

AHEAD: Final = 3600 * 1_000_000  # microseconds that a timestamp may be ahead of the clock
_BROKERS: Final = frozenset({"offset", "position", "producer", "source", "counter"})  # set anew
_KNOWN: Final = frozenset({"payload", "kind", "timestamp", "topic", *_BROKERS})
_TIME: Final = pa.timestamp("us", tz="UTC")
_WORDS: Final = pa.array([kind.word for kind in Kind])
_FORMS: Final = {
    Kind.INT: r"^-?[0-9]+$",
    Kind.SHORT_REAL: r"^-?[0-9]+\.[0-9][0-9]$",
    Kind.FLOAT: r"^-?[0-9]+(\.[0-9]+)?$",
}
SLACK: Final = 64 << 10  # bytes that may stay in memory beside the payloads
_DIGITS: Final = 1000  # longer numbers are looked at one by one


def check_schema(schema: pa.Schema) -> None:
    """Refuses columns that are not those of messages."""
    for name in schema.names:
        if name not in _KNOWN:
            raise InvalidSchema(
                f"There is no column {shown(name)} in a message; there are payload, and if wanted kind and timestamp."
            )
        if schema.names.count(name) > 1:
            raise InvalidSchema(f"The column {name!r} is there twice.")
    if "payload" not in schema.names:
        raise InvalidSchema("The column payload is missing; messages are in it.")
    _check_type(schema, "payload", _holds_bytes, "binary or text")
    _check_type(schema, "kind", _holds_text, "text")
    _check_type(schema, "topic", _holds_text, "text")
    _check_type(schema, "timestamp", pa.types.is_timestamp, "a timestamp")


def _check_type(schema: pa.Schema, name: str, right: Any, form: str) -> None:
    if name in schema.names:
        found = schema.field(name).type
        if not right(found):
            raise InvalidSchema(f"The column {name} is of the type {found}; it must be {form}.")


def _holds_text(type_: Any) -> bool:
    types = pa.types
    if types.is_dictionary(type_):
        return _holds_text(type_.value_type)
    return types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)


def _holds_bytes(type_: Any) -> bool:
    types = pa.types
    if types.is_dictionary(type_):
        return _holds_bytes(type_.value_type)
    return (
        _holds_text(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_binary_view(type_)
        or types.is_fixed_size_binary(type_)
    )


def take(data: pa.RecordBatch, topic: str | None, now: int, most: int) -> ColumnBatch:
    """A batch for the broker to place, of at most so many bytes. Its schema was checked before. Without a topic it may
    be of several."""
    size = data.get_total_buffer_size()  # nbytes would look into them
    _check_size(size, most)
    try:
        data.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidSchema(f"The Arrow data is damaged: {_first_line(error)}.") from None
    columns: dict[str, Any] = {}
    for name, column in zip(data.schema.names, data.columns, strict=True):
        if name in _BROKERS:
            continue
        _check_size(_spelt_out(column), most)
        columns[name] = column = _plain(column)
        if column.null_count:
            raise InvalidMessage(f"The column {name} has a null in it, at row {_first(column.is_null())}.")
    if topic is not None:
        _check_topic(columns.get("topic"), topic)
    text = _holds_text(columns["payload"].type)
    payloads = _payloads(columns["payload"])
    kinds = _kinds(columns.get("kind"), Kind.STRING if text else Kind.BYTES)
    _check(payloads, kinds, text=text)
    times = _times(columns.get("timestamp"), now)
    offsets = payloads.buffers()[1]
    if (size > SLACK and size > 2 * payloads.nbytes) or (offsets is not None and offsets.size % 4):
        # Else all of what came would stay in memory for it; and offsets are read as whole numbers.
        payloads = _copied(payloads)
    count = data.num_rows
    return ColumnBatch(topic or "", 0, count, Block(count, (0, times, "", "", kinds, None, payloads)), 0)


def apart(batch: ColumnBatch, topics: Any, producer: str, source: str) -> list[RowBatch]:
    """The messages of a batch that has this column of topics: those of each topic, in their order."""
    encode: Any = pc.dictionary_encode
    encoded = encode(_plain(topics).cast(pa.string()))
    rows: list[list[Row]] = [[] for _ in range(len(encoded.dictionary))]
    columns = (batch.column(TIME), batch.column(KIND), batch.payloads)
    for code, time, kind, payload in zip(encoded.indices.to_pylist(), *columns, strict=True):
        mine = rows[code]
        mine.append((len(mine), time, producer, source, kind, None, payload))
    return [RowBatch(name, 0, mine) for name, mine in zip(encoded.dictionary.to_pylist(), rows, strict=True)]


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise LimitReached(
            f"The batch has {size} bytes; at most {most} are allowed (flight.max_batch). Send it in several."
        )


def _spelt_out(column: Any) -> int:
    """How many bytes a column has without its dictionary or views; Arrow would not notice that they are too many."""
    if isinstance(column, pa.DictionaryArray):
        lengths = _lengths(column.dictionary).take(column.indices)
    elif _is_view(column.type):
        lengths = _lengths(column)
    else:
        return 0  # it is as large as it came
    return int(pc.sum(lengths).as_py() or 0)


def _is_view(type_: Any) -> bool:
    return pa.types.is_binary_view(type_) or pa.types.is_string_view(type_)


def _lengths(column: Any) -> Any:
    type_ = column.type
    if pa.types.is_fixed_size_binary(type_):
        return pa.repeat(pa.scalar(type_.byte_width, pa.int64()), len(column))
    if _is_view(type_):
        # A view is four numbers, of which the first is the length.
        numbers = pa.Array.from_buffers(
            pa.int32(), 4 * (column.offset + len(column)), [None, column.buffers()[1]]
        )
        return numbers.take(counting(4 * column.offset, 4 * (column.offset + len(column)), 4))
    return pc.binary_length(column)


def _copied(payloads: Any) -> Any:
    return pa.concat_arrays([payloads, pa.array([], payloads.type)])


def _check_topic(column: Any, topic: str) -> None:
    if column is None or not len(column):
        return
    other = pc.not_equal(column.cast(pa.string()), pa.scalar(topic))
    if pc.any(other).as_py():
        row = _first(other)
        raise InvalidMessage(
            f"The column topic says {column[row].as_py()!r:.300} at row {row}, and these messages go to {topic!r}."
        )


def _payloads(column: Any) -> Any:
    if pa.types.is_binary(column.type):
        return column
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:  # more than 2 GB in one batch
        raise InvalidMessage(f"The payloads do not fit into one batch: {_first_line(error)}.") from None


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _kinds(column: Any, default: Kind) -> Any:
    """The kinds' numbers, or one number for all."""
    if column is None or not len(column):
        return int(default)
    words = column.cast(pa.string())
    codes = pc.index_in(words, value_set=_WORDS)
    if codes.null_count:
        Kind.of(words[_first(codes.is_null())].as_py())
    lowest, highest = pc.min(codes).as_py(), pc.max(codes).as_py()
    return lowest if lowest == highest else codes.cast(pa.int8())


def _times(column: Any, now: int) -> Any:
    """0 where the broker is to say the time."""
    if column is None or not len(column):
        return 0
    try:
        times = column.cast(_TIME, safe=column.type.unit != "ns")  # of which the last three digits go
    except pa.ArrowInvalid:
        raise InvalidMessage("A timestamp is further away than microseconds can say.") from None
    numbers = times.cast(pa.int64())
    lowest, highest = pc.min(numbers).as_py(), pc.max(numbers).as_py()
    if highest > now + AHEAD:
        raise InvalidMessage("A timestamp is more than an hour ahead of the broker's clock.")
    if lowest < 1:
        raise InvalidMessage("A timestamp is before 1970.")
    return times


def _check(payloads: Any, kinds: Any, *, text: bool) -> None:
    """Refuses payloads that are not of their kind."""
    if not isinstance(kinds, pa.Array):
        _check_kind(payloads, Kind(kinds), text=text)
        return
    present = set(pc.unique(kinds).to_pylist())
    for kind in Kind:
        if kind in present:
            _check_kind(payloads.filter(pc.equal(kinds, pa.scalar(kind, pa.int8()))), kind, text=text)


def _check_kind(payloads: Any, kind: Kind, *, text: bool) -> None:
    if kind is Kind.BYTES or (kind is Kind.STRING and text):
        return  # text was checked to be UTF-8 with the whole batch
    try:
        texts = payloads.cast(pa.string())
    except pa.ArrowInvalid:
        _check_each(payloads, kind)
        raise InvalidMessage(f"A payload is not of the kind {kind.word}.") from None
    form = _FORMS.get(kind)
    if form is not None:
        right = pc.match_substring_regex(texts, form)
        if not pc.all(right).as_py():
            check_payload(kind, payloads[_first(pc.invert(right))].as_py())
        if len(payloads) and pc.max(pc.binary_length(payloads)).as_py() > _DIGITS:
            _check_each(payloads, kind)
    elif kind is Kind.JSON:
        _check_json(payloads)


def _check_json(payloads: Any) -> None:
    for payload in payloads.to_pylist():
        try:
            orjson.loads(payload)
        except orjson.JSONDecodeError:
            check_payload(Kind.JSON, payload)


def _check_each(payloads: Any, kind: Kind) -> None:
    for payload in payloads.to_pylist():
        check_payload(kind, payload)


def _first(flags: Any) -> int:
    """The first row that is true."""
    return int(pc.index(flags, pa.scalar(True)).as_py())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
