"""Publishing beside Redis Streams, NATS JetStream, RabbitMQ and Mosquitto: durably, and as fast as each one goes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.load import Load
from benchmarks.peer import Publisher, make_pool
from benchmarks.peer_disk import Disk
from benchmarks.peer_mosquitto import Mosquitto
from benchmarks.peer_nats import Nats
from benchmarks.peer_rabbit import Rabbit
from benchmarks.peer_redis import Redis
from benchmarks.peer_rounds import ABOUT, RATES, ROUNDS, labels, rates, ratio
from benchmarks.peer_stafeta import Flight
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import PAYLOAD, Setting

SHARE = {
    rows: Bar("share", "≥", least, " of the disk alone") for rows, least in {1_000: 0.5, 10_000: 0.6}.items()
}
TIMES = {"Redis Streams": 10, "NATS JetStream": 25}  # as fast, where both are set up to be durable
DURABLE: Sequence[Publisher] = (
    Flight("arrow", rows=10_000),
    Redis(durable=True),
    Flight("arrow", rows=1_000),
    Nats(durable=True),
    Disk(10_000),
    Flight("send_many"),
    Nats(durable=True, by_hand=True),
    Disk(1_000),
    Flight("send"),
    Rabbit(durable=True),
    Mosquitto(durable=True),
)
FAST: Sequence[Publisher] = (
    Flight("arrow", durable=False),
    Redis(durable=False),
    Nats(durable=False, by_hand=True),
    Flight("send_many", durable=False),
    Rabbit(durable=False),
    Mosquitto(durable=False),
)


def run(setting: Setting) -> list[Table]:
    measured = rates(setting, (*DURABLE, *FAST), published)
    rounds = setting.sized(*ROUNDS)
    return [
        _table(
            f"Publishing messages of {PAYLOAD} bytes, set up to be durable",
            f"The round in the middle of {rounds}, all systems in turn. One Python client, with the server beside it. "
            "The last two columns of figures: how many times as fast Stafeta is with record batches, and with bytes "
            "objects that its client makes batches of (send_many), which is what all others begin with. Of the disk: "
            "Stafeta's part of what the disk alone does with portions of the same size.",
            DURABLE,
            measured,
        ),
        _table(
            f"Publishing messages of {PAYLOAD} bytes, as fast as it goes",
            "The same rounds. Nothing here is on disk when it is acknowledged, where it is acknowledged at all.",
            FAST,
            measured,
        ),
    ]


def published(system: Publisher, folder: Path, total: int) -> float:
    with system.serve(folder) as address, Load() as load:
        load.run(make_pool)
        load.run(system.prepare, address)
        return load.run(system.publish, address, total)


def _table(
    title: str, note: str, systems: Sequence[Publisher], measured: Mapping[Publisher, float | None]
) -> Table:
    ours = {each.how: measured[each] for each in systems if isinstance(each, Flight) and each.rows == 10_000}
    disk = {each.rows: measured[each] for each in systems if isinstance(each, Disk)}
    rows = []
    for system in sorted(systems, key=_place):
        rate = measured[system]
        values = labels(system, system.publishing, system.promise)
        values |= {"rate": rate, "arrow": None, "bytes": None, "share": None}
        bars: list[Bar] = []
        if isinstance(system, Flight):
            values["share"] = ratio(rate, disk.get(system.rows))
            if values["share"] is not None and system.how == "arrow":
                bars.append(SHARE[system.rows])
        elif not isinstance(system, Disk):
            values |= {"arrow": ratio(ours["arrow"], rate), "bytes": ratio(ours["send_many"], rate)}
            if rate is not None and system.durable and system.system in TIMES:
                bars.append(Bar("arrow", "≥", TIMES[system.system], " times"))
        rows.append(Row(values, tuple(bars)))
    columns = (*RATES, Column("share", "of the disk alone", 2)) if disk else RATES
    return Table(title, note, columns, tuple(rows), labels=ABOUT)


def _place(system: Publisher) -> int:
    """Stafeta comes first, then the disk."""
    return 0 if isinstance(system, Flight) else 1 if isinstance(system, Disk) else 2
