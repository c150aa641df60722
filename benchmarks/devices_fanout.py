"""One publisher to 1,000 subscribers of the devices door: deliveries a second, beside Mosquitto with QoS 0."""

from contextlib import ExitStack

from benchmarks import peers
from benchmarks.brokers import Broker
from benchmarks.crowd import Crowd
from benchmarks.devices import DeviceStation
from benchmarks.mqtt import MqttStation
from benchmarks.percentiles import median
from benchmarks.publishers import Publisher
from benchmarks.readings import ONE, TOPIC
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.stations import Station, allow_files, settle

AHEAD = (10, 100)
BESIDE = Bar("ratio", "≥", 3, " times")


def run(setting: Setting) -> list[Table]:
    subscribers = setting.sized(1000, 20)
    seconds, rounds = setting.sized((4.0, 5), (0.2, 1))
    allow_files(2 * subscribers + 200)
    rates: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        stations = stations_in(stack, setting)
        settled = [_settled(stack, station, subscribers) for station in stations]
        for number in range(rounds):
            for ahead in AHEAD:
                setting.say(f"round {number + 1} of {rounds}, {ahead:,} ahead")
                for station, (crowd, publisher) in zip(stations, settled, strict=True):
                    done = crowd.deliver(publisher, ahead, seconds)
                    rates.setdefault((station.name, ahead), []).append(done.rate)
    rows = []
    for ahead in AHEAD:
        ours, theirs = (rates.get((name, ahead)) for name in ("Stafeta", "Mosquitto"))
        assert ours is not None
        values: dict[str, Value] = {"ahead": ahead, "rate": median(ours), "peer": None, "ratio": None}
        if theirs is not None:
            values |= {"peer": median(theirs), "ratio": median(ours) / median(theirs)}
        rows.append(Row(values, (BESIDE,) if theirs else ()))
    return [
        Table(
            f"Deliveries of {PAYLOAD} bytes to {subscribers:,} subscribers",
            f"The round in the middle of {rounds}, both brokers in turn. The publisher sends no more than so many "
            "messages ahead of what the subscribers have got, by UDP to Stafeta, which has each on disk before it "
            "delivers it (SF 0), and by TCP with QoS 0 to Mosquitto, which has none. "
            f"{peers.about()}",
            (
                Column("ahead", "messages ahead"),
                Column("rate", "Stafeta/s"),
                Column("peer", "Mosquitto/s"),
                Column("ratio", "ratio", 2),
            ),
            tuple(rows),
        )
    ]


def stations_in(stack: ExitStack, setting: Setting) -> list[Station]:
    """Both brokers; only Stafeta where there is no Mosquitto."""
    stations: list[Station] = [
        DeviceStation(stack.enter_context(Broker(setting.folder / "stafeta", "devices")))
    ]
    if peers.command():
        stations.append(MqttStation(stack.enter_context(peers.Mosquitto(setting.folder / "mosquitto"))))
    return stations


def _settled(stack: ExitStack, station: Station, subscribers: int) -> tuple[Crowd, Publisher]:
    publisher = station.publisher(ONE)
    stack.callback(publisher.close)
    lines = [station.subscriber(f"s{number}", TOPIC, held=False) for number in range(subscribers)]
    settle(lines, publisher)
    crowd = Crowd(lines, station.delivered(ONE[0]))
    stack.callback(crowd.close)
    return crowd, publisher
