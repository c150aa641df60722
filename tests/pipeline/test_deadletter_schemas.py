"""JSON schemas of topics: how they are declared, and what is said of mistakes and of messages that fail them."""

from pathlib import Path

import pytest

from stafeta.errors import ConfigError
from stafeta.pipeline.jobs.schemas import DRAFT, Schema, load, reason

ORDERS = '{"type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 1}}}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[schemas]]", "schemas: no such key; schemas are written below [[schema]]."),
        ("[schema]", "schema: a schema begins with [[schema]], in double brackets."),
        ("[[schema", "schemas.toml are not TOML"),
        ("[[schema]]\nfile = 'a.json'", "schema 1: topics: None is no filter; write one such as 'orders/#'."),
        ("[[schema]]\ntopics = 'a#'\nfile = 'a.json'", "schema 1: topics: In 'a#' the level"),
        ("[[schema]]\ntopics = '#'", "schema 1: write either file, the path of a JSON schema, or inline"),
        ("[[schema]]\ntopics = '#'\nfile = 'a'\ninline = {}", "schema 1: write either file, the path of a"),
        (
            "[[schema]]\ntopics = '#'\nfil = 'a'",
            "schema 1: fil: no such key; there are topics, file, inline.",
        ),
        ("[[schema]]\ntopics = '#'\nfile = 7", "schema 1: file: 7 is no path."),
        (
            "[[schema]]\ntopics = '#'\nfile = 'none.json'",
            "none.json cannot be read: No such file or directory.",
        ),
        ("[[schema]]\ntopics = '#'\nfile = 'schemas.toml'", "schemas.toml is not JSON"),
        (
            "[[schema]]\ntopics = '#'\ninline = 7",
            "schema 1: inline: 7 is no JSON schema; it must be an object.",
        ),
        (
            "[[schema]]\ntopics = '#'\ninline = {type = 'numbr'}",
            "schema 1: inline: $.type: 'numbr' is not valid",
        ),
        (
            "[[schema]]\ntopics = '#'\ninline = {pattern = '['}",
            "schema 1: inline: $.pattern: '[' is not a 'regex'.",
        ),
        (
            "[[schema]]\ntopics = '#'\ninline = {'$ref' = 'other.json'}",
            "schema 1: inline: 'other.json' is not in the schema; what it refers to must be, below $defs.",
        ),
        (
            "[[schema]]\ntopics = '#'\ninline = {'$schema' = 'http://json-schema.org/draft-07/schema#'}",
            f"is not the draft that is understood: {DRAFT}.",
        ),
    ],
)
def test_a_mistake_is_a_sentence_that_says_where_it_is(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "schemas.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert sentence in str(caught.value)


def test_a_file_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*deadletter\.schemas"):
        load(tmp_path / "none.toml")


def test_schemas_are_found_beside_the_file_that_names_them_and_the_first_that_matches_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "orders.schema.json").write_text(ORDERS)
    (tmp_path / "schemas.toml").write_text(
        "[[schema]]\ntopics = 'orders/#'\nfile = 'orders.schema.json'\n"
        "[[schema]]\ntopics = '#'\n[schema.inline]\n'$ref' = '#/$defs/short'\n"
        "[schema.inline.'$defs'.short]\nmaxLength = 3\n"
    )
    schemas = load(tmp_path / "schemas.toml")
    assert [one.topics for one in schemas] == ["orders/#", "#"]
    assert reason(schemas, "orders/1", "json", b'{"id": 1, "more": "anything"}') is None
    assert reason(schemas, "orders/1", "json", b'{"id": 0}') == "$.id: 0 is less than the minimum of 1."
    assert reason(schemas, "orders/1", "json", b"{}") == "$: 'id' is a required property."
    assert reason(schemas, "other", "string", b"four") == "$: 'four' is too long."
    assert reason(schemas, "other", "string", b"one") is None


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("int", b"007", None),
        ("int", b"11", "$: 11 is greater than the maximum of 10."),
        ("short_real", b"9.75", None),
        ("float", b"10.5", "$: 10.5 is greater than the maximum of 10."),
        ("string", b"7", "$: '7' is not of type 'number'."),
        ("json", b"7", None),
        ("bytes", b"7", "The topic has a JSON schema, and bytes are no JSON."),
        ("json", b"[7", "'[7' is not of the kind json."),
        ("json", b"NaN", "'NaN' is not of the kind json."),
    ],
)
def test_every_kind_but_bytes_has_a_json_value(kind: str, payload: bytes, expected: str | None) -> None:
    schemas = [Schema("a", '{"type": "number", "maximum": 10}')]
    assert reason(schemas, "a", kind, payload) == expected


def test_a_long_reason_is_cut_and_a_deep_message_is_none_that_can_be_checked() -> None:
    long = reason([Schema("a", '{"type": "number"}')], "a", "string", b"x" * 9999)
    assert long is not None
    assert len(long) < 600
    nested = Schema("a", '{"$ref": "#/$defs/x", "$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}}')
    deep = reason([nested], "a", "json", b"[" * 900 + b"]" * 900)
    assert deep == "It is nested too deeply to be checked by its topic's schema."
