"""Values of each row of docs/values.md."""

import math

from tests.conformance.frames import Number
from tests.conformance.values import (
    FLOAT,
    INT,
    SHORT_REAL,
    STRING,
    Value,
    Way,
    any_json,
    float_content,
    flown,
    in_base64,
    int_content,
    named,
    number,
    python,
    reading,
    text,
    written,
    xml,
)

# --- numbers

ROW_INT, ROW_SHORT_REAL, ROW_FLOAT = "int `-12`", "short_real `21.50`", "float `1234.4321`"
WHOLE, OTHER = "a number without a point or an exponent", "any other number"
NUMBERS = "int, float"


def _int(digits: str, device: tuple[int, bytes], *ways: Way) -> Value:
    value = int(digits)
    return number(ROW_INT, digits, device, value, [written(digits, WHOLE), python(value, NUMBERS), *ways])


def _float(digits: str, content: bytes, *ways: Way) -> Value:
    return number(ROW_FLOAT, digits, (FLOAT, content), float(digits), [reading(FLOAT, content), *ways])


INTS = [
    *(
        _int(str(value), (INT, int_content(value)), reading(INT, int_content(value)))
        for value in (-12, 1, 4_294_967_295, -4_294_967_295)
    ),
    # There is no negative zero, and bytes after a number mean nothing.
    _int(
        "0",
        (INT, int_content(0)),
        reading(INT, b"\x01\0\0\0\0"),
        reading(INT, b"\0\0\0\0\0more"),
        written("-0", WHOLE),
    ),
    _int("4294967296", (STRING, b"4294967296")),
    _int("-" + "9" * 1000, (STRING, b"-" + b"9" * 1000)),
    number(ROW_INT, "007", (INT, int_content(7)), 7, [], json="7"),
]
SHORT_REALS = [
    number(ROW_SHORT_REAL, digits, (SHORT_REAL, content), float(digits), [reading(SHORT_REAL, content)])
    for digits, content in (("21.50", b"\x08\x66"), ("0.05", b"\0\x05"), ("655.35", b"\xff\xff"))
]
SHORT_REALS += [
    number(ROW_SHORT_REAL, digits, (STRING, digits.encode()), float(digits), [])
    for digits in ("-1.50", "655.36")
]
FLOATS = [
    _float(
        "1234.4321",
        float_content(0, 12_344_321, 4),
        written("1234.4321", OTHER),
        written("12344321e-4", OTHER),
        python(1234.4321, NUMBERS),
    ),
    _float("-0.000000001", float_content(1, 1, 9), written("-1E-9", OTHER), python(-1e-9, NUMBERS)),
    _float("1500", float_content(0, 1500, 0), written("1.5e3", OTHER)),
    _float("0.00", float_content(0, 0, 2), reading(FLOAT, float_content(1, 0, 2)), written("0.00", OTHER)),
    _float("0." + "0" * 254 + "7", float_content(0, 7, 255)),
    number(
        ROW_FLOAT, "4294967296.5", (STRING, b"4294967296.5"), 4294967296.5, [python(4294967296.5, NUMBERS)]
    ),
    number(
        ROW_FLOAT,
        "0." + "0" * 255 + "7",
        (STRING, b"0." + b"0" * 255 + b"7"),
        7e-256,
        [python(7e-256, NUMBERS)],
    ),
]

# --- text


def _string(data: str, *ways: Way, xml_gets: str | None = None) -> Value:
    all_ways = [
        text(data),
        flown(data),
        *named(data, "string"),
        written(_quoted(data), "a string"),
        python(data, "str"),
        *ways,
    ]
    shown = data if xml_gets is None else xml_gets
    return Value(
        f"string {data[:20]!a}",
        "string",
        all_ways,
        data,
        "string",
        data.encode(),
        (STRING, data.encode()),
        data,
        shown,
        data,
    )


def _quoted(data: str) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in data) + '"'


STRINGS = [
    *(
        _string(data, reading(STRING, data.encode()), reading(STRING, data.encode() + b"\0more"), xml(data))
        for data in (
            "plain",
            "",
            "ștafetă 🙂",
            '<a b="c">&amp;\'',
            " \t\n ",
            ":/::",
            "12",
            '{"a": 1}',
            "{",
        )
    ),
    _string("x" * 1500, reading(STRING, b"x" * 1500), xml("x" * 1500)),
    _string("control \x01 \x1f", xml_gets="control \ufffd \ufffd"),
]

# --- JSON

