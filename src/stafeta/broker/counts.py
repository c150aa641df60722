"""What the broker has done since its start, counted once for each batch or commit and never for a message."""

from dataclasses import dataclass, field

from stafeta.histogram import MESSAGES, SECONDS, Histogram


@dataclass(slots=True)
class Counts:
    """Of messages, where nothing else is said."""

    delivered: int = 0  # handed out to whoever subscribes, once for each subscriber
    redelivered: int = 0  # of these, to durable subscriptions that had been handed them since the start
    acknowledged: int = 0  # by durable subscriptions
    duplicates: int = 0  # recognised as sent before, and not stored again
    collected: int = 0  # not kept any longer
    failed_commits: int = 0
    commit_bytes: int = 0  # as `limits.max_pending` counts them
    commit_messages: Histogram = field(default_factory=lambda: Histogram(MESSAGES))  # in each commit
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # until each was durable
