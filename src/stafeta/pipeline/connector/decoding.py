"""What payloads mean: the columns number, decimal and text. (docs/spark.md, "The columns")

1. Payloads of numbers are plain decimal text, `-?digits` or `-?digits.digits`, of up to 1,000 digits on each side and
   with any zeros in front. (`stafeta.message.check_payload`)
2. All rows are decoded together by Arrow. Only where it cannot, or would do it wrongly, are they put in order first.
3. A row that has no number, or no text, is null. It never costs the others theirs.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

NUMBER: Final = pa.float64()
DECIMAL: Final = pa.decimal128(38, 18)
TEXT: Final = pa.string()

_BYTES: Final = pa.scalar("bytes")
_NUMBERS: Final = pa.array(["int", "short_real", "float"])
# Of a number with more than 20 digits before its point, Arrow's cast to decimal(38, 18) silently drops the upper bits.
_SURE: Final = 20  # characters
# What decimal(38, 18) holds, apart from the zeros at both ends.
_FITTING: Final = r"^(-?)0*([0-9]{1,20})(?:(\.[0-9]{1,18})0*)?$"
_NUMERIC: Final = r"^-?[0-9]+(\.[0-9]+)?$"


def decoded(name: str, kind: Any, payload: Any) -> Any:
    """The column `name` (numeric, number, decimal or text) of messages with these kinds (utf8) and payloads (binary),
    which have no nulls; numeric needs no payloads. A text shares its bytes with the payload, unless some of the
    messages are of the kind bytes."""
    if name == "numeric":
        return _numeric(kind)
    text = payload.view(TEXT)
    if name == "text":
        return _where(pc.not_equal(kind, _BYTES), text)
    text = _where(_numeric(kind), text)
    return _decimals(text) if name == "decimal" else _numbers(text)


def _numeric(kind: Any) -> Any:
    # Most batches are of one kind, and to compare all with it is quicker than to look each up.
    if len(kind) and (alike := pc.equal(kind, kind[0])).true_count == len(kind):
        return alike if kind[0].as_py() in _NUMBERS.to_pylist() else pc.invert(alike)
    return pc.is_in(kind, value_set=_NUMBERS)


def _where(mask: Any, text: Any) -> Any:
    if mask.true_count == len(mask):
        return text
    if mask.true_count == 0:
        return pa.nulls(len(text), TEXT)
    return pc.if_else(mask, text, pa.scalar(None, TEXT))


def _numbers(text: Any) -> Any:
    """As Python's float() and Spark's cast have it: the nearest double, infinite where it is too large."""
    try:
        return text.cast(NUMBER)
    except pa.ArrowInvalid:
        return _where(_matching(text, _NUMERIC), text).cast(NUMBER)


def _decimals(text: Any) -> Any:
    if (pc.max(pc.binary_length(text)).as_py() or 0) <= _SURE:
        try:
            return text.cast(DECIMAL)
        except pa.ArrowInvalid:
            pass
    fitting = _where(_matching(text, _FITTING), text)
    return pc.replace_substring_regex(fitting, _FITTING, r"\1\2\3").cast(DECIMAL)


def _matching(text: Any, pattern: str) -> Any:
    return pc.fill_null(pc.match_substring_regex(text, pattern), False)
