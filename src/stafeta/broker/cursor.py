"""How far a subscriber has come on one topic."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stafeta.ranges import merged

Span = tuple[int, int]  # offsets from the first up to, not including, the second

TOGETHER = 16  # ranges for each that is acknowledged, up to which they are merged in one go


class Move(NamedTuple):
    """What an acknowledgement did to a cursor."""

    floor: int  # as it was before
    dropped: Sequence[Span]  # ranges that were above it
    added: Sequence[Span]  # those that came instead


class Cursor:
    """Everything below `floor` is done, and so are the ranges above it.

    The ranges are sorted, apart from each other and above the floor, so that messages acknowledged out of order
    cost nothing once the gap before them closes. An acknowledgement is found by bisection.
    """

    __slots__ = ("_starts", "_stops", "floor", "handed_out")

    def __init__(self, floor: int, above: Sequence[Span] = ()) -> None:
        self.floor = floor
        self.handed_out = (
            0  # offsets below were handed out since the start of the broker, where they are not done
        )
        # Most cursors have none, and there are many cursors.
        self._starts: list[int] | None = [start for start, _ in above] if above else None
        self._stops: list[int] | None = [stop for _, stop in above] if above else None

    @property
    def above(self) -> list[Span]:
        """The ranges above the floor that are done."""
        return list(zip(self._starts or (), self._stops or (), strict=True))

    @property
    def gaps(self) -> int:
        """How many ranges are done above the floor."""
        return 0 if self._starts is None else len(self._starts)

    def done_from(self, offset: int) -> int:
        """How many messages from this offset on are done, which is above the floor and in no range's middle."""
        starts, stops = self._starts, self._stops
        if starts is None or stops is None:
            return 0
        at = bisect_left(starts, offset)
        return sum(stops[at:]) - sum(starts[at:])

    def ack(self, spans: Sequence[Span]) -> list[Move]:
        """Mark these done, which are in ascending order. Returns what that changed, where it was news."""
        before = self.floor
        if len(spans) == 1:
            start, stop = spans[0]
            if stop <= before or stop <= start:
                return []
            if self._starts is None and start <= before:
                self.floor = stop
                return [Move(before, (), ())]
        else:
            spans = [(start, stop) for start, stop in spans if stop > max(start, before)]
            if not spans:
                return []
            first, last = self._touched(spans[0][0], spans[-1][1])
            if last - first > TOGETHER * len(spans):
                return [move for span in spans if (move := self._ack((span,))) is not None]
        move = self._ack(spans)
        return [] if move is None else [move]

    def _touched(self, start: int, stop: int) -> Span:
        """Which of the ranges touch what lies between two offsets: from the first up to, not including, the second."""
        if self._starts is None or self._stops is None:
            return 0, 0
        return bisect_left(self._stops, start), bisect_right(self._starts, stop)

    def _ack(self, spans: Sequence[Span]) -> Move | None:
        first, last = self._touched(spans[0][0], spans[-1][1])
        known = self.above if last - first == self.gaps else self._between(first, last)
        before = self.floor
        joined = list(merged([(0, before)], known, spans))
        floor, added = joined[0][1], joined[1:]
        if floor == before and added == known:
            return None
        self.floor = floor
        self._replace(first, last, added)
        return Move(before, known, added)

    def _between(self, first: int, last: int) -> list[Span]:
        return list(zip((self._starts or [])[first:last], (self._stops or [])[first:last], strict=True))

    def _replace(self, first: int, last: int, spans: Sequence[Span]) -> None:
        starts, stops = self._starts or [], self._stops or []
        starts[first:last] = [start for start, _ in spans]
        stops[first:last] = [stop for _, stop in spans]
        self._starts, self._stops = (starts, stops) if starts else (None, None)

    def take_back(self, move: Move) -> None:
        """Undo what was done last."""
        edge = (move.added or move.dropped or ((move.floor, 0),))[0][0]
        first = bisect_left(self._starts or [], edge)
        self._replace(first, first + len(move.added), move.dropped)
        self.floor = move.floor

    def hand_out(self, start: int, stop: int) -> int:
        """These are handed out; returns how many of them not for the first time since the start of the broker."""
        before = self.handed_out
        if stop > before:
            self.handed_out = stop
        return min(stop, before) - start if before > start else 0

    def next_pending(self, start: int, stop: int) -> Span | None:
        """The first range from `start` up to `stop` that is not done."""
        start = max(start, self.floor)
        starts, stops = self._starts, self._stops
        if starts is not None and stops is not None:
            at = bisect_right(starts, start)
            if at:
                start = max(start, stops[at - 1])
            if at < len(starts):
                stop = min(stop, starts[at])
        return (start, stop) if start < stop else None

    def pending(self, stop: int, start: int = 0) -> Iterator[Span]:
        """The ranges from `start` up to `stop` that are not done. The cursor may move meanwhile."""
        span = self.next_pending(start, stop)
        while span is not None:
            yield span
            span = self.next_pending(span[1], stop)


class MovedCursor(Cursor):
    """One that somebody has moved since the start of the broker: what was handed out before does not count."""

    __slots__ = ()
