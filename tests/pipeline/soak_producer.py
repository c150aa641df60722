"""A producer, to be killed. Run as a program by the soak.

python -m tests.pipeline.soak_producer BROKER RATE LATER STOP

publishes numbered messages to the topics of `TOPICS`, RATE of them a second to each, to the second topic only once the
first has LATER messages. It goes on where an earlier run has come to, tells on each line of output how many of each
topic are on the broker's disk, and ends once the file STOP is there.
"""

import json
import sys
import time
from pathlib import Path

import stafeta
from stafeta.doors.flight.client.connection import Connection

NAME = "soak"
TOPICS = ("input/early", "input/late")
_TICK = 0.02


def payload(topic: str, number: int) -> str:
    return f"{topic} {number}"


def parsed(message: bytes) -> tuple[str, int]:
    """The topic and the number of a payload; raises ValueError where it is none."""
    topic, _, number = message.decode().rpartition(" ")
    return topic, int(number)


class Series:
    """The messages of one topic."""

    def __init__(self, broker: Connection, topic: str) -> None:
        self.topic = topic
        self._producer = broker.producer(topic, name=NAME, linger=0.002)
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
        self._producer.send_many([payload(self.topic, number) for number in range(first, first + count)])

    def finish(self) -> None:
        self._producer.flush()


def main(address: str, rate: str, later: str, stop: str) -> None:
    each = max(1, round(int(rate) * _TICK))
    with stafeta.connect(address, timeout=120.0) as broker:
        early, late = (Series(broker, topic) for topic in TOPICS)
        while not Path(stop).exists():
            early.send(each)
            if early.sent >= int(later):
                late.send(each)
            tell(early, late)
            time.sleep(_TICK)
        early.finish()
        late.finish()
        tell(early, late)


def tell(*series: Series) -> None:
    print(json.dumps({one.topic: one.stored for one in series}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
