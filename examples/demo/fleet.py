"""A fleet of simulated sensors that publish by UDP.

1. A reading is the curve of a day, which lasts a minute here, with some noise; now and then a sensor has a fault.
2. UDP has no acknowledgement: what was sent is counted here, and compared at the end with what was stored.
"""

import math
import random
import threading
import time
from collections import Counter
from typing import Final, NamedTuple

from stafeta.clients.devices import Publisher, payload_of
from stafeta.message import Kind

DAY: Final = 60.0  # seconds
CYCLE: Final = 40.0  # seconds after which the faults come again
INTERVAL: Final = 0.2  # seconds between two readings of a sensor
STATUS: Final = "upb/fleet/status"


class Sensor(NamedTuple):
    """Its values lie between `low`, about midnight, and `high`, about noon."""

    topic: str
    kind: Kind
    low: float
    high: float
    noise: float
    unit: str = ""


class Fault(NamedTuple):
    """What a sensor does from `begin` to `end` of a cycle: it jumps by `size`, drifts away by it, or is silent."""

    topic: str
    what: str
    begin: float
    end: float
    size: float = 0.0


SENSORS: Final = (
    Sensor("upb/hall/temperature", Kind.FLOAT, 19, 23, 0.1, "°C"),
    Sensor("upb/lab/temperature", Kind.FLOAT, 20, 24, 0.1, "°C"),
    Sensor("upb/roof/temperature", Kind.FLOAT, -4, 11, 0.2, "°C"),
    Sensor("upb/roof/wind", Kind.SHORT_REAL, 1, 8, 0.6, "m/s"),
    Sensor("upb/roof/light", Kind.INT, 2, 41_000, 300, "lx"),
    Sensor("upb/lab/co2", Kind.INT, 420, 900, 12, "ppm"),
    Sensor("upb/hall/humidity", Kind.SHORT_REAL, 38, 55, 0.5, "%"),
    Sensor("upb/hall/people", Kind.INT, 0, 140, 4),
    Sensor("upb/cellar/water", Kind.FLOAT, 3.2, 3.6, 0.03, "bar"),
    Sensor("upb/cellar/power", Kind.FLOAT, 11, 64, 1.5, "kW"),
    Sensor("upb/hall/door", Kind.STRING, 0, 1, 0.3),
)
FAULTS: Final = (
    Fault("upb/lab/temperature", "jump", 6, 11, 15.0),
    Fault("upb/cellar/water", "drift", 12, 22, 3.0),
    Fault("upb/roof/wind", "silence", 18, 28),
)
_DECIMALS: Final = {Kind.INT: 0, Kind.SHORT_REAL: 2, Kind.FLOAT: 3}


def reading(sensor: Sensor, seconds: float, chance: random.Random) -> str | None:
    """What a sensor says so many seconds after the beginning; None where it is silent."""
    day = (1 - math.cos(2 * math.pi * seconds / DAY)) / 2
    value = sensor.low + (sensor.high - sensor.low) * day + chance.gauss(0, sensor.noise)
    at = seconds % CYCLE
    for fault in FAULTS:
        if fault.topic == sensor.topic and fault.begin <= at < fault.end:
            if fault.what == "silence":
                return None
            share = 1.0 if fault.what == "jump" else (at - fault.begin) / (fault.end - fault.begin)
            value += fault.size * share
    if sensor.kind is Kind.STRING:
        return "open" if value > 0.5 else "closed"
    if sensor.low >= 0:
        value = max(value, 0.0)
    return f"{value:.{_DECIMALS[sensor.kind]}f}"


class Fleet:
    """Publishes on a thread of its own, from `start` to `stop`. Then only its status goes on, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        self.sent: Counter[str] = Counter()
        self._place = (host, port)
        self._off = threading.Event()
        self._closed = threading.Event()
        self._quiet = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last reading is sent."""
        self._off.set()
        self._quiet.wait()

    def close(self) -> None:
        self._off.set()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        chance = random.Random(6)
        began = due = time.monotonic()
        with Publisher(*self._place) as publisher:
            while not self._closed.wait(max(0.0, due - time.monotonic())):
                due += INTERVAL
                if self._off.is_set():
                    self._quiet.set()
                    self._publish(publisher, STATUS, Kind.STRING, "off")
                    continue
                for sensor in SENSORS:
                    text = reading(sensor, time.monotonic() - began, chance)
                    if text is not None:
                        self._publish(publisher, sensor.topic, sensor.kind, text)
        self._quiet.set()

    def _publish(self, publisher: Publisher, topic: str, kind: Kind, text: str) -> None:
        publisher.publish(topic, kind, payload_of(kind, text))
        self.sent[topic] += 1
