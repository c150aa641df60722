"""Runs the pipeline under a steady load while broker, driver and Python workers are killed, and audits the outcome.

python -m tests.pipeline.pipeline_soak [--seconds N] [--kills N] [--seed N] [--rate N] [--folder F]

Sensors send readings by UDP and through a client that repeats what was not confirmed; the jobs archive, rollup, alerts
and deadletter work on them. Each victim is killed with SIGKILL at a moment that a seed decides. In the end the driver
is killed once more, the jobs are run to the end of what there is, and the job audit looks at all of it. Beside it, the
soak compares what was sent with what lake, log, rollups, alerts and the dead say.
"""

import argparse
import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import stafeta
from stafeta.config import load
from stafeta.errors import StafetaError
from tests.brokers import BrokerProcess
from tests.pipeline.pipeline_soak_checks import (
    wrong_alerts,
    wrong_dead,
    wrong_readings,
    wrong_silence,
    wrong_union,
    wrong_windows,
)
from tests.pipeline.pipeline_soak_evidence import (
    alerts,
    dead,
    gathered,
    reports,
    silences,
    windows,
)
from tests.pipeline.pipeline_soak_plan import TOLD, VICTIMS, Kill, kills
from tests.pipeline.pipeline_soak_sensors import EXACT, LOSSY, ORDERS
from tests.pipeline.pipeline_soak_settings import JOBS, command, write_settings
from tests.pipeline.sessions import environment
from tests.pipeline.soak_actors import Actor, kill_a_worker, program, stored
from tests.pipeline.soak_checks import last_of, wrong_confirmations
from tests.waiting import PATIENCE, wait_until

_POLL_INTERVAL = 0.2  # seconds between two looks at the broker, which has other things to do
_OPEN = 7.0  # seconds after which a window is over, by its size and the delay


