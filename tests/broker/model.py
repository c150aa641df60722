"""What a broker should do, in plain Python, with nothing but lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field


def matches(filter_: str, name: str) -> bool:
    def walk(pattern: list[str], levels: list[str]) -> bool:
        if not pattern:
            return not levels
        if pattern[0] in ("#", "*"):
            return any(walk(pattern[1:], levels[at:]) for at in range(len(levels) + 1))
        return bool(levels) and pattern[0] in ("+", levels[0]) and walk(pattern[1:], levels[1:])

    hidden = name.startswith("$") and filter_[0] in "+#*"
    return not hidden and walk(filter_.split("/"), name.split("/"))


@dataclass
class Model:
    topics: set[str] = field(default_factory=set)
    leaving: set[str] = field(
        default_factory=set
    )  # topics that nobody subscribes to any more, until they are gone
    nexts: dict[str, int] = field(default_factory=dict)  # also of topics that were removed
    log: list[tuple[str, int, bytes]] = field(default_factory=list)  # all that was ever published
    pending: dict[tuple[str, str], list[tuple[str, int, bytes]]] = field(
        default_factory=dict
    )  # by client and filter
    dedup_window: dict[tuple[str, str], list[tuple[int, bytes, int]]] = field(default_factory=dict)
    sequences: dict[tuple[str, str], int] = field(default_factory=dict)
    staged: dict[tuple[str, int], list[tuple[str, str, bytes]]] = field(default_factory=dict)
    attempt: int = 0  # at a transaction, the last that was begun
    done: dict[str, int] = field(default_factory=dict)

    def subscribed(self, name: str) -> bool:
        return any(matches(filter_, name) for _, filter_ in self.pending)

    def publish(self, name: str, payload: bytes) -> int:
        self.topics.add(name)
        offset = self.nexts.get(name, 1)
        self.nexts[name] = offset + 1
        self.log.append((name, offset, payload))
        for (_, filter_), pending in self.pending.items():
            if matches(filter_, name):
                pending.append((name, offset, payload))
        return offset

    def publish_once(self, name: str, client: str, counter: int, payload: bytes) -> int:
        dedup_window = self.dedup_window.setdefault((client, name), [])
        for known, stored, offset in dedup_window:
            if known == counter and stored == payload:
                return offset
        offset = self.publish(name, payload)
        dedup_window.append((counter, payload, offset))
        del dedup_window[:-8]
        return offset

    def publish_sequence(self, name: str, client: str, sequence: int, payloads: list[bytes]) -> None:
        for payload in payloads[self.sequences.get((client, name), 0) + 1 - sequence :]:
            self.publish(name, payload)
            self.sequences[client, name] = self.sequences.get((client, name), 0) + 1

    def subscribe(self, client: str, filter_: str, firsts: dict[str, int] | None = None) -> None:
        """`firsts` are the first offsets that topics hold, for one that begins with the earliest."""
        held = [
            m for m in self.log if firsts and m[1] >= firsts.get(m[0], m[1] + 1) and matches(filter_, m[0])
        ]
        self.pending.setdefault((client, filter_), held)
        if not any(sign in filter_ for sign in "+#*"):
            self.topics.add(filter_)

    def unsubscribe(self, client: str, filter_: str) -> None:
        del self.pending[client, filter_]
        for name in [name for name in self.topics if matches(filter_, name)]:
            if not self.subscribed(name):
                self.topics.discard(name)

    def look(self, existing: set[str]) -> None:
        """Topics that nobody subscribes to go, but when is up to the broker: these have not gone yet."""
        self.topics = {name for name in self.topics if self.subscribed(name)} | {
            name for name in existing if not self.subscribed(name)
        }

    def ack(self, client: str, filter_: str, name: str, offsets: set[int]) -> None:
        kept = [m for m in self.pending[client, filter_] if not (m[0] == name and m[1] in offsets)]
        self.pending[client, filter_] = kept

    def begin(self, producer: str) -> int:
        counter = self.done.get(producer, -1) + 1
        self.staged.pop((producer, counter), None)
        return counter

    def stage(self, producer: str, counter: int, part: str, name: str, payload: bytes) -> None:
        if counter > self.done.get(producer, -1):
            self.staged.setdefault((producer, counter), []).append((part, name, payload))

    def commit_stage(self, producer: str, counter: int, parts: Sequence[str] | None) -> None:
        """Parts become visible one after the other, in the order in which they are named, or else were begun."""
        if counter <= self.done.get(producer, -1):
            return
        self.done[producer] = counter
        staged = self.staged.pop((producer, counter), [])
        named = dict.fromkeys(part for part, _, _ in staged) if parts is None else parts
        for wanted in named:
            for part, name, payload in staged:
                if part == wanted:
                    self.publish(name, payload)

    def collect(self) -> None:
        self.topics = {name for name in self.topics if self.subscribed(name)}

    def first(self, name: str) -> int:
        """The lowest offset that someone waits for."""
        held = [offset for pending in self.pending.values() for topic, offset, _ in pending if topic == name]
        return min(held, default=self.nexts.get(name, 1))
