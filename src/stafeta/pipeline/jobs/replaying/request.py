"""What a replay is asked for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from stafeta import times
from stafeta.errors import ConfigError, InvalidName
from stafeta.names import check_filter, check_name, filters_of, matcher

TOPIC: Final = "{topic}"
FULL: Final = "full"
ORIGINAL: Final = "original"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Request:
    """Which messages, where to, and how fast. Times are microseconds since 1970; `until` and `to_offset` are not
    included."""

    topic: str
    into: str
    since: int | None = None
    until: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    rate: float | str = FULL
    speed: float = 1.0
    keep_times: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Request":
        """The request of a command line, or a sentence on what is wrong with it."""
        request = cls(
            _checked("--topic", _filters, arguments.get("topic")),
            _checked("--into", _into, arguments.get("into")),
            _checked("--from", times.parse, arguments.get("since"), optional=True),
            _checked("--to", times.parse, arguments.get("until"), optional=True),
            arguments.get("from_offset"),
            arguments.get("to_offset"),
            _checked("--rate", _rate, arguments.get("rate") or FULL),
            float(arguments.get("speed") or 1.0),
            bool(arguments.get("keep_times")),
        )
        for name, low, high in (
            ("--from and --to", request.since, request.until),
            ("--from-offset and --to-offset", request.from_offset, request.to_offset),
        ):
            if low is not None and high is not None and low >= high:
                raise ConfigError(f"{name}: nothing lies between them; the second is not included.")
        if request.speed <= 0:
            raise ConfigError(f"--speed is {request.speed:g}; it must be above 0: 2 is twice as fast.")
        if request.speed != 1.0 and request.rate != ORIGINAL:
            raise ConfigError("--speed goes with --rate original.")
        return request

    def wants(self, topic: str) -> bool:
        return any(matcher(one)(topic) for one in self.topic.split(","))

    def target(self, topic: str) -> str:
        return self.into.replace(TOPIC, topic)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def name_of(given: str | None) -> str:
    """The name of a replay: the one that is given, or a new one."""
    if not given:
        return uuid4().hex[:8]
    if not _NAME.fullmatch(given):
        raise ConfigError(
            f"A replay cannot be named {given!r}: write letters, digits, '.', '-' and '_', at most 64."
        )
    return given


def _checked(option: str, parse: Callable[[str], Any], text: str | None, *, optional: bool = False) -> Any:
    if optional and text is None:
        return None
    try:
        return parse(text or "")
    except (ConfigError, InvalidName) as error:
        raise ConfigError(f"{option}: {error}") from None


def _filters(text: str) -> str:
    filters = filters_of(text)
    for one in filters:
        check_filter(one)
    return ",".join(filters)


def _into(text: str) -> str:
    if not text:
        raise ConfigError(
            f"say where to: a topic, such as copies, or one for each, such as again/{TOPIC}; {TOPIC} alone is the "
            "same topics."
        )
    check_name(text.replace(TOPIC, "topic"))
    return text


def _rate(text: str) -> float | str:
    if text in (FULL, ORIGINAL):
        return text
    try:
        rate = float(text.replace("_", ""))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"{text!r} is neither messages a second nor {ORIGINAL!r} nor {FULL!r}.")
    return rate
