"""What one user may do.

1. A decision is made once for a topic and remembered; what is remembered of all users together is bounded.
2. What the jobs of the pipeline write of a topic (`rollup/<size>/<topic>`, `alerts/<rule>/<topic>`, `dead/<topic>`) is
   seen only by those who may see the topic itself, and written by the pipeline's user alone. So is what begins with
   `$sys/`.
"""

from collections.abc import Iterable
from typing import Any, Final

from stafeta.errors import NotPermitted
from stafeta.names import MAX_BYTES, RESERVED, is_filter
from stafeta.security.rules import PUBLISH, VISIBLE, WORDS, RuleTrie

REMEMBERED: Final = 200_000  # decisions
DERIVED: Final = {"rollup": 2, "alerts": 2, "dead": 1}  # levels before the name of the topic
BROKER: Final = "$sys/broker"  # what administering the whole broker is allowed on


def source_of(name: str) -> str | None:
    """The topic that another one is made from by a job; None where it is not."""
    first, _, rest = name.partition("/")
    levels = DERIVED.get(first)
    if levels is None or not rest:
        return None
    parts = rest.split("/", levels - 1)
    return parts[-1] if len(parts) == levels else None


class Remembered:
    """Counts the decisions that are remembered, and forgets all where there are too many."""

    def __init__(self) -> None:
        self._count = 0
        self._all: list[dict[Any, Any]] = []

    def watch(self, *decisions: dict[Any, Any]) -> None:
        self._all += decisions

    def add(self) -> None:
        self._count += 1
        if self._count > REMEMBERED:
            for one in self._all:
                one.clear()
            self._count = 0


class Permissions:
    __slots__ = ("_by_client", "_masks", "_pipeline", "_remembered", "_tries", "publishable", "user")

    def __init__(
        self, user: str, tries: Iterable[RuleTrie], remembered: Remembered, *, pipeline: bool
    ) -> None:
        self.user = user
        self._tries = tuple(tries)
        self._pipeline = pipeline
        self._by_client = any(trie.names_client for trie in self._tries)
        self._remembered = remembered
        self._masks: dict[str | tuple[str, str], int] = {}
        # The topics that were published to, for those who ask again: what is in here may be published to by whoever
        # came by this generation's permissions. Empty where it depends on the client.
        self.publishable: dict[str, Any] = {}
        remembered.watch(self._masks, self.publishable)

    def on(self, name: str, client: str = "") -> int:
        """The operations that are allowed on a topic."""
        key = (name, client) if self._by_client else name
        known = self._masks.get(key)
        if known is None:
            if len(name) > MAX_BYTES or len(client) > MAX_BYTES:
                return 0  # neither can be, and strangers may send any number of them
            known = self._decide(name, client)
            self._remembered.add()
            self._masks[key] = known
        return known

    def note_published(self, name: str, topic: object) -> None:
        """The topic may be published to, and is there."""
        if not self._by_client:
            self._remembered.add()
            self.publishable[name] = topic

    def _decide(self, name: str, client: str) -> int:
        allowed = denied = 0
        for trie in self._tries:
            more, less = trie.decide(name, self.user, client)
            allowed |= more
            denied |= less
        mask = allowed & ~denied
        source = source_of(name)
        if (source is not None or name.startswith(RESERVED)) and not self._pipeline:
            mask &= ~PUBLISH
        if source is not None and mask & VISIBLE:
            mask &= self._decide(source, client) | ~VISIBLE
        return mask

    def check(self, operation: int, name: str, client: str = "") -> None:
        """Raises `NotPermitted` where none of the operations is allowed on the topic."""
        if not self.on(name, client) & operation:
            raise self.refusal(operation, name)

    def refusal(self, operation: int, name: str) -> NotPermitted:
        word = next(word for bit, word in WORDS.items() if bit & operation)
        return NotPermitted(f"User {self.user!r} may not {word} {name!r:.300}.")

    def check_filter(self, operation: int, filter_: str, client: str, *, whole: bool) -> None:
        """The same for a filter: where nothing that it matches is allowed, or (`whole`) something may not be."""
        if not is_filter(filter_):
            self.check(operation, filter_, client)
            return
        user, tries = self.user, self._tries
        if not any(trie.meets(filter_, operation, user, client) for trie in tries):
            raise self.refusal(operation, filter_)
        if whole and (
            not any(trie.covers(filter_, user, client) & operation for trie in tries)
            or any(trie.meets(filter_, operation, user, client, denied=True) for trie in tries)
        ):
            raise NotPermitted(
                f"The filter {filter_!r:.300} reaches further than user {user!r} may; a narrower one does not."
            )
