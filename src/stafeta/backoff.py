"""How long to wait before something that has failed is tried again."""


class Backoff:
    """`first` seconds, then twice as long each time, up to `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def longer(self) -> float:
        """The next wait, in seconds."""
        wait, self._next = self._next, min(self._next * 2, self._longest)
        return wait

    def reset(self) -> None:
        """It has gone well: begin with the first wait again."""
        self._next = self._first
