"""What a subscriber has got: when, how late, what is missing of it and what came again."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stafeta.bench.histogram import Histogram
from stafeta.bench.message_header import PUBLISHER_SHIFT, number_of

SLOT: Final = 100_000_000  # nanoseconds of which the deliveries are counted together


class DeliveryStats:
    """Counts messages. Those that were to be sent before `begin` are not counted."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.latency = Histogram()
        self.last = 0  # when the last message came
        self.repeated = 0
        self._slots: Counter[int] = Counter()
        self._next: dict[int, int] = {}  # by publisher: the number that comes after all that came
        self._missing: set[int] = set()  # of those before it

    def take(self, message_header: Iterable[tuple[int, int]], now: int) -> None:
        """Messages that have come together, each with its time and number."""
        total = 0
        for time, number in message_header:
            if time >= self.begin:
                total += 1
                self.latency.add(now - time)
                self.take_numbers(number, 1)
        if total:
            self.note(total, now)

    def note(self, total: int, now: int) -> None:
        """So many messages have come now."""
        self._slots[now // SLOT] += total
        self.last = now

    def take_numbers(self, number: int, count: int) -> None:
        """Messages with numbers in a row have come."""
        publisher = number >> PUBLISHER_SHIFT
        following = self._next.get(publisher)
        if following is None:
            following = number_of(publisher, 0)
        end = number + count
        if number > following:
            self._missing.update(range(following, number))
        elif number < following:
            for one in range(number, min(end, following)):
                if one in self._missing:
                    self._missing.remove(one)  # it is only late
                else:
                    self.repeated += 1
        self._next[publisher] = max(following, end)

    @property
    def received(self) -> int:
        """How many different messages have come."""
        following = list(self._next.items())  # at once: it may grow meanwhile, in another thread
        numbers = sum(number - number_of(publisher, 0) for publisher, number in following)
        return numbers - len(self._missing)

    def lost(self, published: Sequence[int]) -> int:
        """How many messages have not come, of so many of each publisher."""
        return sum(published) - self.received

    def to_plain(self, published: Sequence[int]) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "latency": self.latency.to_plain(),
            "slots": sorted(self._slots.items()),
            "last": self.last,
            "received": self.received,
            "repeated": self.repeated,
            "lost": self.lost(published),
        }
