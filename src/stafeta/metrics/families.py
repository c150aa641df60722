"""The families of metrics, made from what was read. Their names are listed in docs/operate.md."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from stafeta import __version__
from stafeta.broker.lag import OVER_MESSAGES, OVER_SECONDS, Lag
from stafeta.broker.overview import Figures
from stafeta.doors.figures import DoorFigures
from stafeta.histogram import Histogram
from stafeta.metrics.jobs import JobFigures
from stafeta.metrics.topics import TopicFigures
from stafeta.security import Security
from stafeta.store.port import Usage

JOB_STATES: Final = ("starting", "running", "waiting", "failed", "stopped", "finished")


def of_broker(figures: Figures) -> Iterator[Metric]:
    stats, totals = figures.stats, figures.totals
    yield InfoMetricFamily("stafeta", "The broker.", {"version": __version__})
    yield _gauge("uptime_seconds", "Seconds since the start.", stats.uptime)
    yield _counter("published_messages", "Messages that became durable.", stats.messages)
    yield _counter(
        "delivered_messages",
        "Messages that were handed out, once for each who subscribes.",
        totals.delivered,
    )
    yield _counter(
        "redelivered_messages",
        "Of the delivered, those that their durable subscription was handed before.",
        totals.redelivered,
    )
    yield _counter(
        "acknowledged_messages", "Messages that durable subscriptions acknowledged.", totals.acknowledged
    )
    yield _counter("duplicate_messages", "Messages that were recognised as sent before.", totals.duplicates)
    yield _counter("collected_messages", "Messages that are not kept any longer.", totals.collected)
    yield _counter("commit_failures", "Commits that failed; whoever waited was told.", totals.failed_commits)
    yield _counter(
        "commit_bytes", "Bytes of commits, as limits.max_pending counts them.", totals.commit_bytes
    )
    yield _histogram("commit_messages", "Messages in a commit.", totals.commit_messages)
    yield _histogram(
        "commit_duration_seconds",
        "Seconds from when a commit was given to the store until it was durable.",
        totals.commit_seconds,
    )
    yield _histogram("commit_sync_seconds", "Of these, seconds of writing and syncing.", figures.sync_seconds)
    yield _gauge("pending_bytes", "Bytes that are not durable yet.", stats.pending)
    yield _gauge("memory_tail_bytes", "Bytes of the newest messages that are kept in memory.", figures.tail)
    yield _gauge("refusing_messages", "1 while messages cannot be stored.", figures.refusing)
    yield _gauge(
        "collection_held", "1 while nothing is collected, since a part of the store is damaged.", figures.held
    )
    yield _gauge("topics", "Topics that exist.", stats.topics)
    yield _gauge("subscriptions", "Subscriptions.", stats.subscriptions)
    yield _gauge("clients", "Clients that have subscriptions.", stats.clients)
    yield _gauge("sessions", "Clients that are connected by their names.", figures.sessions)
    yield _gauge("producers", "Producers that are remembered, once for each topic.", figures.producers)


def of_store(usage: Usage) -> Iterator[Metric]:
    sizes = GaugeMetricFamily("stafeta_store_bytes", "Bytes of files.", labels=("file",))
    for name, size in (("database", usage.database), ("wal", usage.wal), ("segments", usage.segments)):
        sizes.add_metric((name,), size)
    yield sizes
    yield _gauge("disk_free_bytes", "Bytes that are free where the data is.", usage.free)


def of_doors(doors: Sequence[DoorFigures], security: Security) -> Iterator[Metric]:
    there = GaugeMetricFamily(
        "stafeta_connections", "Connections; at the Flight door streams.", labels=("door",)
    )
    accepted = CounterMetricFamily(
        "stafeta_connections_accepted", "Connections that were accepted.", labels=("door",)
    )
    rejected = CounterMetricFamily(
        "stafeta_connections_rejected",
        "Connections that were refused, or ended by the broker.",
        labels=("door", "reason"),
    )
    dropped = CounterMetricFamily(
        "stafeta_dropped_messages",
        "Messages and requests that a door could not take, or changed.",
        labels=("door", "reason"),
    )
    for door in doors:
        there.add_metric((door.door,), door.connections)
        accepted.add_metric((door.door,), door.accepted)
        for reason, count in sorted(door.rejected.items()):
            rejected.add_metric((door.door, reason), count)
        for reason, count in sorted(door.dropped.items()):
            dropped.add_metric((door.door, reason), count)
    yield from (there, accepted, rejected, dropped)
    for name, text, counts in (
        ("authentication_failures", "Attempts to come in that failed.", security.failures),
        ("permission_refusals", "What users wanted to do, and may not.", security.refusals),
    ):
        family = CounterMetricFamily(f"stafeta_{name}", text, labels=("door",))
        for door_name in sorted({*counts, *(door.door for door in doors)}):
            family.add_metric((door_name,), counts[door_name])
        yield family


def of_lag(lag: Lag, age: float) -> Iterator[Metric]:
    yield _gauge("durable_subscriptions", "Durable subscriptions.", lag.subscriptions)
    yield _gauge("lag_messages", "Messages that durable subscriptions are behind, together.", lag.messages)
    yield _gauge("lag_messages_max", "Messages that the one furthest behind is.", lag.most_messages)
    yield _gauge(
        "lag_seconds", "Seconds since each one's oldest message was published, together.", lag.seconds
    )
    yield _gauge("lag_seconds_max", "The same, of the slowest.", lag.most_seconds)
    yield _over(
        "subscriptions_behind_messages",
        "Durable subscriptions that are more messages behind.",
        OVER_MESSAGES,
        lag.over_messages,
    )
    yield _over(
        "subscriptions_behind_seconds",
        "Durable subscriptions whose oldest message is older.",
        OVER_SECONDS,
        lag.over_seconds,
    )
    yield _gauge(
        "lag_unknown_subscriptions",
        "Durable subscriptions that are behind, of which the times are not all looked up yet.",
        lag.unknown,
    )
    yield _gauge("lag_age_seconds", "How long ago the lag was looked at.", age)
    labels = ("client", "filter")
    messages = GaugeMetricFamily(
        "stafeta_subscription_lag_messages",
        "Messages that a durable subscription is behind: of the slowest.",
        labels=labels,
    )
    seconds = GaugeMetricFamily(
        "stafeta_subscription_lag_seconds", "Seconds since the oldest of them was published.", labels=labels
    )
    for slow in lag.slowest:
        messages.add_metric((slow.client, slow.filter), slow.messages)
        if slow.seconds is not None:
            seconds.add_metric((slow.client, slow.filter), slow.seconds)
    yield from (messages, seconds)


def of_loop(lag: Histogram) -> Iterator[Metric]:
    yield _histogram("loop_lag_seconds", "How late the event loop is with a timer.", lag)


def of_jobs(jobs: Sequence[JobFigures], now: int) -> Iterator[Metric]:
    """Their label is not `job`, which is Prometheus's own."""
    state = GaugeMetricFamily("stafeta_job_state", "1 for the state of a job.", labels=("name", "state"))
    single = {
        "rows_per_second": "Messages that a job took a second, lately.",
        "lag": "Messages that a job has before it.",
        "batch": "The last micro-batch of a job.",
    }
    gauges = {
        name: GaugeMetricFamily(
            f"stafeta_job_{'lag_messages' if name == 'lag' else name}", text, labels=("name",)
        )
        for name, text in single.items()
    }
    rows = CounterMetricFamily("stafeta_job_rows", "Messages that a job has taken.", labels=("name",))
    restarts = CounterMetricFamily(
        "stafeta_job_restarts", "How often a job was started again.", labels=("name",)
    )
    age = GaugeMetricFamily("stafeta_job_report_age_seconds", "Since a job was heard of.", labels=("name",))
    for report, time in jobs:
        name = report.job
        for one in JOB_STATES:
            state.add_metric((name, one), one == report.state)
        for key, gauge in gauges.items():
            gauge.add_metric((name,), _number(getattr(report, key)))
        rows.add_metric((name,), _number(report.rows))
        restarts.add_metric((name,), _number(report.restarts))
        age.add_metric((name,), max(now - time, 0) / 1_000_000)
    yield from (state, *gauges.values(), rows, restarts, age)


