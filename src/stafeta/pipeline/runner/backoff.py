"""How long to wait before a job that failed is started again."""

from dataclasses import dataclass


@dataclass
class Backoff:
    """A second after the first failure, then twice as long each time; from the beginning again after a while in which
    it went well. All in seconds."""

    first: float = 1.0
    most: float = 60.0
    calm: float = 60.0
    _next: float = 0.0

    def after(self, ran: float) -> float:
        """The wait after a failure of a job that had run for so long."""
        if ran >= self.calm or not self._next:
            self._next = self.first
        wait, self._next = self._next, min(self._next * 2, self.most)
        return wait
