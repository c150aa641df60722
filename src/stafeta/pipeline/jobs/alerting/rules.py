"""The rules of alerts, as they are written in TOML. (docs/alerts.md)

1. A rule has a name, a filter that says whose readings it judges, and exactly one key that says how: its kind.
2. A mistake is a ConfigError that names the file, the rule and the key, and says what would be right.
3. What a rule says of severity and message does not change how it judges: only the rest is in its `mark`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from hashlib import blake2s
from math import isfinite
from pathlib import Path
from string import Formatter
from typing import Any, Final, TypeVar

from stafeta.errors import ConfigError, InvalidName
from stafeta.names import check_filter, check_name, matcher
from stafeta.units import format_duration, parse_duration

SEVERITIES: Final = ("info", "warning", "critical")
PLACES: Final = ("rule", "topic", "value", "limit", "severity")
"""What may stand in braces in a message."""

_MESSAGES: Final = {
    "above": "{topic} is {value}, above {limit}.",
    "below": "{topic} is {value}, below {limit}.",
    "outside": "{topic} is {value}, outside {limit}.",
    "changed_by_more_than": "{topic} changed by more than {limit}, to {value}.",
    "z_score": "{topic} is {value}, more than {limit} standard deviations from what it was.",
    "silent_for": "{topic} has been silent for {limit}.",
}
KINDS: Final = tuple(_MESSAGES)
_LEVELLED: Final = ("above", "below", "outside", "z_score")  # those that a reading is beyond, or is not
_OTHERS: Final = ("name", "topics", "hysteresis", "for", "window", "severity", "message")
_LEAST: Final = 1.0  # seconds

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A rule. `limits` has one number (seconds, for silent_for), or two for outside."""

    name: str
    topics: str
    kind: str
    limits: tuple[float, ...]
    hysteresis: float = 0.0
    lasting: float = 0.0
    """For how many seconds readings must be beyond the limit before it is raised: the key `for`."""
    window: float = 0.0
    severity: str = "warning"
    message: str = ""

    @cached_property
    def mark(self) -> str:
        """The same for rules that evaluate alike."""
        said = (self.kind, self.limits, self.hysteresis, self.lasting, self.window)
        return blake2s(repr(said).encode(), digest_size=6).hexdigest()

    def matches(self, topic: str) -> bool:
        return matcher(self.topics)(topic)

    @property
    def limit(self) -> float | list[float] | str:
        """The limit as messages show it."""
        if self.kind == "silent_for":
            return format_duration(self.limits[0])
        return list(self.limits) if self.kind == "outside" else self.limits[0]

    def sentence(self, topic: str, value: float | None) -> str:
        """What the alert says when it is raised."""
        limit = " to ".join(map(_short, self.limits)) if self.kind != "silent_for" else str(self.limit)
        shown = "nothing" if value is None else _short(value)
        return (self.message or _MESSAGES[self.kind]).format(
            rule=self.name, topic=topic, value=shown, limit=limit, severity=self.severity
        )


def load(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The rules {path} cannot be read: {error.strerror}. The option alerts.rules says where they are."
        ) from None
    except ValueError:
        raise ConfigError(f"The rules {path} are not UTF-8.") from None
    return parse(text, str(path))


def parse(text: str, source: str = "rules") -> tuple[Rule, ...]:
    """The rules of a TOML document."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The rules {source} are not TOML: {error}.") from None
    for key in tables.keys() - {"rule"}:
        raise ConfigError(f"{source}: {key}: no such key; rules are written below [[rule]].")
    written = tables.get("rule")
    if not written:
        raise ConfigError(f"{source}: there is no rule; write one below [[rule]].")
    if not isinstance(written, list) or not all(isinstance(one, dict) for one in written):
        raise ConfigError(f"{source}: rule: a rule begins with [[rule]], in double brackets.")
    rules: dict[str, Rule] = {}
    for number, one in enumerate(written, 1):
        rule = _rule(_Keys(one, f"{source}: rule {one.get('name', number)!r}"))
        if rule.name in rules:
            raise ConfigError(f"{source}: rule {rule.name!r}: name: two rules have it; rename one of them.")
        rules[rule.name] = rule
    return tuple(rules.values())


class _Keys:
    """The keys of one rule, and where it stands."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self.given = given
        self._where = where

    def take(self, key: str, read: Callable[[Any], T], default: T | None = None) -> T:
        if key not in self.given:
            if default is None:
                raise self.wrong(key, "it is missing.")
            return default
        try:
            return read(self.given[key])
        except (ConfigError, InvalidName) as error:
            raise self.wrong(key, str(error)) from None

    def wrong(self, key: str, sentence: str) -> ConfigError:
        return ConfigError(f"{self._where}: {key}: {sentence}")


