"""A stream of topics as readings that rules are about: what alerts read.

1. A topic that no rule is about is not read.
2. Where a rule waits for silence (`idleTrigger`), there is a micro-batch without messages when the next deadline has
   passed, or the clock was set back, and not before: the notes of the last micro-batch say when that is.
"""

import json
from collections.abc import Sequence
from typing import Final

from stafeta.names import matcher
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.stream import Offsets, time_of_day
from stafeta.pipeline.jobs.alerting.alert_state import is_set_back
from stafeta.pipeline.jobs.alerting.packs import packed
from stafeta.pipeline.jobs.alerting.rules import Rule
from stafeta.pipeline.jobs.batches.reading_source import ReadingSource, ReadingStream
from stafeta.pipeline.jobs.batches.readings import Readings
from stafeta.pipeline.jobs.batches.stateful import last_notes

NAME: Final = "stafeta-alerts"
SILENT: Final = "silent"  # options of its own: the filters of rules that wait for silence,
VALUED: Final = "valued"  # those of the others, both as JSON,
STATE: Final = "state"  # and the folder of what is kept
DUE: Final = "due"
"""The note that says when the next deadline is, in milliseconds since 1970; 0 where there is none."""
NOW: Final = "now"
"""The note that says when the micro-batch was."""


def options_of(rules: Sequence[Rule], folder: str) -> dict[str, str]:
    silent = [rule.topics for rule in rules if rule.kind == "silent_for"]
    valued = [rule.topics for rule in rules if rule.kind != "silent_for"]
    own = {SILENT: json.dumps(silent), VALUED: json.dumps(valued), STATE: folder}
    return own | ({"idleTrigger": "0s"} if silent else {})


class AlertSource(ReadingSource):
    own = (SILENT, VALUED, STATE)

    @classmethod
    def name(cls) -> str:
        return NAME

    def stream(self, options: ReadOptions) -> "AlertStream":
        silent, valued, folder = (str(self.options.get(name)) for name in self.own)
        return AlertStream(options, json.loads(silent), json.loads(valued), folder)


class AlertStream(ReadingStream):
    def __init__(
        self, options: ReadOptions, silent: Sequence[str], valued: Sequence[str], folder: str
    ) -> None:
        super().__init__(options)
        self._silent = silent
        self._valued = valued
        self._folder = folder
        self._due: tuple[Offsets, int, int] = {}, 0, 0  # after which micro-batch, and when that was

    def wants(self, topic: str) -> bool:
        return super().wants(topic) and any(matcher(one)(topic) for one in (*self._silent, *self._valued))

    def packed(self, readings: Readings, now: int) -> bytes | None:
        return packed(readings, self._takes_all)

    def goes_by_clock(self, start: Offsets) -> bool:
        if self._options.idle_trigger is None or self._target is not None:
            return False
        if self._due[0] != start:
            notes = last_notes(self._folder)
            self._due = start, notes.get(DUE, 0), notes.get(NOW, 0)
        _, due, before = self._due
        now = time_of_day() // 1000
        return due > 0 and (due <= now or is_set_back(before, now))

    def _takes_all(self, topic: str) -> bool:
        return any(matcher(one)(topic) for one in self._silent)
