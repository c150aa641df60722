"""From publisher to subscriber at 1,000 messages a second, beside Redis Streams and NATS JetStream."""

from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns

from benchmarks.load import Load
from benchmarks.peer import Timed, make_pool
from benchmarks.peer_nats import Nats
from benchmarks.peer_redis import Redis
from benchmarks.peer_rounds import ABOUT, LABELS, ROUNDS, labels, take_turns
from benchmarks.peer_stafeta import Devices, Flight, ZeroMQ
from benchmarks.percentiles import median, percentile
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import PAYLOAD, Setting

RATE = 1_000
PERCENTS = {"p50": 50, "p99": 99, "p999": 99.9}
SOON = Bar("p50", "≤", 1.2, " ms (p50)"), Bar("p99", "≤", 4, " ms (p99)")
LEAD = 2_000_000_000  # nanoseconds until the first message, so that its subscriber is there
OURS: Sequence[Timed] = (Flight("send"), ZeroMQ(), Devices())
OTHERS: Sequence[Timed] = (Redis(durable=True), Nats(durable=True))


def run(setting: Setting) -> list[Table]:
    seconds = setting.sized(10, 1)

    def timed(system: Timed, folder: Path) -> list[float]:
        return _percentiles(system, folder, seconds, skipped=setting.sized(RATE, 0))

    order = (OURS[0], OTHERS[0], OURS[1], OTHERS[1], OURS[2])
    measured = {
        system: [median(each) for each in zip(*measures, strict=True)]
        for system, _, measures in take_turns(setting, order, setting.sized(*ROUNDS), timed)
    }
    best = [min(each) for each in zip(*(measured[other] for other in OTHERS if measured[other]), strict=True)]
    rows = []
    for system in (*OURS, *OTHERS):
        found = measured[system]
        values = labels(system, system.timing, system.promise)
        values |= dict.fromkeys((*PERCENTS, "beside50", "beside99"))
        values |= zip(PERCENTS, found, strict=False)
        bars: tuple[Bar, ...] = ()
        if system in OURS and best:
            values |= {"beside50": found[0] / best[0], "beside99": found[1] / best[1]}
            if system is OURS[0]:
                bars = SOON + tuple(Bar(f"beside{each}", "≤", 1, f" times (p{each})") for each in (50, 99))
        rows.append(Row(values, bars))
    return [_table(rows, seconds, setting.sized(*ROUNDS))]


def _table(rows: list[Row], seconds: int, rounds: int) -> Table:
    return Table(
        f"From publisher to subscriber, {RATE:,} messages of {PAYLOAD} bytes a second",
        "Milliseconds from when a message was due to be sent until the subscriber had it as bytes, so that what waits "
        f"for messages before it is counted with its waiting. {rounds} rounds of {seconds} s without the first, all "
        "systems in turn; each figure is the one in the middle. Publisher and subscriber are a process each. The last "
        "two columns are beside the better one of Redis Streams and NATS JetStream.",
        (
            *LABELS,
            Column("p50", "p50 ms", 2),
            Column("p99", "p99 ms", 2),
            Column("p999", "p99.9 ms", 2),
            Column("beside50", "p50: times the better", 2),
            Column("beside99", "p99: times the better", 2),
        ),
        tuple(rows),
        labels=ABOUT,
    )


def _percentiles(system: Timed, folder: Path, seconds: int, skipped: int) -> list[float]:
    """In milliseconds."""
    total = RATE * seconds
    with system.serve(folder) as address, Load() as publisher, Load() as subscriber:
        for client in (publisher, subscriber):
            client.run(make_pool)
        publisher.run(system.prepare, address)
        received = subscriber.start(system.receive, address, total)
        publisher.run(system.send, address, monotonic_ns() + LEAD, RATE, total)
        ages = sorted(received()[skipped:])
    return [percentile(ages, percent) / 1e6 for percent in PERCENTS.values()]