def _rule(keys: _Keys) -> Rule:
    for key in keys.given:
        if key not in (*KINDS, *_OTHERS):
            near = get_close_matches(key, (*KINDS, *_OTHERS), 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join((*KINDS, *_OTHERS))}."
            raise keys.wrong(key, f"a rule has no such key; {hint}")
    name = keys.take("name", _name)
    topics = keys.take("topics", _filter)
    kinds = [kind for kind in KINDS if kind in keys.given]
    if len(kinds) != 1:
        many = f"{' and '.join(kinds)} are too many" if kinds else "what it judges by is missing"
        raise keys.wrong(kinds[1] if kinds else "kind", f"{many}; write one of {', '.join(KINDS)}.")
    kind = kinds[0]
    for key, ones in (("hysteresis", _LEVELLED), ("for", _LEVELLED), ("window", ("z_score",))):
        if key in keys.given and kind not in ones:
            raise keys.wrong(key, f"it goes with {', '.join(ones)}, and not with {kind}.")
    return Rule(
        name,
        topics,
        kind,
        limits := keys.take(kind, _LIMITS[kind]),
        keys.take("hysteresis", lambda value: _hysteresis(value, kind, limits), 0.0),
        keys.take("for", parse_duration, 0.0),
        keys.take("window", _duration, None if kind == "z_score" else 0.0),
        keys.take("severity", _severity, "warning"),
        keys.take("message", _message, ""),
    )


def _name(value: Any) -> str:
    if not isinstance(value, str) or "/" in value:
        raise ConfigError(f"{value!r} is no name; it is one level of a topic, such as hot.")
    check_name(value)
    if len(value) > 64:
        raise ConfigError(f"{value!r} is too long; a name has at most 64 characters.")
    return value


def _filter(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is no filter; write one such as 'upb/+/temperature'.")
    check_filter(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if isfinite(number):
            return number
    raise ConfigError(f"{value!r} is not a number; write one such as 80 or 21.5.")


def _one(value: Any) -> tuple[float, ...]:
    return (_number(value),)


def _positive(value: Any) -> tuple[float, ...]:
    if (number := _number(value)) <= 0:
        raise ConfigError(f"{value!r} is too small; it must be more than 0.")
    return (number,)


def _range(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError(f"{value!r} is no range; write two numbers, such as [18, 26].")
    low, high = map(_number, value)
    if low >= high:
        raise ConfigError(f"{value!r} is no range; the lower number comes first.")
    return (low, high)


def _duration(value: Any) -> float:
    if (seconds := parse_duration(value)) < _LEAST:
        raise ConfigError(f"{value!r} is too short; the least is {format_duration(_LEAST)}.")
    return seconds


def _hysteresis(value: Any, kind: str, limits: tuple[float, ...]) -> float:
    number = _number(value)
    if number < 0:
        raise ConfigError(f"{value!r} is too small; it must be 0 or more.")
    room = {"outside": (limits[-1] - limits[0]) / 2, "z_score": limits[0]}.get(kind)
    if room is not None and number >= room:
        raise ConfigError(
            f"{value!r} leaves no reading that would clear it; it must be less than {_short(room)}."
        )
    return number


def _severity(value: Any) -> str:
    if value not in SEVERITIES:
        raise ConfigError(f"{value!r} is not one of {', '.join(SEVERITIES)}.")
    return str(value)


def _message(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is no text.")
    try:
        places = [place for place in Formatter().parse(value) if place[1] is not None]
    except ValueError as error:
        raise ConfigError(f"{value!r} is no message: {error}.") from None
    for _, name, form, conversion in places:
        if name not in PLACES or form or conversion:
            raise ConfigError(
                f"{value!r} has {{{name}}} in it; in braces there may be {', '.join(PLACES)}, and nothing else."
            )
    return value


_LIMITS: Final[dict[str, Callable[[Any], tuple[float, ...]]]] = {
    "above": _one,
    "below": _one,
    "outside": _range,
    "changed_by_more_than": _positive,
    "z_score": _positive,
    "silent_for": lambda value: (_duration(value),),
}


def _short(number: float) -> str:
    return f"{number:.12g}"
