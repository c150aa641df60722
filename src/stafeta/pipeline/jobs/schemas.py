"""The JSON schemas of topics, for the job deadletter. (docs/alerts.md#dead-letters)

1. Which schema a filter's topics have is written in TOML. Where several match a topic, the first counts.
2. Schemas are of the draft 2020-12, and are checked when they are loaded, references included: nothing is fetched, and
   no message is blamed for a schema's mistake.
3. A message has a JSON value: what a json one says, the number of an int, short_real or float, the text of a string.
   Bytes have none.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import ConfigError, InvalidMessage, InvalidName
from stafeta.message import Kind, check_payload
from stafeta.names import check_filter, matcher

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_KEYS: Final = ("topics", "file", "inline")
_LONGEST: Final = 500  # characters of a reason


@dataclass(frozen=True)
class Schema:
    """The schema of the topics that a filter matches, as JSON."""

    topics: str
    text: str


def load(path: str | Path) -> tuple[Schema, ...]:
    """The schemas that a TOML file names; files in it are found from where it is."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The schemas {path} cannot be read: {error.strerror}. The option deadletter.schemas says where they are."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The schemas {path} are not TOML: {error}.") from None
    for key in tables.keys() - {"schema"}:
        raise ConfigError(f"{path}: {key}: no such key; schemas are written below [[schema]].")
    written = tables.get("schema", [])
    if not isinstance(written, list) or not all(isinstance(one, dict) for one in written):
        raise ConfigError(f"{path}: schema: a schema begins with [[schema]], in double brackets.")
    return tuple(_schema(one, f"{path}: schema {number}", path) for number, one in enumerate(written, 1))


def reason(schemas: Sequence[Schema], topic: str, kind: str, payload: bytes) -> str | None:
    """Why a message is none that its kind and its topic's schema allow; None if it is."""
    try:
        check_payload(Kind.of(kind), payload)
    except InvalidMessage as error:
        return str(error)
    text = next((one.text for one in schemas if matcher(one.topics)(topic)), None)
    if text is None:
        return None
    if kind == "bytes":
        return "The topic has a JSON schema, and bytes are no JSON."
    return _fault(_validator(text), _value(kind, payload))


def _value(kind: str, payload: bytes) -> Any:
    if kind == "json":
        return json.loads(payload)
    if kind == "string":
        return payload.decode()
    return int(payload) if kind == "int" else float(Decimal(payload.decode()))


def _fault(validator: "Draft202012Validator", value: Any) -> str | None:
    from jsonschema.exceptions import best_match

    try:
        found = best_match(validator.iter_errors(value))
    except RecursionError:
        return "It is nested too deeply to be checked by its topic's schema."
    if found is None:
        return None
    said = found.message if len(found.message) <= _LONGEST else f"{found.message[:_LONGEST]}…"
    return f"{found.json_path}: {said}."


def _schema(given: dict[str, Any], where: str, path: Path) -> Schema:
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"{where}: {key}: no such key; there are {', '.join(_KEYS)}.")
    topics = given.get("topics")
    if not isinstance(topics, str):
        raise ConfigError(f"{where}: topics: {topics!r} is no filter; write one such as 'orders/#'.")
    try:
        check_filter(topics)
    except InvalidName as error:
        raise ConfigError(f"{where}: topics: {error}") from None
    if ("file" in given) == ("inline" in given):
        raise ConfigError(
            f"{where}: write either file, the path of a JSON schema, or inline, the schema itself."
        )
    if "inline" in given:
        where, schema = f"{where}: inline", given["inline"]
    else:
        where, schema = f"{where}: file", _read(given["file"], f"{where}: file", path)
    _check(schema, where)
    return Schema(topics, json.dumps(schema, default=str))


def _read(name: Any, where: str, path: Path) -> Any:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {name!r} is no path.")
    file = path.parent / name
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: {file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {file} is not JSON: {error}.") from None


def _check(schema: Any, where: str) -> None:
    """Raise where it is no schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, dict):
        raise ConfigError(f"{where}: {schema!r} is no JSON schema; it must be an object.")
    draft = schema.get("$schema", DRAFT)
    if not isinstance(draft, str) or draft.removesuffix("#") != DRAFT:
        raise ConfigError(f"{where}: {draft!r} is not the draft that is understood: {DRAFT}.")
    try:
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        raise ConfigError(f"{where}: {error.json_path}: {error.message}.") from None
    resolver = _registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ConfigError(
                f"{where}: {reference!r} is not in the schema; what it refers to must be, below $defs."
            ) from None


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


@lru_cache(1)
def _registry() -> Any:
    """What references can be resolved from besides the schema itself: those of the drafts. No network."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has no types

    return REGISTRY


@lru_cache(1000)
def _validator(text: str) -> "Draft202012Validator":
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(text), registry=_registry())
