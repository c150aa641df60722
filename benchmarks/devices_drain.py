"""A subscriber that returns to 1,000,000 held messages, beside a persistent QoS 1 session at Mosquitto."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from benchmarks import peers
from benchmarks.brokers import Broker
from benchmarks.devices import DeviceStation, delivered
from benchmarks.inbox import Inbox
from benchmarks.load import LoadFailed
from benchmarks.mqtt import PUBACK, MqttStation, acknowledge, publish
from benchmarks.percentiles import median
from benchmarks.readings import ONE, TOPIC, in_order
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.stations import pour, settle

BESIDE = Bar("ratio", "≥", 10, " times")
INFLIGHT = (20, 0)  # Mosquitto's max_inflight_messages: its default, and without limit
OURS = "Stafeta, SF 1"
AHEAD = 8000  # messages that Mosquitto has not acknowledged while they are stored there


def run(setting: Setting) -> list[Table]:
    total, rounds = setting.sized((1_000_000, 3), (5_000, 1))
    clients = [f"client{turn}" for turn in range(rounds)]
    took: dict[str, list[float]] = {}
    with ExitStack() as stack:
        inbox = Inbox(total * delivered(ONE[0]))
        setting.say(f"storing, {OURS}")
        drains = {OURS: _ours(stack, setting, inbox, total, clients)}
        for inflight in INFLIGHT if peers.command() else ():
            label = f"Mosquitto, QoS 1, {inflight or 'any number'} in flight"
            setting.say(f"storing, {label}")
            drains[label] = _theirs(stack, setting, inbox, total, clients, inflight)
        for client in clients:
            for label, drain in drains.items():
                setting.say(f"{client} of {rounds}, {label}")
                took.setdefault(label, []).append(drain(client))
    seconds = {label: median(each) for label, each in took.items()}
    best = min((each for label, each in seconds.items() if label != OURS), default=None)
    rows = []
    for label, each in seconds.items():
        values: dict[str, Value] = {"session": label, "seconds": each, "rate": total / each, "ratio": None}
        compared = label == OURS and best is not None
        if compared:
            assert best is not None
            values["ratio"] = best / each
        rows.append(Row(values, (BESIDE,) if compared else ()))
    return [
        Table(
            f"A subscriber returns to {total:,} messages of {PAYLOAD} bytes",
            f"From its connecting until it has read the last one: the middle one of {rounds} subscribers, the "
            "brokers in turn. The ratio is to the quicker one of Mosquitto's. The same few lines read from both; to "
            "Mosquitto they send a PUBACK for each message, as many at once as have come together. Stafeta has the "
            "messages on disk, and in memory only the last of them; Mosquitto has all of them in memory. "
            f"{peers.about()}",
            (
                Column("session", "session"),
                Column("seconds", "seconds", 2),
                Column("rate", "messages/s"),
                Column("ratio", "times as fast", 1),
            ),
            tuple(rows),
        )
    ]


def _ours(
    stack: ExitStack, setting: Setting, inbox: Inbox, total: int, clients: list[str]
) -> Callable[[str], float]:
    """Has so many messages held for each client at a new broker; what it returns reads them all as one of those."""
    station = DeviceStation(stack.enter_context(Broker(setting.folder / "stafeta", "devices")))
    size = station.delivered(ONE[0])
    publisher = station.publisher(ONE)
    # Whom the publisher waits for: a datagram has no answer.
    witness = station.subscriber("witness", TOPIC, held=False)
    lines = [station.subscriber(client, TOPIC, held=True) for client in clients]
    settle([*lines, witness], publisher)
    for line in lines:
        station.leave(line)
    first = publisher.sent
    pour(publisher, witness, size, total)
    publisher.close()
    station.leave(witness)

    def drain(client: str) -> float:
        start = perf_counter()
        with station.subscriber(client, None, held=True) as line:
            return _read(inbox, line, total, size, first) - start

    return drain


def _theirs(
    stack: ExitStack, setting: Setting, inbox: Inbox, total: int, clients: list[str], inflight: int
) -> Callable[[str], float]:
    """The same at Mosquitto."""
    mosquitto = peers.Mosquitto(setting.folder / f"mosquitto{inflight}", inflight=inflight, persistent=True)
    station = MqttStation(stack.enter_context(mosquitto))
    size = len(publish(ONE[0], 1))
    for client in clients:
        station.leave(station.subscriber(client, TOPIC, held=True))
    publisher = station.acknowledged_publisher(ONE[0])
    pour(publisher, publisher.line, PUBACK, total, ahead=AHEAD)
    publisher.close()

    def drain(client: str) -> float:
        start = perf_counter()
        with station.subscriber(client, None, held=True) as line:
            return _read(inbox, line, total, size, 0, partial(acknowledge, line, ONE[0])) - start

    return drain


def _read(
    inbox: Inbox,
    line: socket.socket,
    total: int,
    size: int,
    first: int,
    answer: Callable[[memoryview, int], None] | None = None,
) -> float:
    """Reads them all; returns when the last one had come."""
    inbox.clear()
    if not inbox.fill(line, total * size, answer):
        raise LoadFailed(f"Of the held messages only {inbox.size // size:,} have come.")
    if not in_order(inbox.stream, size, first):
        raise LoadFailed("What came is not what was held, in order.")
    return inbox.times[-1]
