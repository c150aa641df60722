"""GET and ACK: how fast subscribers read, what is still in the broker's memory and what is only on disk."""

from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, Subs, TextPuts
from benchmarks.load import Load, Pace, pace
from benchmarks.machine import forget_cached
from benchmarks.rates import CHOSEN, RATES, rates
from benchmarks.readers import read
from benchmarks.results import Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

SUBSCRIBERS = (1, 10)


def run(setting: Setting) -> list[Table]:
    # What fits the newest part of the log that the broker has in memory (store.tail).
    total = setting.sized(100_000, 2_000)
    rounds = setting.sized(5, 1)
    paces: dict[tuple[str, int], list[Pace]] = {}
    with Load() as load:
        for number in range(rounds):
            setting.say(f"round {number + 1} of {rounds}")
            with Broker(setting.folder / f"data{number}") as broker:
                for place in ("memory", "disk"):
                    for subscribers in SUBSCRIBERS:
                        load.run(pace, broker.address, Subs(subscribers, f"{place}{subscribers}-{{}}", TOPIC))
                load.run(pace, broker.address, TextPuts(PAYLOAD, total=total), window=1000)
                for place in ("memory", "disk"):
                    if place == "disk":
                        broker.stop()
                        forget_cached(broker.data)
                        broker.start()
                    for subscribers in SUBSCRIBERS:
                        clients = [f"{place}{subscribers}-{client}" for client in range(subscribers)]
                        done = load.run(read, broker.address, clients, TOPIC, total)
                        paces.setdefault((place, subscribers), []).append(done)
    rows = []
    for (place, subscribers), measured in paces.items():
        values: dict[str, Value] = {"place": place, "subscribers": subscribers}
        rows.append(Row(values | rates(measured)))
    return [
        Table(
            f"GET and ACK of {PAYLOAD} bytes, text dialect",
            f"{CHOSEN} {rounds}; all subscribers together. Each reads "
            f"all {total:,} messages. The times are of a turn: a GET of as many messages as one reply holds, and the "
            "ACK of all of them. Disk: the first to read after a restart of the broker, with nothing of its files in "
            "the system's cache.",
            (Column("place", "from"), Column("subscribers", "subscribers"), *RATES),
            tuple(rows),
            labels=2,
        )
    ]
