"""How `stafeta sql` writes values: for people, in CSV, and in JSON.

1. Times are UTC and say so; those without a zone say nothing.
2. Numbers keep their digits. In a table a decimal loses the zeros that its type has added.
3. JSON and CSV have binary values in base64. A table has them as text where they are text, and otherwise as x'…'.
4. A variant is its JSON. Arrays, structs and maps are JSON in a table and in CSV, too.
"""

from base64 import b64encode
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.types as pat

Field: TypeAlias = "pa.Field[Any]"

NULL: Final = "NULL"
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
OPTIONS: Final = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def is_number(type_: pa.DataType) -> bool:
    return pat.is_integer(type_) or pat.is_floating(type_) or pat.is_decimal(type_)


def is_variant(field: Field) -> bool:
    """Spark marks its variants: to Arrow they are structs."""
    if not pat.is_struct(field.type):
        return False
    inner = [field.type.field(number).metadata or {} for number in range(field.type.num_fields)]
    return any(one.get(b"variant") == b"true" for one in inner)


def shown(field: Field, column: Any) -> list[str]:
    """For people: each value on one line."""
    if pat.is_binary(field.type) or pat.is_large_binary(field.type):
        return [NULL if value is None else one_line(_text_or_hex(value)) for value in column.to_pylist()]
    values = texts(field, column)
    if pat.is_decimal(field.type):
        return [NULL if value is None else _trimmed(value) for value in values]
    return [NULL if value is None else one_line(value) for value in values]


def texts(field: Field, column: Any) -> list[str | None]:
    """For CSV."""
    type_ = field.type
    if pat.is_string(type_) or pat.is_large_string(type_):
        return list(column.to_pylist())
    if is_variant(field):
        return variants(column)
    timely = pat.is_temporal(type_) and not pat.is_duration(type_)
    if timely or pat.is_integer(type_) or pat.is_boolean(type_):
        return list(column.cast(pa.string()).to_pylist())
    return [value if value is None else _text(value) for value in jsonable(field, column)]


def jsonable(field: Field, column: Any) -> list[Any]:
    """For `json_line`."""
    type_ = field.type
    if is_variant(field):
        return [one if one is None else orjson.Fragment(one) for one in variants(column)]
    if pat.is_timestamp(type_):
        return [value and value.replace(" ", "T", 1) for value in texts(field, column)]
    if pat.is_decimal(type_):
        return [value if value is None else plain(value) for value in column.to_pylist()]
    return list(column.to_pylist(maps_as_pydicts="lossy"))


def variants(column: Any) -> list[str | None]:
    """Variants as their JSON."""
    from pyspark.sql.types import VariantVal

    return [
        one if one is None else VariantVal(one["value"], one["metadata"]).toJson()
        for one in column.to_pylist()
    ]


def json_line(names: Iterable[str], row: Iterable[Any]) -> bytes:
    """An object, and the line's end."""
    value = dict(zip(names, row, strict=True))
    return orjson.dumps(value, default=plain, option=OPTIONS | orjson.OPT_APPEND_NEWLINE)


def one_line(text: str) -> str:
    """A text without what would move the cursor."""
    return text if text.isprintable() else text.translate(_CONTROL)


def _text(value: Any) -> str:
    """A value that is not null and has no text in Arrow."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, timedelta):
        return str(value)
    return orjson.dumps(value, default=plain, option=OPTIONS).decode()


def plain(value: Any) -> Any:
    """What JSON has for a value that it does not know."""
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def _trimmed(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def _text_or_hex(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"x'{value.hex()}'"
