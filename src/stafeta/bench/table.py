"""What a run has measured, as people read it."""

import textwrap
from collections.abc import Sequence
from typing import Final

from stafeta import text_tables
from stafeta.bench.plan import DOORS, Plan
from stafeta.bench.results import PERCENTS, Flow, Report, latency_ms

_WIDTH: Final = 100


def text(report: Report) -> str:
    """Settings, throughput, latencies, and what is missing."""
    plan = report.plan
    latencies = {"acknowledged": report.acknowledgement, "delivered": report.delivery}
    figures = [(name, latency_ms(histogram)) for name, histogram in latencies.items()]
    parts = [
        _wrapped(f"{settings(plan)}."),
        _wrapped(f"Broker: {report.broker}. Promised: {report.promise}."),
        _aligned(
            [
                ["", "messages", "messages/s", "MB/s"],
                ["published", *_flow(report.published, plan.size)],
                ["delivered", *_flow(report.delivered, plan.size)],
            ]
        ),
        _aligned(
            [
                ["latency, ms", *PERCENTS, "max"],
                *(
                    [name, *(f"{value:,.2f}" for value in found.values())]
                    if found
                    else [name, *"-" * (len(PERCENTS) + 1)]
                    for name, found in figures
                ),
            ]
        ),
        f"{report.lost:,} lost, {report.repeated:,} repeated",
    ]
    return "\n\n".join(parts)


def settings(plan: Plan) -> str:
    """One line: what was done."""
    pace = f"{plan.rate:,g} a second" if plan.rate else "as fast as possible"
    size = f"of {plan.size:,} bytes"
    messages = (
        f"{plan.messages:,} messages {size}" if plan.messages else f"messages {size} for {plan.seconds:,g} s"
    )
    together = f"{plan.batch:,} at a time" if plan.batch > 1 else "one at a time"
    if plan.rate is None and not DOORS[plan.door].acknowledges:
        together = f"{plan.batch:,} ahead"
    return (
        f"{plan.door} door: {messages}, {together}, {pace}, "
        f"{_count(plan.publishers, 'publisher')}, {_count(plan.subscribers, 'subscriber')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _flow(flow: Flow, size: int) -> list[str]:
    return [f"{flow.messages:,}", f"{flow.rate:,.0f}", f"{flow.rate * size / 1e6:,.1f}"]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(text_tables.lines(rows, "<" + ">" * (len(rows[0]) - 1)))


def _wrapped(sentences: str) -> str:
    return textwrap.fill(sentences, _WIDTH, break_on_hyphens=False)
