"""A producer, to be killed. Run as a program by the soak.

python -m tests.pipeline.soak_producer BROKER RATE LATER STOP

publishes numbered messages to the topics of `TOPICS`, RATE of them a second to each, to the second topic only once the
first has LATER messages. It goes on where an earlier run has come to, tells on each line of output how many of each
topic are on the broker's disk, and ends once the file STOP is there.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import stafeta
from stafeta.clients.flight.connection import Connection

NAME = "soak"
TOPICS = ("input/early", "input/late")
_TICK = 0.02
_TIMEOUT = 300.0

Payload = Callable[[str, int], str]
"""What a message of a topic has to say, by its number."""


def payload(topic: str, number: int) -> str:
    return f"{topic} {number}"


def parsed(message: bytes) -> tuple[str, int]:
    """The topic and the number of a payload; raises ValueError where it is none."""
    topic, _, number = message.decode().rpartition(" ")
    return topic, int(number)


class Series:
    """The messages of one topic."""

    def __init__(self, broker: Connection, topic: str, payload: Payload, kind: str | None) -> None:
        self.topic = topic
        self._payload = payload
        self._producer = broker.producer(topic, name=NAME, linger=0.002, kind=kind)
        self._before = self._producer.count
        """How many there were when this run began."""

    @property
    def sent(self) -> int:
        return self._before + self._producer.sent

    @property
    def stored(self) -> int:
        return self._before + self._producer.acknowledged

    def send(self, count: int) -> None:
        first = self.sent + 1
        self._producer.send_many(
            [self._payload(self.topic, number) for number in range(first, first + count)]
        )

    def finish(self) -> None:
        self._producer.flush()


def main(address: str, rate: str, later: str, stop: str) -> None:
    produce(address, int(rate), int(later), Path(stop), TOPICS, payload)


def produce(
    address: str,
    rate: int,
    later: int,
    stop: Path,
    topics: Sequence[str],
    payload: Payload,
    kind: str | None = None,
) -> None:
    """Publishes to two topics until the file is there."""
    pause = max(_TICK, 1 / rate)  # so that the rate is met with one message of each topic, at the least
    each = round(rate * pause)
    with stafeta.connect(address, timeout=_TIMEOUT) as broker:
        early, late = (Series(broker, topic, payload, kind) for topic in topics)
        while not stop.exists():
            early.send(each)
            if early.sent >= later:
                late.send(each)
            tell(early, late)
            time.sleep(pause)
        early.finish()
        late.finish()
        tell(early, late)


def tell(*series: Series) -> None:
    print(json.dumps({one.topic: one.stored for one in series}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
