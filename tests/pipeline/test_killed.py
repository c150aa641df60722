"""Everybody who takes part in a pipeline is killed under load, and every message is counted in the end.

The soaks (`make soak`) do so for minutes, at moments that chance decides; here each is killed once.
"""

import json
import logging
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import stafeta
from stafeta.cli import exits
from stafeta.config import load
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.pipeline import killed_producer
from tests.pipeline.pipeline_soak_checks import wrong_readings, wrong_union, wrong_windows
from tests.pipeline.pipeline_soak_evidence import gathered, windows
from tests.pipeline.pipeline_soak_sensors import EXACT, LOSSY, ORDERS
from tests.pipeline.pipeline_soak_settings import command, write_settings
from tests.pipeline.processes import command as command_line
from tests.pipeline.processes import send
from tests.pipeline.queries import address, payloads
from tests.pipeline.sessions import IMPORTED_AHEAD, INTERPRETED, ROOT
from tests.pipeline.soak_actors import Actor, kill_a_worker, pools, program, python_workers, stored
from tests.pipeline.soak_checks import (
    last_of,
    planned_ends,
    taken,
    wrong_confirmations,
    wrong_deliveries,
    wrong_looks,
    wrong_messages,
)
from tests.pipeline.soak_watch import Watch
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GLANCE = 0.5  # seconds between two looks, since who is looked at has other things to do
SOME = 20  # readings of each sensor
JOBS = ("archive", "rollup")  # the soak has all of them
MINE = ("counts", "fahrenheit", "hot")
"""The jobs of examples/my_job.py."""
COLD = ("upb/cellar/temperature", "10")
ARCHIVED = "plant/#,rollup/#"
"""What Stafeta's own jobs read; what a user's jobs read and write is beside it."""


