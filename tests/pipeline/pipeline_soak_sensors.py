"""Sensors with a steady load. Run as a program by the soak of the pipeline.

python -m tests.pipeline.pipeline_soak_sensors FLIGHT DEVICES RATE STOP

1. Half of the readings go by UDP, as devices send them: what the broker does not take, because it is dead, is lost.
   The other half goes through a client that keeps what it has sent until the broker has it: none is lost.
2. A reading tells its own number within its topic, and every `WAVE` of them it is high instead of low, or low again.
3. Beside them come orders in JSON, of which every `WRONG`th does not fit its schema.
4. On each line of output is how many of each topic were sent by UDP, and how many of the others are on the broker's
   disk.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import stafeta
from stafeta.clients.devices import Publisher
from stafeta.clients.flight.connection import Connection
from stafeta.message import Kind

EXACT = tuple(f"plant/flight/{number}" for number in range(6))
LOSSY = tuple(f"plant/udp/{number}" for number in range(6))
ORDERS = "plant/orders"
NAME = "sensors"
WAVE = 100
WRONG = 10
LIMIT = 5.0
"""Between low and high."""

_DIGITS = 8
_TICK = 0.02
_TELL = 0.5


def reading(number: int) -> str:
    """The number behind the point: then it fits a device's FLOAT."""
    return f"{9 if number // WAVE % 2 else 1}.{number:0{_DIGITS}d}"


def number_of(payload: bytes) -> int:
    """The number of a reading; raises ValueError where it is none."""
    number = int(payload.partition(b".")[2])
    if payload != reading(number).encode():
        raise ValueError(payload)
    return number


def order(number: int) -> str:
    return json.dumps({"number": number, "price": "free" if number % WRONG == 0 else number % 100})


def number_of_order(payload: bytes) -> int:
    """The number of an order; raises ValueError where it is none."""
    try:
        number = int(json.loads(payload)["number"])
    except (KeyError, TypeError) as error:
        raise ValueError(payload) from error
    if payload != order(number).encode():
        raise ValueError(payload)
    return number


SCHEMA = {"type": "object", "required": ["price"], "properties": {"price": {"type": "number"}}}
"""What orders have to be."""


class Sensors:
    """All of them, with how many readings of each topic they have made."""

    def __init__(self, broker: Connection, devices: Publisher) -> None:
        self._devices = devices
        self._made = dict.fromkeys((*EXACT, *LOSSY, ORDERS), 0)
        self._producers = {
            topic: broker.producer(topic, name=NAME, linger=0.002, kind="float") for topic in EXACT
        }
        self._producers[ORDERS] = broker.producer(ORDERS, name=NAME, linger=0.002, kind="json")

    def send(self, each: int) -> None:
        """So many readings to each topic, and one order."""
        for topic in EXACT:
            self._producers[topic].send_many([reading(number) for number in self._numbers(topic, each)])
        for topic in LOSSY:
            for number in self._numbers(topic, each):
                self._devices.publish(topic, Kind.FLOAT, reading(number).encode())
        self._producers[ORDERS].send_many([order(number) for number in self._numbers(ORDERS, 1)])

    def finish(self) -> None:
        for producer in self._producers.values():
            producer.flush()

    def tell(self) -> None:
        counts = {topic: self._made[topic] for topic in LOSSY}
        counts |= {topic: producer.acknowledged for topic, producer in self._producers.items()}
        print(json.dumps(counts), flush=True)

    def _numbers(self, topic: str, count: int) -> Iterator[int]:
        first = self._made[topic] + 1
        self._made[topic] += count
        return iter(range(first, first + count))


def main(flight: str, devices: str, rate: str, stop: str) -> None:
    host, _, port = devices.rpartition(":")
    # So often that the rate is met with one reading of each topic, at the least.
    pause = max(_TICK, len(EXACT + LOSSY) / int(rate))
    each = max(1, round(int(rate) * pause / len(EXACT + LOSSY)))
    with stafeta.connect(flight, timeout=120.0) as broker, Publisher(host, int(port)) as publisher:
        sensors = Sensors(broker, publisher)
        told = 0.0
        due = time.monotonic()
        while not Path(stop).exists():
            sensors.send(each)
            if time.monotonic() > told + _TELL:
                sensors.tell()
                told = time.monotonic()
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))
        sensors.finish()
        sensors.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
