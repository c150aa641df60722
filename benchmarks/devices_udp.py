"""Datagrams taken in, logged and delivered to a subscriber: loss and latency at 100,000 a second, and the most."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import peers
from benchmarks.brokers import Broker
from benchmarks.devices import DeviceStation, datagram, deliveries
from benchmarks.inbox import Inbox
from benchmarks.load import Load, LoadFailed
from benchmarks.mqtt import MqttStation
from benchmarks.percentiles import percentile
from benchmarks.publishers import Sent, paced
from benchmarks.readings import DIGITS, ONE, SIXTEEN, Reading, in_order, number
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.stations import Station, settle

RATE = 100_000
NONE_LOST = Bar("lost", "<", 1, " lost")
AT_LEAST = Bar("rate", "≥", RATE, "/s")
STEP = 1.25  # from one rate to the next, until some are lost
FINER = 3  # rates tried in between then
QUIET = 2  # seconds without a message, after which the rest is lost
KEPT = 0.98  # of a rate that the sender has to come to


class Case(NamedTuple):
    label: str
    readings: Sequence[Reading]
    stafeta: bool = True


class Trial(NamedTuple):
    rate: float  # readings a second that were sent
    lost: int
    p50: float = 0.0  # seconds from sending to receiving, where none was lost
    p99: float = 0.0


CASES = (
    Case(f"{PAYLOAD} bytes, 1 topic", ONE),
    Case("16 readings, 16 topics", SIXTEEN),
)
PEER = Case("Mosquitto, by TCP with QoS 0, nothing on disk", ONE, stafeta=False)


def run(setting: Setting) -> list[Table]:
    rounds, seconds = setting.sized((3, 5.0), (1, 0.2))
    cases = (*CASES, PEER) if peers.command() else CASES
    trials: dict[Case, list[Trial]] = {case: [] for case in cases}
    with Load() as load:
        for turn in range(rounds):
            for case in cases:
                setting.say(f"round {turn + 1} of {rounds}, {case.label}")
                trials[case].append(_trial(setting, load, case, RATE, seconds, timed=True))
        most = {case: _highest(setting, load, case) for case in CASES}
    return [_paced_table(trials, seconds), _most_table(setting, most)]


def _paced_table(trials: dict[Case, list[Trial]], seconds: float) -> Table:
    rows = []
    for case, rounds in trials.items():
        whole = sorted((each for each in rounds if not each.lost), key=lambda each: each.p99)
        middle = whole[(len(whole) - 1) // 2] if whole else None
        values: dict[str, Value] = {
            "case": case.label,
            "rate": min(each.rate for each in rounds),
            "lost": max(each.lost for each in rounds),
            "p50_ms": middle and middle.p50 * 1000,
            "p99_ms": middle and middle.p99 * 1000,
        }
        rows.append(Row(values, (NONE_LOST,) if case.stafeta else ()))
    return Table(
        f"{RATE:,} datagrams a second to one subscriber",
        f"For {seconds:g} s, by a sender with an even pace in another process; the subscriber has SF 1 and the "
        "filter *. Every message is on disk before it is delivered. The most that any of "
        f"{max(map(len, trials.values()))} rounds has lost, the slowest rate that any was sent with, and the latency "
        f"from sending to receiving of the round in the middle by p99. {peers.about()}",
        (
            Column("case", "what"),
            Column("rate", "sent/s"),
            Column("lost", "lost"),
            Column("p50_ms", "p50 ms", 2),
            Column("p99_ms", "p99 ms", 2),
        ),
        tuple(rows),
    )


def _most_table(setting: Setting, most: dict[Case, float]) -> Table:
    return Table(
        "The most datagrams a second of which none is lost",
        f"Sent with an even pace for {_short(setting):g} s, to a new broker each time; faster by {STEP:g} times each "
        "time until some are lost, and then in between.",
        (Column("case", "what"), Column("rate", "datagrams/s")),
        tuple(Row({"case": case.label, "rate": rate}, (AT_LEAST,)) for case, rate in most.items()),
    )


def _short(setting: Setting) -> float:
    return setting.sized(2.0, 0.1)


def _highest(setting: Setting, load: Load, case: Case) -> float:
    """The highest rate that was tried and lost nothing; 0 where every one did."""

    def lossless(rate: float) -> bool:
        for _ in range(2):  # because the sender may miss its pace for reasons of its own
            setting.say(f"{case.label}, {rate:,.0f} a second")
            trial = _trial(setting, load, case, rate, _short(setting), timed=False)
            if trial.lost or trial.rate >= KEPT * rate:
                return not trial.lost
        return False

    low, high = _around(lossless)
    for _ in range(FINER if low else 0):
        between = (low + high) / 2
        low, high = (between, high) if lossless(between) else (low, between)
    return low


def _around(lossless: Callable[[float], bool]) -> tuple[float, float]:
    """A rate that loses nothing and a higher one that does, a step apart."""
    rate = float(RATE)
    if lossless(rate):
        while lossless(rate * STEP):
            rate *= STEP
        return rate, rate * STEP
    for _ in range(10):
        rate /= STEP
        if lossless(rate):
            return rate, rate * STEP
    return 0.0, rate


def _trial(setting: Setting, load: Load, case: Case, rate: float, seconds: float, *, timed: bool) -> Trial:
    """One stream through a new broker."""
    total = int(rate * seconds)
    readings = case.readings
    with TemporaryDirectory(dir=setting.folder) as folder, _station(case, Path(folder)) as station:
        sizes = [station.delivered(reading) for reading in readings]
        expected = sum(sizes) * (total // len(sizes)) + sum(sizes[: total % len(sizes)])
        inbox = Inbox(expected)
        with station.subscriber("reader", "*" if case.stafeta else "#", held=case.stafeta) as line:
            publisher = station.publisher(ONE)
            settle([line], publisher)
            publisher.close()
            result = load.start(send, station, readings, rate, total)
            whole = inbox.fill(line, expected, quiet=QUIET)
            sent = result()
    if not whole:
        return Trial(sent.rate, total - sum(1 for _ in deliveries(inbox.stream)))
    if not timed:
        return Trial(sent.rate, 0)
    latencies = sorted(_latencies(inbox, sent, _arrivals(inbox.stream, readings, sizes[0])))
    return Trial(sent.rate, 0, percentile(latencies, 50), percentile(latencies, 99))


@contextmanager
def _station(case: Case, folder: Path) -> Iterator[Station]:
    if case.stafeta:
        with Broker(folder, "devices") as broker:
            yield DeviceStation(broker)
    else:
        with peers.Mosquitto(folder) as mosquitto:
            yield MqttStation(mosquitto)


def send(station: Station, readings: Sequence[Reading], rate: float, total: int) -> Sent:
    """So many readings at an even pace, by a publisher of its own."""
    publisher = station.publisher(readings)
    try:
        return paced(publisher, rate, total)
    finally:
        publisher.close()


class Arrival(NamedTuple):
    place: int  # in the stream that was sent
    end: int  # in the one that was received


def _arrivals(stream: memoryview, readings: Sequence[Reading], size: int) -> Iterator[Arrival]:
    """What has come, if it is all that was sent, as it was sent and in the order of its topic."""
    if len(readings) == 1:
        if not in_order(stream, size, 0):
            raise LoadFailed("What came is not what was sent, in order.")
        yield from map(Arrival._make, enumerate(range(size, len(stream) + 1, size)))
        return
    places = {datagram(each)[:50]: count(place, len(readings)) for place, each in enumerate(readings)}
    for delivery in deliveries(stream):
        topic = bytes(delivery.datagram[:50])
        place = next(places[topic])
        reading = readings[place % len(readings)]
        content = reading.content
        if reading.numbered:
            content = number(place) + content[DIGITS:]
        if delivery.datagram[51:] != content:
            raise LoadFailed(f"What came on {reading.topic} is not what was sent, in order.")
        yield Arrival(place, delivery.end)


def _latencies(inbox: Inbox, sent: Sent, arrivals: Iterator[Arrival]) -> Iterator[float]:
    """Seconds from the portion that a message was sent in to the one that it was received in."""
    part = 0
    for place, end in arrivals:
        while inbox.ends[part] < end:
            part += 1
        yield inbox.times[part] - sent.times[bisect_right(sent.totals, place)]