class Pipeline:
    """A broker, those who publish, and the command that runs Stafeta's jobs and a user's in one Spark."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        keep = [f"topics.{topic}.keep=36500d" for topic in ("hot", "counts", '"fahrenheit/#"')]
        options = [word for one in keep for word in ("--set", one)]
        self.broker = BrokerProcess(folder / "data", *options, doors=("flight", "devices"))
        resources.enter_context(self.broker)
        self.port = self.broker.door("flight")[1]
        self.connection = resources.enter_context(stafeta.connect(address(self.broker), timeout=PATIENCE))
        self.watch = resources.enter_context(Watch(address(self.broker), "hot"))
        self._folder = folder
        self._file = write_settings(folder, address(self.broker))
        self.config = load(self._file)
        mine = str(ROOT / "examples" / "my_job.py")
        self.first = self._runner("first", *JOBS, mine)
        self.second = self._runner("second", *JOBS, mine, "audit")
        self.refused = command(folder, self._file, mine)
        devices = ":".join(map(str, self.broker.door("devices")))
        self.sensors = program("pipeline_soak_sensors", folder, address(self.broker), devices, "24")
        self.producer = program("killed_producer", folder, address(self.broker), "5", "15")
        for actor in (self.first, self.second, self.sensors, self.producer):
            resources.callback(actor.kill)
        self._active: list[Actor] = []

    def _runner(self, name: str, *jobs: str) -> Actor:
        words = ["--set", f"pipeline.subscribe={ARCHIVED}", "--set", "pipeline.trigger=6s"]
        conf = INTERPRETED | {"spark.sql.streaming.minBatchesToRetain": "1000"}  # for who counts them
        words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        line = command(self._folder, self._file, *jobs, *words)
        return Actor(name, self._folder, line, environment={"PYTHONPATH": IMPORTED_AHEAD})

    def start(self, *actors: Actor) -> None:
        """Starts some; from then on, none of them may end by itself."""
        for actor in actors:
            actor.start()
            self._active.append(actor)

    def kill(self, actor: Actor) -> None:
        self._active.remove(actor)
        actor.kill()

    def leaves(self, actor: Actor) -> None:
        """Waits until nothing is left of one whose Python processes were killed: its JVM does not outlive them."""
        self._active.remove(actor)
        self.wait(lambda: not actor.left())
        actor.kill()

    def finish(self, actor: Actor) -> None:
        self._active.remove(actor)
        actor.finish(PATIENCE)

    def wait(self, condition: Callable[[], object], pause: float = GLANCE) -> None:
        def come() -> bool:
            for actor in self._active:
                actor.check()
            self.watch.check()
            if condition():
                return True
            time.sleep(pause)
            return False

        try:
            wait_until(come, PATIENCE)
        except AssertionError as error:
            tails = [f"{actor.name}:\n{actor.tail()}" for actor in (self.first, self.second, *self._active)]
            raise AssertionError("\n".join([str(error), *tails, self.broker.stderr[-4000:]])) from None

    def run(self, runner: Actor) -> None:
        """Starts a runner, and waits until all of its jobs run."""
        self.start(runner)
        self.wait(
            lambda: all(
                any(line.startswith(f"{job}: running") for line in runner.errors()) for job in (*JOBS, *MINE)
            )
        )

    def wait_for_more(self) -> None:
        """Waits until the user's job has made a micro-batch visible, and returns at once then."""
        known = self.watch.count
        self.wait(lambda: self.watch.wait_for_more(known, 1.0), pause=0.0)

    def rollups(self) -> int:
        return sum(topic.next - 1 for topic in self.connection.topics("rollup/#"))

    def checkpoint(self, job: str) -> Path:
        """Where Spark writes down how far a job is. The archive has a new place with each start."""
        place = Path(self.config.pipeline.checkpoints) / job
        return next((path.parent for path in place.glob("*/offsets")), place) if job == "archive" else place

    def planned(self) -> int:
        """How many micro-batches Spark has planned, of all jobs."""
        return sum(last_of(self.checkpoint(job), "offsets") for job in (*JOBS, *MINE))

    def told(self) -> list[list[str]]:
        """Names and states of jobs, as `stafeta pipeline status` tells them."""
        line = [sys.executable, "-m", "stafeta", "pipeline", "status", "--config", str(self._file)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return [one.split()[:2] for one in done.stdout.splitlines()[1:]]

    def is_rolled_up(self) -> bool:
        """Whether all windows are closed."""
        readings = sum(self.connection.topics(topic)[0].next - 1 for topic in (*EXACT, *LOSSY))
        table = Lake(self.config.lake).table("rollups").scan(selected_fields=("count",)).to_arrow()
        return bool(sum(row["count"] for row in table.to_pylist()) == readings)

    def is_done(self) -> bool:
        """Whether every job has committed all that there is."""
        ends = {one.topic: one.next for one in self.connection.topics("#")}
        return all(
            taken(self.checkpoint(job)).get(topic, 1) >= after
            for topic, after in ends.items()
            for job in (JOBS if topic.startswith("plant/") else MINE if topic.startswith("upb/") else ())
        )

    def held(self) -> int:
        """How many messages the broker holds for the user's jobs."""
        return sum(topic.rows for topic in self.connection.topics("upb/#"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    noise = logging.getLogger("stafeta.client")
    level = noise.level
    noise.setLevel(logging.CRITICAL)  # that the broker is gone is known
    try:
        with ExitStack() as resources:
            yield Pipeline(tmp_path, resources)
    finally:
        noise.setLevel(level)


def test_every_message_is_counted_once_though_everybody_is_killed(pipeline: Pipeline) -> None:
    broker, first, second = pipeline.broker, pipeline.first, pipeline.second
    pipeline.run(first)
    # Nobody but the jobs holds what is published.
    pipeline.connection.publish(COLD[0], [COLD[1]], kind="float")
    pipeline.start(pipeline.producer, pipeline.sensors)
    pipeline.wait_for_more()
    pipeline.wait(lambda: kill_a_worker(first, pipeline.port, random.Random()))
    planned = pipeline.planned()
    pipeline.wait(lambda: pipeline.planned() > planned, pause=0.0)
    broker.restart()
    pipeline.wait_for_more()
    pipeline.kill(pipeline.producer)
    pipeline.start(pipeline.producer)

    refused = subprocess.run(pipeline.refused, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (refused.returncode, refused.stdout) == (exits.USAGE, "")
    assert refused.stderr.startswith(
        "stafeta: The job 'hot' runs already, with the same checkpoints (process "
    )
    pipeline.wait(lambda: pipeline.told() == [[job, "running"] for job in sorted((*JOBS, *MINE))])

    pipeline.wait(lambda: pipeline.rollups() > 0)
    # What jobs do in Python shares its processes; one that was killed may take a moment to be replaced.
    pipeline.wait(lambda: pools(first.pid) == 1)
    family = [one for one in first.members() if Path([*command_line(one), ""][0]).name != "java"]
    pipeline.wait_for_more()
    for process in family:
        send(process, signal.SIGKILL)
    pipeline.leaves(first)

    pipeline.run(second)
    pipeline.wait(lambda: min(stored(pipeline.sensors)[-1].values()) > SOME)
    pipeline.finish(pipeline.producer)
    pipeline.finish(pipeline.sensors)
    pipeline.wait(pipeline.is_rolled_up)
    pipeline.wait(lambda: pipeline.is_done() and not pipeline.held())
    pipeline.wait(lambda: not python_workers(second, pipeline.port))
    pipeline.wait(lambda: list(second.lines()))
    second.send(signal.SIGTERM)
    pipeline.finish(second)
    assert not [one.left() for one in (first, second, pipeline.producer, pipeline.sensors) if one.left()]
    assert not wrong_copies(pipeline)
    assert not wrong_outcome(pipeline)
    assert not wrong_words(pipeline)


def wrong_copies(pipeline: Pipeline) -> list[str]:
    """What the user's jobs have made of readings."""
    counts = stored(pipeline.producer)
    sent = counts[-1]
    total = sum(sent.values())
    hot = [json.loads(one) for one in payloads(pipeline.broker, "hot")]
    ends = planned_ends(pipeline.checkpoint("hot")).values()
    wrong = [f"{topic} has no messages" for topic in killed_producer.TOPICS if not sent.get(topic)]
    wrong += wrong_confirmations(counts)
    wrong += wrong_messages(sent, [_named(one["topic"], one["number"]) for one in hot])
    wrong += wrong_deliveries(pipeline.watch.offsets, total)
    wrong += wrong_looks(pipeline.watch.looks, [end - 1 for end in ends])  # the cold one is not among them
    for topic, count in sent.items():
        fahrenheit = payloads(pipeline.broker, f"fahrenheit/{topic}")
        wrong += wrong_messages(
            {topic: count}, [_named(topic, (float(one) - 32) / 1.8) for one in fahrenheit]
        )
    if payloads(pipeline.broker, f"fahrenheit/{COLD[0]}") != ["50.00"]:
        wrong.append("the cold reading is not there once")
    if (counted := sum(map(int, payloads(pipeline.broker, "counts")))) != total + 1:
        wrong.append(f"the micro-batches count {counted} readings of {total + 1}")
    return wrong


def _named(topic: str, celsius: float) -> bytes:
    return f"{topic} {killed_producer.number_of(celsius)}".encode()


def wrong_outcome(pipeline: Pipeline) -> list[str]:
    """What Stafeta's own jobs have made of what the sensors sent."""
    counts = stored(pipeline.sensors)
    evidence = gathered(pipeline.config.lake, pipeline.connection)
    lake, log = _archived(evidence.lake), _archived(evidence.log)
    sent = kept = evidence.kept()
    readings = {topic: len(sent.get(topic, ())) for topic in (*EXACT, *LOSSY)}
    wrong = wrong_confirmations([{topic: count[topic] for topic in (*EXACT, ORDERS)} for count in counts])
    wrong += wrong_union(lake, log, _archived(evidence.ends))
    wrong += wrong_readings(counts[-1], sent)
    wrong += wrong_windows(readings, evidence.table, windows(kept))
    return wrong


def _archived(topics: Mapping[str, Any]) -> dict[str, Any]:
    places = tuple(one.removesuffix("#") for one in ARCHIVED.split(","))
    return {topic: value for topic, value in topics.items() if topic.startswith(places)}


def wrong_words(pipeline: Pipeline) -> list[str]:
    """What the runners have said."""
    names = ", ".join((*JOBS, "hot", "fahrenheit", "counts"))
    wrong: list[str] = []
    for runner, more in ((pipeline.first, ""), (pipeline.second, ", audit")):
        lines = list(runner.errors())
        if lines[0] != f"Starting Spark for {names}{more}.":
            wrong.append(lines[0])
        wrong += [line for line in lines if "WARN" in line or "Traceback" in line]
    ends = [line.partition(": stopped, ") for line in pipeline.second.errors() if ": stopped, " in line]
    if sorted(job for job, _, rest in ends if rest.endswith(" micro-batches.")) != sorted((*JOBS, *MINE)):
        wrong.append(f"jobs have ended so: {ends}")
    return wrong + [line for line in pipeline.second.lines() if not line.endswith(": sound")]
