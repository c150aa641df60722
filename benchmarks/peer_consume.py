"""Consuming with acknowledgement beside Redis Streams, NATS JetStream, RabbitMQ and Mosquitto."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.load import Load
from benchmarks.peer import Peer
from benchmarks.peer_mosquitto import Mosquitto
from benchmarks.peer_nats import Nats
from benchmarks.peer_rabbit import Rabbit
from benchmarks.peer_redis import Redis
from benchmarks.peer_rounds import ABOUT, RATES, ROUNDS, labels, rates, ratio
from benchmarks.peer_stafeta import Flight
from benchmarks.results import Bar, Row, Table
from benchmarks.setting import PAYLOAD, Setting

TIMES = {"Redis Streams": 10}  # as fast, where both are set up to be durable
DURABLE: Sequence[Peer] = (
    Flight("arrow"),
    Redis(durable=True),
    Nats(durable=True, by_hand=True),
    Flight("send_many"),
    Rabbit(durable=True),
    Mosquitto(durable=True),
)
FAST: Sequence[Peer] = (
    Flight("arrow", durable=False),
    Redis(durable=False),
    Nats(durable=False, by_hand=True),
    Flight("send_many", durable=False),
    Rabbit(durable=False),
)


def run(setting: Setting) -> list[Table]:
    measured = rates(setting, (*DURABLE, *FAST), consumed)
    return [
        _table(
            f"Consuming messages of {PAYLOAD} bytes, set up to be durable",
            f"The round in the middle of {setting.sized(*ROUNDS)}, all systems in turn. One Python client, with the "
            "server beside it, which has held the messages since before the client came. It is over when the last "
            "message has come and the server has the last acknowledgement. The last two columns of figures: how many "
            "times as fast Stafeta is where its batches stay what they are, and where bytes objects are made of them, "
            "as all others do.",
            DURABLE,
            measured,
        ),
        _table(
            f"Consuming messages of {PAYLOAD} bytes, as fast as it goes",
            "The same rounds. No acknowledgement here is on disk when the next messages come.",
            FAST,
            measured,
        ),
    ]


def consumed(peer: Peer, folder: Path, total: int) -> float:
    with peer.serve(folder) as address:
        with Load() as load:
            load.run(peer.prepare, address)
            load.run(peer.publish, address, total)
        with Load() as load:
            return load.run(peer.consume, address, total)


def _table(title: str, note: str, peers: Sequence[Peer], measured: Mapping[Peer, float | None]) -> Table:
    ours = {peer.how: measured[peer] for peer in peers if isinstance(peer, Flight)}
    rows = []
    for peer in sorted(peers, key=lambda peer: not isinstance(peer, Flight)):
        rate = measured[peer]
        values = labels(peer, peer.consuming, peer.remembers) | {"rate": rate, "arrow": None, "bytes": None}
        bars: tuple[Bar, ...] = ()
        if not isinstance(peer, Flight):
            values |= {"arrow": ratio(ours["arrow"], rate), "bytes": ratio(ours["send_many"], rate)}
            if rate is not None and peer.durable and peer.system in TIMES:
                bars = (Bar("arrow", "≥", TIMES[peer.system], " times"),)
        rows.append(Row(values, bars))
    return Table(title, note, RATES, tuple(rows), labels=ABOUT)
