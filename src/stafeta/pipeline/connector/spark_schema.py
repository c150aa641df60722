"""The columns of a topic, as Spark and as Arrow know them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stafeta.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "producer": StringType(),
    "source": StringType(),
    "kind": StringType(),
    "payload": BinaryType(),
}
ASKED: Final[dict[str, DataType]] = {"counter": LongType()}
"""What a topic has as well, for those who name it."""
STORED: Final = PLAIN | ASKED
DECODED: Final[dict[str, DataType]] = {
    "number": DoubleType(),
    "decimal": DecimalType(38, 18),
    "text": StringType(),
}
TOLD: Final[dict[str, DataType]] = {"numeric": BooleanType()}
"""What the kind says, for those who name it: whether a message is a number."""
_ALL: Final = STORED | DECODED | TOLD


def schema_of(names: Sequence[str] | None, *, decode: bool) -> StructType:
    """The schema of a read that asks for these columns, or for those that there are."""
    if names is None:
        names = list(PLAIN | DECODED if decode else PLAIN)
    fields = []
    for name in dict.fromkeys(names):
        if name not in _ALL:
            raise ConfigError(f"There is no column {name!r}; there are {', '.join(_ALL)}.")
        fields.append(StructField(name, _ALL[name], nullable=name not in PLAIN | TOLD))
    if len(fields) < len(names):
        raise ConfigError(f"The option 'columns' names a column twice: {', '.join(names)}.")
    return StructType(fields)


def check_schema(schema: StructType) -> None:
    """Raise where somebody gave a schema of his own that a topic does not have."""
    for field in schema.fields:
        if field.name not in _ALL:
            raise ConfigError(f"A topic has no column {field.name!r}; there are {', '.join(_ALL)}.")
        if field.dataType != _ALL[field.name]:
            raise ConfigError(
                f"The column {field.name!r} is of the type {_ALL[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; read it as it is and cast it."
            )


def arrow_schema(schema: StructType) -> "pa.Schema":
    """The same for Arrow, as Spark expects batches to be."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def needed(names: Sequence[str]) -> list[str]:
    """The columns to ask the broker for."""
    found = [name for name in names if name in STORED]
    if not TOLD.keys().isdisjoint(names):
        found.append("kind")
    if not DECODED.keys().isdisjoint(names):
        found += ["kind", "payload"]
    return list(dict.fromkeys(found))
