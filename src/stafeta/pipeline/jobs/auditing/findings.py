"""What an audit has found wrong, and how it is printed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from stafeta import text_tables
from stafeta.ranges import union

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
"""Offsets, from the first up to, not including, the second of each pair."""

SHOWN: Final = 3  # ranges of offsets in a line
LINES: Final = 100  # of the table; the others are only counted


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be: which check has found it, on which topic, and at which offsets."""

    check: str
    topic: str
    what: str
    ranges: Ranges
    count: int

    @property
    def where(self) -> str:
        shown = [
            str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in self.ranges[:SHOWN]
        ]
        return ", ".join(shown) + (", …" if len(self.ranges) > SHOWN else "")


class Report(NamedTuple):
    topics: int
    messages: int
    findings: tuple[Finding, ...]

    @property
    def summary(self) -> str:
        looked_at = f"{counted(self.topics, 'topic')}, {counted(self.messages, 'message')}"
        if not self.findings:
            return f"{looked_at}: sound"
        return f"{looked_at}: {counted(len(self.findings), 'fault')}"

    def table(self) -> list[str]:
        """The lines of a table of what was found, and the summary."""
        lines = []
        if self.findings:
            rows = [("check", "topic", "what", "where", "count")]
            rows += [
                (one.check, one.topic, one.what, one.where, f"{one.count:,}") for one in self.findings[:LINES]
            ]
            lines += text_tables.lines(rows, "<" * len(rows[0]))
            if len(self.findings) > LINES:
                lines.append(f"… and {len(self.findings) - LINES:,} more")
        return [*lines, self.summary]

    def json(self) -> list[str]:
        """An object a line: what was found, and at the end what was looked at."""
        objects: list[dict[str, object]] = [
            {
                "check": one.check,
                "topic": one.topic,
                "what": one.what,
                "where": [list(pair) for pair in one.ranges],
                "count": one.count,
            }
            for one in self.findings
        ]
        objects.append(
            {
                "topics": self.topics,
                "messages": self.messages,
                "faults": len(self.findings),
                "sound": not self.findings,
            }
        )
        return [json.dumps(one, ensure_ascii=False) for one in objects]


class Tally:
    """Findings in the making: offsets that the same is said of come together."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[tuple[int, int]]] = {}

    def add(self, check: str, topic: str, what: str, ranges: Iterable[tuple[int, int]]) -> None:
        found = list(ranges)
        if found:
            self._found.setdefault((check, topic, what), []).extend(found)

    def findings(self) -> list[Finding]:
        made = []
        for (check, topic, what), ranges in sorted(self._found.items()):
            merged = tuple(union(ranges))
            made.append(Finding(check, topic, what, merged, sum(stop - start for start, stop in merged)))
        return made


def counted(count: int, what: str) -> str:
    """A number with its noun: 1 topic, 12,345 messages."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
