"""Copies topics through Spark while everybody who takes part is killed, and checks the copy.

python -m tests.pipeline.soak [--kills N] [--seed N] [--rate N] [--folder F]

A producer publishes to two topics, of which the second appears while it runs; a streaming query copies them to a third.
Producer, broker, Spark's driver with its JVM and executors' Python workers are killed with SIGKILL, and started again.
In the end the copy must have every message once and in order, and nobody may ever have seen half a micro-batch. The
input is held by the query's durable subscription alone.
"""

import argparse
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import stafeta
from stafeta.errors import StafetaError
from tests.brokers import BrokerProcess
from tests.pipeline.soak_actors import kill_a_worker, lost_tasks, program, python_workers, stored
from tests.pipeline.soak_checks import (
    last_of,
    planned_ends,
    wrong_confirmations,
    wrong_deliveries,
    wrong_looks,
    wrong_messages,
)
from tests.pipeline.soak_driver import OUTPUT, SUBSCRIBE
from tests.pipeline.soak_plan import TOLD, Kill, planned
from tests.pipeline.soak_producer import TOPICS
from tests.pipeline.soak_watch import Watch
from tests.waiting import wait_until

PATIENCE = 120.0
_A_WHILE = 10.0


class Soak:
    """One run, in a folder."""

    def __init__(self, folder: Path, kills: int, seed: int, rate: int, resources: ExitStack) -> None:
        self._chance = random.Random(seed)
        self._plan = planned(kills, self._chance)
        self._killed: Counter[str] = Counter()
        self._between: set[int] = set()  # how many messages were visible, each time that a driver died so
        self._left: list[int] = []
        self._began = time.monotonic()
        self.broker = BrokerProcess(
            folder / "data", "--set", f"topics.{OUTPUT}.keep=36500d", doors=("flight",)
        )
        resources.enter_context(self.broker)
        host, self._port = self.broker.door("flight")
        address = f"grpc://{host}:{self._port}"
        self._connection = resources.enter_context(stafeta.connect(address, timeout=PATIENCE))
        self.watch = resources.enter_context(Watch(address, OUTPUT))
        self._checkpoint = folder / "checkpoint"
        self.driver = program("soak_driver", folder, address, str(folder))
        self.producer = program("soak_producer", folder, address, str(rate), str(rate * 5))
        resources.callback(self.driver.kill)
        resources.callback(self.producer.kill)

    def run(self) -> list[str]:
        """Returns what is wrong."""
        self.driver.start()
        # Nobody else holds the input.
        self._wait(lambda: self._connection.stats()["subscriptions"] == 2)
        self.producer.start()
        self._wait(lambda: self.watch.count > 0)
        for number, kill in enumerate(self._plan, 1):
            self._kill(number, kill)
        self._drain()
        return self._wrong()

    def _kill(self, number: int, kill: Kill) -> None:
        self._await(kill.moment)
        time.sleep(kill.delay)
        note = ""
        if kill.victim == "producer":
            self.producer.kill()
            self.producer.start()
        elif kill.victim == "broker":
            self.broker.restart()
        elif kill.victim == "worker":
            # Before it has, looking for its workers only takes its processor away.
            self._wait(self.driver.has_started)
            port = self._port if kill.moment == "busy" else None
            self._wait(lambda: kill_a_worker(self.driver, port, self._chance))
        else:
            self.driver.kill()
            if self._is_between_commits():
                note = ", between the sink's commit and Spark's own"
            self.driver.start()
        self._killed[kill.victim] += 1
        self._tell(
            f"{number} of {len(self._plan)}: {kill.victim} killed {TOLD[kill.moment]}{note}; "
            f"{self.watch.count} messages in the output"
        )

    def _await(self, moment: str) -> None:
        if moment == "visible":
            known = self.watch.count
            self._wait(lambda: self.watch.wait_for_more(known, 1.0))
        elif moment in ("planned", "done"):
            log = "offsets" if moment == "planned" else "commits"
            last = last_of(self._checkpoint, log)
            self._wait(lambda: last_of(self._checkpoint, log) > last)

    def _is_between_commits(self) -> bool:
        """Whether more is visible than Spark has written down as done."""
        done = planned_ends(self._checkpoint).get(last_of(self._checkpoint, "commits"), 0)
        visible = self.watch.visible()
        if visible > done:
            self._between.add(visible)
        return visible > done

    def _drain(self) -> None:
        """Until everything published has arrived and is acknowledged."""
        self.producer.finish(PATIENCE)
        total = sum(stored(self.producer)[-1].values())
        self._tell(f"the producer is done: {total} messages")
        self._wait(lambda: self.watch.count >= total)
        self._wait(lambda: not self._held())
        with suppress(AssertionError):  # what is left is told in the end
            wait_until(lambda: not self._idle_connections(), _A_WHILE)
        self._left = self._idle_connections()
        self.driver.finish(PATIENCE)

    def _wrong(self) -> list[str]:
        counts = stored(self.producer)
        published = counts[-1]
        total = sum(published.values())
        output: list[Any] = self._connection.read(OUTPUT, columns=["payload"])["payload"].to_pylist()
        ends = planned_ends(self._checkpoint)
        wrong = wrong_confirmations(counts)
        wrong += wrong_messages(published, output)
        wrong += wrong_deliveries(self.watch.offsets, total)
        wrong += wrong_looks(self.watch.looks, ends.values())
        wrong += [f"{topic} has no messages" for topic in TOPICS if not published.get(topic)]
        wrong += [f"{line} is left" for one in (self.driver, self.producer) for line in one.left()]
        if self._left:
            wrong.append(
                f"{len(self._left)} Python workers have nothing to do, but connections to the broker"
            )
        victims = ", ".join(f"{victim} {count}" for victim, count in sorted(self._killed.items()))
        self._tell(
            f"{self._killed.total()} kills ({victims}), {len(self._between)} times between the two commits; "
            f"{lost_tasks(self.driver)} tasks lost; {len(ends)} micro-batches; "
            f"{self.watch.times_looked} looks, of which {len(self.watch.looks)} saw news; "
            f"{total} messages published, {len(output)} in the output"
        )
        return wrong

    def _idle_connections(self) -> list[int]:
        """Processes of workers that have a connection to the broker, though there is nothing to do."""
        return [process.pid for process in python_workers(self.driver, self._port)]

    def _held(self) -> int:
        return sum(topic.rows for topic in self._connection.topics(SUBSCRIBE))

    def _is_well(self) -> bool:
        """Raises where somebody has ended who was not killed."""
        self.watch.check()
        self.driver.check()
        self.producer.check()
        return True

    def _wait(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: self._is_well() and condition(), PATIENCE)

    def _tell(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {line}", flush=True)


def soak(folder: Path, kills: int, seed: int, rate: int) -> list[str]:
    """Returns what is wrong; leaves no process behind."""
    with ExitStack() as resources:
        one = Soak(folder, kills, seed, rate, resources)
        try:
            return one.run()
        except (AssertionError, StafetaError, subprocess.TimeoutExpired) as error:
            tails = [f"{actor.name}:\n{actor.tail()}" for actor in (one.driver, one.producer)]
            return [str(error), *tails, f"broker:\n{one.broker.stderr[-4000:]}"]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how many in all (20)")
    parser.add_argument("--seed", type=int, help="what decides who is killed and when; a new one if left out")
    parser.add_argument("--rate", type=int, default=500, help="messages a second to each topic (500)")
    parser.add_argument("--folder", type=Path, help="where to work, an empty folder; kept afterwards")
    options = parser.parse_args(words)
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty")
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.kills} kills, {options.rate} messages a second to each topic", flush=True)
    logging.getLogger("stafeta.client").setLevel(logging.CRITICAL)  # that the broker is gone is known
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = soak(folder, options.kills, seed, options.rate)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print(f"seed {seed}: {'it is not as it should be' if wrong else 'every message arrived once'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