class Soak:
    """One run, in a folder."""

    def __init__(
        self, folder: Path, seconds: float, least: int, seed: int, rate: int, resources: ExitStack
    ) -> None:
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._least = least
        self._killed: Counter[str] = Counter()
        self._began = time.monotonic()
        self.broker = resources.enter_context(BrokerProcess(folder / "data", doors=("flight", "devices")))
        host, self._port = self.broker.door("flight")
        address = f"grpc://{host}:{self._port}"
        self._connection = resources.enter_context(stafeta.connect(address, timeout=PATIENCE))
        file = write_settings(folder, address)
        self._config = load(file)
        self._folder = folder
        self.driver = Actor("jobs", folder, command(folder, file, *JOBS), environment=environment())
        self._rest = Actor("rest", folder, command(folder, file, *JOBS, "--once"), environment=environment())
        self._audit = Actor("audit", folder, command(folder, file, "audit"), environment=environment())
        devices = ":".join(map(str, self.broker.door("devices")))
        self.sensors = program("pipeline_soak_sensors", folder, address, devices, str(rate))
        self.actors = (self.driver, self._rest, self._audit, self.sensors)
        for actor in self.actors:
            resources.callback(actor.kill)

    def run(self) -> list[str]:
        """Returns what is wrong."""
        self.driver.start()
        # Nobody else holds what the sensors send.
        self._wait(lambda: self._connection.stats()["subscriptions"] >= len(JOBS))
        self.sensors.start()
        self._wait(lambda: self._visible() > 0)
        self._tell("all jobs run")
        loaded = time.monotonic()
        for number, kill in enumerate(kills(self._chance), 1):
            self._kill(number, kill)
            if number >= self._least and time.monotonic() >= loaded + self._seconds:
                break
        self.sensors.finish(PATIENCE)
        stopped = time.time()
        self._tell(f"the sensors have stopped after {time.monotonic() - loaded:.0f} s of load")
        self._drain(stopped)
        return self._wrong(stopped)

    def _kill(self, number: int, kill: Kill) -> None:
        self._await(kill.moment)
        time.sleep(kill.delay)
        if kill.victim == "broker":
            self.broker.restart()
        elif kill.victim == "worker":
            port = self._port if kill.moment == "busy" else None
            self._wait(lambda: kill_a_worker(self.driver, port, self._chance))
        else:
            self.driver.kill()
            self.driver.start()
        self._killed[kill.victim] += 1
        self._tell(f"{number}: {kill.victim} killed {TOLD[kill.moment]}")

    def _await(self, moment: str) -> None:
        look: dict[str, Callable[[], object]] = {
            "archived": self._version,
            "planned": self._planned,
            "visible": self._visible,
        }
        if moment in look:
            before = look[moment]()
            self._wait(lambda: look[moment]() != before, pause=_POLL_INTERVAL if moment == "visible" else 0.0)

    def _version(self) -> str:
        """The lake's newest version."""
        versions = Path(self._config.lake.warehouse).glob("*/messages/metadata/*.metadata.json")
        return max((path.name for path in versions), default="")

    def _planned(self) -> int:
        """How many micro-batches Spark has planned, of all jobs."""
        return sum(last_of(job, "offsets") for job in Path(self._config.pipeline.checkpoints).iterdir())

    def _visible(self) -> int:
        """How many rollups there are."""
        return sum(topic.next for topic in self._connection.topics("rollup/#"))

    def _drain(self, stopped: float) -> None:
        """The jobs go to the end of what there is, when all windows are over."""
        self.driver.kill()
        self._killed["driver"] += 1
        self._tell("driver killed a last time")
        self._wait(lambda: time.time() > stopped + _OPEN)
        for actor, what in ((self._rest, "the jobs have read what there is"), (self._audit, "audit is done")):
            actor.start()
            actor.finish(PATIENCE)
            self._tell(what)

    def _wrong(self, stopped: float) -> list[str]:
        counts = stored(self.sensors)
        evidence = gathered(self._config.lake, self._connection)
        sent = kept = evidence.kept()
        taken = {topic: len(sent.get(topic, ())) for topic in (*EXACT, *LOSSY)}
        rolled, raised = windows(kept), alerts(kept)
        wrong = wrong_confirmations([{topic: count[topic] for topic in (*EXACT, ORDERS)} for count in counts])
        wrong += wrong_union(evidence.lake, evidence.log, evidence.ends)
        wrong += wrong_readings(counts[-1], sent)
        wrong += wrong_windows(taken, evidence.table, rolled)
        wrong += wrong_alerts(kept, raised)
        wrong += wrong_silence(silences(kept), stopped)
        wrong += wrong_dead(kept, dead(kept), evidence.dead)
        wrong += [f"{victim} was never killed" for victim in VICTIMS if not self._killed[victim]]
        wrong += [f"{line} is left" for actor in self.actors for line in actor.left()]
        self._summary(counts[-1], taken)
        self._tell(
            f"lake {sum(map(len, evidence.lake.values()))} messages, log {sum(map(len, evidence.log.values()))}; "
            f"{len(rolled)} windows that count {sum(window.readings for window in rolled)} readings of "
            f"{sum(taken.values())}; {sum(map(len, raised.values()))} alerts; {len(evidence.dead)} dead"
        )
        return wrong

    def _summary(self, sent: dict[str, int], taken: dict[str, int]) -> None:
        victims = ", ".join(f"{victim} {count}" for victim, count in sorted(self._killed.items()))
        restarts = sum("starts again" in line for line in self.driver.errors())
        self._tell(
            f"{self._killed.total()} kills ({victims}); jobs that failed were started again {restarts} times"
        )
        lossy = sum(sent[topic] for topic in LOSSY)
        self._tell(
            f"sent: {sum(sent[topic] for topic in EXACT)} readings and {sent[ORDERS]} orders that were confirmed, "
            f"{lossy} readings by UDP, of which the broker took {sum(taken[topic] for topic in LOSSY)}"
        )

    def _is_well(self) -> bool:
        """Raises where somebody has ended who was not killed."""
        self.driver.check()
        self.sensors.check()
        return True

    def _wait(self, condition: Callable[[], bool], pause: float = _POLL_INTERVAL) -> None:
        def come() -> bool:
            if self._is_well() and condition():
                return True
            time.sleep(pause)
            return False

        wait_until(come, PATIENCE)

    def _tell(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {line}", flush=True)

    def remains(self) -> list[str]:
        """What may help whoever looks for the reason of a failure."""
        told = [f"{actor.name}:\n{actor.tail()}" for actor in self.actors]
        try:
            told.append(f"reports: {json.dumps(reports(self._connection), indent=1)}")
        except StafetaError as error:
            told.append(f"reports: {error}")
        return [*told, f"broker:\n{self.broker.stderr[-4000:]}"]


def soak(folder: Path, seconds: float, least: int, seed: int, rate: int) -> list[str]:
    """Returns what is wrong; leaves no process behind."""
    with ExitStack() as resources:
        one = Soak(folder, seconds, least, seed, rate, resources)
        try:
            return one.run()
        except (AssertionError, StafetaError, subprocess.TimeoutExpired) as error:
            return [str(error), *one.remains()]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pipeline_soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the load goes on (300)")
    parser.add_argument("--kills", type=int, default=len(VICTIMS), help=f"how many at least ({len(VICTIMS)})")
    parser.add_argument("--seed", type=int, help="what decides who is killed and when; a new one if left out")
    parser.add_argument("--rate", type=int, default=1200, help="readings a second, in all (1200)")
    parser.add_argument("--folder", type=Path, help="where to work, an empty folder; kept afterwards")
    options = parser.parse_args(words)
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty")
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.seconds:g} s, {options.rate} readings a second", flush=True)
    logging.getLogger("stafeta.client").setLevel(logging.CRITICAL)  # that the broker is gone is known
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = soak(folder.absolute(), options.seconds, options.kills, seed, options.rate)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print(f"seed {seed}: {'it is not as it should be' if wrong else 'audit and counts find nothing wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
