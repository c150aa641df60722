"""How far a subscriber has come on one topic."""

from collections.abc import Iterator


class Cursor:
    """Everything below `floor` is done, and so are the ranges in `above`, each (from, up to but not including).

    The ranges are sorted, apart from each other and above the floor, so that messages acknowledged out of order
    cost nothing once the gap before them closes.
    """

    __slots__ = ("above", "floor")

    def __init__(self, floor: int, above: tuple[tuple[int, int], ...] = ()) -> None:
        self.floor = floor
        self.above = above

    def ack(self, start: int, stop: int) -> bool:
        """Mark offsets from `start` up to `stop` done. True where that was news."""
        start = max(start, self.floor)
        if start >= stop:
            return False
        if not self.above:
            if start == self.floor:
                self.floor = stop
            else:
                self.above = ((start, stop),)
            return True
        if any(a <= start and stop <= b for a, b in self.above):
            return False
        merged: list[tuple[int, int]] = []
        for a, b in self.above:
            if b < start or a > stop:
                merged.append((a, b))
            else:
                start, stop = min(a, start), max(b, stop)
        merged.append((start, stop))
        merged.sort()
        if merged[0][0] == self.floor:
            self.floor = merged.pop(0)[1]
        self.above = tuple(merged)
        return True

    def pending(self, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges below `stop` that are not done."""
        start = self.floor
        for a, b in self.above:
            if a >= stop:
                break
            if start < a:
                yield start, a
            start = b
        if start < stop:
            yield start, stop
