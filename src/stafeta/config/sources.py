"""Where options come from: a file, the environment, flags. The later of these wins."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

from stafeta import credentials
from stafeta.config.forms import Keep
from stafeta.config.options import KEEP, OPTIONS, SECTIONS, Config, Key, TopicRule
from stafeta.errors import ConfigError, InvalidName
from stafeta.names import check_filter

FILE_VARIABLE = "STAFETA_CONFIG"
# Those that are no options of a broker: of this module, and of the commands that are clients.
OTHER_VARIABLES = {FILE_VARIABLE, "STAFETA_BROKER", "STAFETA_STATE", *credentials.VARIABLES.values()}
VARIABLES: dict[str, Key] = {
    **{"_".join(("STAFETA", *key)).upper(): key for key in OPTIONS},
    **{f"STAFETA_{key[0]}".upper(): key for key in OPTIONS if key[1:] == ("listen",)},
}


class Setting(NamedTuple):
    """An option's value as it was given, and where: a file, a variable, a flag."""

    key: Key
    value: object
    source: str


def load(
    file: str | Path | None = None,
    flags: Iterable[Setting] = (),
    environment: Mapping[str, str] = environ,
) -> Config:
    """The configuration that a file (else the one STAFETA_CONFIG names), the environment and flags make together."""
    path = file or environment.get(FILE_VARIABLE)
    settings = from_file(Path(path)) if path else []
    return build([*settings, *from_environment(environment), *flags])


def build(settings: Iterable[Setting]) -> Config:
    """The configuration that settings make, each one taking the place of an earlier one of the same option."""
    values: dict[str, dict[str, Any]] = {"": {}}
    keeps: dict[str, Keep] = {}
    for setting in settings:
        try:
            if setting.key[0] == "topics" and len(setting.key) == 3 and setting.key[2] == "keep":
                check_filter(setting.key[1])
                keeps[setting.key[1]] = KEEP.read(setting.value)
            elif form := OPTIONS.get(setting.key):
                *table, name = setting.key
                values.setdefault("".join(table), {})[name] = form.read(setting.value)
            else:
                raise ConfigError(_unknown(setting.key))
        except (ConfigError, InvalidName) as error:
            raise ConfigError(f"{setting.source}: {'.'.join(setting.key)}: {error}") from None
    filled = {name: replace(cls(), **values.get(name, {})) for name, cls in SECTIONS.items()}
    rules = tuple(TopicRule(filter, keep) for filter, keep in keeps.items())
    config = Config(**values[""], **filled, topics=rules)
    config.check()
    return config


def from_file(path: Path) -> list[Setting]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The configuration {path} is not TOML: {error}.") from None
    return [Setting(key, value, str(path)) for key, value in _flatten((), tables)]


def from_environment(environment: Mapping[str, str]) -> list[Setting]:
    settings = []
    for name, value in environment.items():
        if name in VARIABLES:
            settings.append(Setting(VARIABLES[name], value, name))
        elif name.startswith("STAFETA_") and name not in OTHER_VARIABLES:
            raise ConfigError(f"{name}: no option has this name.{_hint(name, VARIABLES)}")
    # The short STAFETA_ZEROMQ comes first, so that STAFETA_ZEROMQ_LISTEN wins whatever their order.
    return sorted(settings, key=lambda setting: setting.source)


def from_assignment(text: str, source: str) -> Setting:
    """A setting written as `section.option=value`, or `topics."filter".keep=value`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{source} {text}: write it as section.option=value, such as zeromq.max_frame=32MiB."
        )
    words = key.strip().split(".")
    if words[0] == "topics" and len(words) > 2:
        filter = ".".join(words[1:-1])
        words = ["topics", filter[1:-1] if filter[:1] == filter[-1:] == '"' else filter, words[-1]]
    return Setting(tuple(words), value.strip(), source)


def _flatten(path: Key, tables: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
    for name, value in tables.items():
        key = (*path, name)
        if not isinstance(value, dict):
            yield key, value
        elif value:
            yield from _flatten(key, value)
        elif key[0] != "topics" and name not in SECTIONS:
            # An empty table sets nothing, but its name is a mistake all the same.
            yield key, value


def _unknown(key: Key) -> str:
    if key[0] in SECTIONS and len(key) == 1:
        return f"this is a section, not an option; write [{key[0]}] and its options below."
    if key[0] == "topics":
        return 'options of topics are written keep = "7d" below [topics."FILTER"].'
    names = [".".join(option) for option in OPTIONS]
    elsewhere = [name for name in names if name.split(".")[-1] == key[-1]]
    return f"no option has this name.{_hint('.'.join(key), elsewhere or names)}"


def _hint(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f" Did you mean {close[0]}?" if close else ""