ROW_JSON, ROW_TAGS = 'json `{"a": [1]}`', 'json with tags `{"$tuple": [1]}`'
PLAIN = "null, true, false, an array, an object"
PYTHON = "None, True, False, list, dict with text for keys"
MORE = "tuple, set, other dicts, nan and infinities; bytes within a value"


def _json(kept: str, nearest: str, value: object, json: object, *ways: Way, row: str = ROW_JSON) -> Value:
    """`kept` is what is in the log, `nearest` the text that XML gets."""
    sent = kept.encode()
    return Value(
        f"json {kept[:30]}",
        row,
        [*named(kept, "json"), *ways],
        kept,
        "json",
        sent,
        (STRING, sent),
        json,
        nearest,
        value,
    )


def _plain(kept: str, value: object, json: object, *ways: Way) -> Value:
    return _json(kept, kept, value, json, written(kept, PLAIN), python(value, PYTHON), *ways)


def _tagged(kept: str, nearest: str, value: object, json: object) -> Value:
    return _json(kept, nearest, value, json, python(value, MORE), row=ROW_TAGS)


JSONS = [
    _plain('{"a": [1]}', {"a": [1]}, {"a": [Number("1")]}),
    _json('{"a":[1,2.50]}', '{"a":[1,2.50]}', {"a": [1, 2.5]}, {"a": [Number("1"), Number("2.50")]}),
    _json(
        '{"b":null}',
        '{"b":null}',
        {"b": None},
        {"b": None},
        *any_json({"b": None}),
        written('{"b":null}', PLAIN),
    ),
    _plain("null", None, None, *any_json(None)),
    _plain("true", True, True, *any_json(True)),
    _plain("[]", [], [], *any_json([])),
    _json("12", "12", 12, Number("12"), *any_json(12)),
    _json("1.5", "1.5", 1.5, Number("1.5"), *any_json(1.5)),
    _plain('{"$set": {"a": 1}}', {"$set": {"a": 1}}, {"$set": {"a": Number("1")}}),
    _json(
        '"\\ud800"',
        '"\\ud800"',
        "\ud800",
        "\ud800",
        written('"\\ud800"', "a string"),
        python("\ud800", "str"),
    ),
    _json(
        "9" * 1001,
        "9" * 1001,
        int("9" * 1001),
        Number("9" * 1001),
        written("9" * 1001, WHOLE),
        python(int("9" * 1001), NUMBERS),
    ),
]
TAGGED = [
    _tagged('{"$tuple": [1]}', "[1]", (1,), [Number("1")]),
    _tagged('{"$tuple": [1, 2]}', "[1, 2]", (1, 2), [Number("1"), Number("2")]),
    _tagged('{"$set": [1, 2]}', "[1, 2]", {2, 1}, [Number("1"), Number("2")]),
    _tagged('[{"$bytes": "/w=="}]', '["/w=="]', [b"\xff"], ["/w=="]),
    _tagged('[{"$bytes": "YWI="}]', '["ab"]', [b"ab"], ["ab"]),
    _tagged(
        '{"$dict": [[1, "a"], [{"$tuple": [2]}, "b"]]}',
        '{"1": "a", "[2]": "b"}',
        {1: "a", (2,): "b"},
        {"1": "a", "[2]": "b"},
    ),
    *(_tagged(f'{{"$float": "{value}"}}', "null", value, None) for value in (math.nan, math.inf, -math.inf)),
    _json(
        '{"$dict": [["$tuple", [1]]]}',
        '{"$tuple": [1]}',
        {"$tuple": [1]},
        {"$tuple": [Number("1")]},
        written('{"$tuple": [1]}', PLAIN),
        python({"$tuple": [1]}, PYTHON),
        row=ROW_TAGS,
    ),
]

# --- bytes


def _bytes(row: str, data: bytes, shown: str, json: str, *ways: Way, base64: bool = False) -> Value:
    all_ways = [*in_base64(data), python(data, "bytes"), *ways]
    return Value(
        f"bytes {data!r}", row, all_ways, shown, "bytes", data, (STRING, data), json, shown, data, base64
    )


NOT_UTF_8 = "a STRING that is not UTF-8"
BYTES = [
    _bytes("bytes that are UTF-8", "ș ab".encode(), "ș ab", "ș ab"),
    _bytes("other bytes", b"\xffA", r"\xffA", "/0E=", reading(STRING, b"\xffA", NOT_UTF_8), base64=True),
    _bytes("other bytes", b"\xff", r"\xff", "/w==", reading(STRING, b"\xff\0A", NOT_UTF_8), base64=True),
]

VALUES = [*INTS, *SHORT_REALS, *FLOATS, *STRINGS, *JSONS, *TAGGED, *BYTES]
