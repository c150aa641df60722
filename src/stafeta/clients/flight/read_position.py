"""How far a reading has come: what to ask for next, and what of the answer is new.

1. Messages of one topic come by their offsets, those of a filter by their positions. The last one that was handed on is
   the mark; whatever comes again after a reconnect is not above it.
2. A topic is asked for from the mark on. A filter, and a client's cursor, cannot be: they are asked for as the first
   time, and what is not above the mark is dropped.
3. The broker's mark of the log goes with what is asked for: where the log is another one by then, the broker says so
   (`DataLoss`), since its offsets and positions are other messages'.
4. The columns that this needs are asked for too, and taken out again before the program sees them.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from stafeta.errors import ConfigError
from stafeta.message import COLUMNS

StartOffset: TypeAlias = int | datetime | str | None
"""Where to begin or to end: an offset, a time, `"earliest"`, `"latest"`."""


class ReadPosition:
    def __init__(
        self,
        what: str,
        *,
        client: str | None = None,
        start: StartOffset = None,
        end: StartOffset = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> None:
        self.client = client
        self.start = start
        self.follow = follow
        self.one_topic = not any(sign in what for sign in "+#*")
        self.latest = start == "latest" and client is None
        self.what = what
        self.mark: int | None = None
        self.log = ""  # the broker's mark
        self._left = limit
        self._marks = "offset" if self.one_topic else "position"
        self.has_begun = False  # a stream was opened: from there on nothing may be missed
        self._wanted = tuple(COLUMNS if columns is None else columns)
        needed = [
            self._marks,
            *([] if client is None else ["offset"] if self.one_topic else ["topic", "offset"]),
        ]
        more = [name for name in dict.fromkeys(needed) if name not in self._wanted]
        self._ticket: dict[str, Any] = {
            "topic" if client is None and self.one_topic else "filter": what,
            "columns": [*self._wanted, *more],
        }
        self._hides = bool(more)
        if client is not None:
            self._ticket["client"] = client
        else:
            self._ticket.update(_place("from", start))
            self._ticket.update(_place("to", end))
        if follow:
            self._ticket["follow"] = True

    def ticket(self) -> bytes:
        """What to ask for."""
        ticket = {**self._ticket, "mark": self.log}
        if self.mark is not None and "topic" in ticket:
            ticket.pop("from_time", None)
            ticket["from"] = self.mark + 1
        elif self.has_begun and self.latest:
            ticket["from"] = "earliest"
        if self._left is not None and (self._marks == "offset" or self.mark is None):
            ticket["limit"] = self._left
        return json.dumps(ticket).encode()

    def restart(self) -> None:
        """Forget how far the reading has come."""
        self.mark, self.log, self.has_begun = None, "", False

    @property
    def done(self) -> bool:
        """Whether nothing more is to come."""
        end = self._ticket.get("to")
        ended = self._marks == "offset" and end is not None and self.mark is not None and self.mark + 1 >= end
        return self._left == 0 or ended

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows that were not there before, with all columns; None where there are none."""
        marks = batch.column(self._marks)
        if not batch.num_rows or (self.mark is not None and _at(marks, -1) <= self.mark):
            return None
        if self.mark is not None and _at(marks, 0) <= self.mark:
            import pyarrow.compute as pc

            batch = batch.filter(pc.greater(marks, pa.scalar(self.mark, marks.type)))
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            self.mark = _at(batch.column(self._marks), -1)
        return batch

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns that were asked for."""
        return batch.select(list(self._wanted)) if self._hides else batch

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The same for a schema."""
        return pa.schema([schema.field(name) for name in self._wanted]) if self._hides else schema


def _place(key: str, place: StartOffset) -> dict[str, object]:
    if place is None:
        return {}
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise ConfigError(f"The time {place.isoformat()} has no zone; write datetime(…, tzinfo=UTC).")
        return {f"{key}_time": place.isoformat()}
    allowed = {"from": ("earliest", "latest"), "to": ()}[key]
    if (isinstance(place, int) and not isinstance(place, bool)) or place in allowed:
        return {key: place}
    words = "".join(f", {word!r}" for word in allowed)
    raise ConfigError(f"{place!r} is no place in a topic; give an offset, or a datetime with a zone{words}.")


def _at(column: Any, index: int) -> int:
    return int(column[index].as_py())
