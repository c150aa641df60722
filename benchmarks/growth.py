"""How the cost of a message grows with the size of something else."""

from collections.abc import Callable, Mapping

from benchmarks.brokers import Broker
from benchmarks.frames import TextPuts
from benchmarks.load import Load, pace
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import PAYLOAD, Setting

WINDOW = 1000
WITHIN = Bar("ratio", "≤", 1.5, " times")


def puts(setting: Setting) -> int:
    """How many PUTs a round measures: enough for several checkpoints of the store to be among them."""
    return setting.sized(200_000, 2_000)


def cost(load: Load, broker: Broker, total: int, topics: int = 1) -> float:
    """Seconds that each of so many pipelined PUTs takes, spread over so many topics."""
    done = load.run(pace, broker.address, TextPuts(PAYLOAD, topics, total), window=WINDOW)
    return done.seconds / done.total


def table(
    setting: Setting,
    title: str,
    heading: str,
    note: str,
    points: Mapping[str, Callable[[], float]],
    bars: Mapping[str, Bar] | None = None,
) -> Table:
    """Measures the cost at each point, all of them in turn, several times; the first point is the smallest. Those that
    `bars` does not name have the usual one."""
    rounds = setting.sized(5, 1)
    costs: dict[str, list[float]] = {label: [] for label in points}
    for number in range(rounds):
        for label, cost in points.items():
            setting.say(f"round {number + 1} of {rounds}, {label}")
            costs[label].append(cost())
    best = {label: min(seconds) for label, seconds in costs.items()}
    first = next(iter(best))
    rows = tuple(
        Row(
            {"point": label, "rate": 1 / least, "cost_us": least * 1e6, "ratio": least / best[first]},
            () if label == first else ((bars or {}).get(label, WITHIN),),
        )
        for label, least in best.items()
    )
    return Table(
        title,
        f"One client, {WINDOW:,} PUTs on their way, {puts(setting):,} a round. The best of {rounds} rounds, the "
        f"sizes in turn, since whatever else the machine does only adds to the cost. {note}".rstrip(),
        (
            Column("point", heading),
            Column("rate", "messages/s"),
            Column("cost_us", "µs a message", 1),
            Column("ratio", "ratio", 2),
        ),
        rows,
    )
