"""What strangers may use up."""

from typing import NamedTuple


class Limits(NamedTuple):
    payload: int = 8 << 20  # bytes in one message
    pending: int = 64 << 20  # bytes not durable yet, before doors stop reading
    lag: int = 1_000_000  # messages that a live subscription may be behind
    topics: int = 1_000_000
    subscriptions: int = 1_000_000
    gaps: int = 250_000  # ranges that a subscriber may acknowledge on a topic beyond what it has left out
    producers: int = 1_000_000  # that are remembered, counted once for each topic they publish to