def of_topics(topics: TopicFigures) -> Iterator[Metric]:
    published = CounterMetricFamily(
        "stafeta_topic_published_messages", "Messages that a topic ever had.", labels=("topic",)
    )
    stored = GaugeMetricFamily(
        "stafeta_topic_stored_messages", "Messages that a topic has.", labels=("topic",)
    )
    subscriptions = GaugeMetricFamily(
        "stafeta_topic_subscriptions", "Subscriptions that match a topic.", labels=("topic",)
    )
    for line in topics.lines:
        published.add_metric((line.name,), line.published)
        stored.add_metric((line.name,), line.stored)
        subscriptions.add_metric((line.name,), line.subscriptions)
    yield from (published, stored, subscriptions)
    yield _gauge(
        "topics_left_out", "Topics that match what was asked for, and are not told of.", topics.left_out
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stafeta_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"stafeta_{name}", text, value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(f"stafeta_{name}", text, buckets, histogram.sum)


def _over(name: str, text: str, limits: Iterable[int], counts: Iterable[int]) -> Metric:
    family = GaugeMetricFamily(f"stafeta_{name}", text, labels=("over",))
    for limit, count in zip(limits, counts, strict=True):
        family.add_metric((str(limit),), count)
    return family


def _number(value: object) -> float:
    """Of a report that somebody else may have written."""
    return value if isinstance(value, int | float) else 0
