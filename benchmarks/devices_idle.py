"""What 10,000 connected subscribers that get nothing cost in memory, beside Mosquitto."""

from contextlib import ExitStack
from typing import NamedTuple

from benchmarks import peers
from benchmarks.brokers import Broker
from benchmarks.devices import DeviceStation
from benchmarks.machine import Memory, memory
from benchmarks.mqtt import MqttStation
from benchmarks.readings import TOPIC, text
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.stations import Station, allow_files, settle

SMALL = Bar("resident", "<", 200, " MB")


class Case(NamedTuple):
    label: str
    held: bool  # SF 1, or QoS 1
    shared: bool  # one topic for all


CASES = (
    Case("SF 0, one topic for all", held=False, shared=True),
    Case("SF 1, a topic each", held=True, shared=False),
)


def run(setting: Setting) -> list[Table]:
    subscribers = setting.sized(10_000, 100)
    allow_files(subscribers + 200)
    rows = []
    for case in CASES:
        values: dict[str, Value] = {"case": case.label}
        found = _both(setting, case, subscribers)
        for name, keys in {"Stafeta": ("resident", "share"), "Mosquitto": ("peer", "peer_share")}.items():
            values |= zip(keys, found.get(name, (None, None)), strict=True)
        rows.append(Row(values, (SMALL,)))
    return [
        Table(
            f"Memory of a broker with {subscribers:,} idle subscribers",
            "Each is a connection with one subscription that has got one message. Resident is all that is in memory "
            "for the process (RSS); its share counts what it shares with others in part (PSS). At Mosquitto SF 0 is "
            f"QoS 0, and SF 1 QoS 1 with a session that persists. {peers.about()}",
            (
                Column("case", "subscriptions"),
                Column("resident", "Stafeta, resident MB"),
                Column("share", "its share MB"),
                Column("peer", "Mosquitto, resident MB"),
                Column("peer_share", "its share MB"),
            ),
            tuple(rows),
        )
    ]


def _both(setting: Setting, case: Case, subscribers: int) -> dict[str, Memory]:
    """One broker after the other, since both at once would take twice as many files."""
    found = {}
    folder = setting.folder / f"{case.held:d}"
    setting.say(f"{case.label}, Stafeta")
    with Broker(folder / "stafeta", "devices") as broker:
        found["Stafeta"] = _measure(DeviceStation(broker), case, subscribers)
    if peers.command():
        setting.say(f"{case.label}, Mosquitto")
        with peers.Mosquitto(folder / "mosquitto") as mosquitto:
            found["Mosquitto"] = _measure(MqttStation(mosquitto), case, subscribers)
    return found


def _measure(station: Station, case: Case, subscribers: int) -> Memory:
    topics = [TOPIC] if case.shared else [f"idle/{number}" for number in range(subscribers)]
    with ExitStack() as stack:
        publisher = station.publisher([text(PAYLOAD, topic) for topic in topics])
        stack.callback(publisher.close)
        lines = [
            stack.enter_context(
                station.subscriber(f"i{number}", topics[number % len(topics)], held=case.held)
            )
            for number in range(subscribers)
        ]
        settle(lines, publisher, len(topics))
        return memory(station.pid)
