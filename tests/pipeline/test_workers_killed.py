"""All jobs with tasks on a cluster, and through Spark Connect, while the processes that do their work are killed again
and again.

What is killed: Python processes of tasks, and on the cluster also executors, with all tasks in them. Spark repeats
their tasks, and speculates on slow ones. Where a kill hits what belongs to the driver, a job fails, and is started
again. In the end each message, window, alert, dead letter and replayed message is there once, and audit finds nothing.
"""

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.brokers import BrokerProcess
from tests.pipeline.cluster import Cluster
from tests.pipeline.connect_server import ConnectServer
from tests.pipeline.processes import Family, below, command, send
from tests.pipeline.rooms import JOBS, Rooms
from tests.pipeline.test_cluster import settings

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3600)]

PAUSE = 2.0  # seconds between two kills
KILLS = 30  # after which those who are left may finish
EXECUTORS = 4  # of them, at most
TRIES = 10


class Killing:
    """Kills one process of a family after the other. On a cluster, only executors and what they have started: their
    tasks are repeated, and the driver goes on."""

    def __init__(self, family: Family, seed: int, *, cluster: bool) -> None:
        self._cluster = cluster
        self.killed: Counter[str] = Counter()
        self._family = family
        self._chance = random.Random(seed)
        self._over = threading.Event()

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        while self.killed.total() < KILLS and not self._over.wait(PAUSE):
            executors = [process for process in self._family.members() if _is_executor(process)]
            within = [one for executor in executors for one in below(executor.pid)]
            everybody = within if self._cluster else self._family.members()
            victims = {"worker": [one for one in everybody if _is_worker(one)], "executor": executors}
            kinds = [kind for kind, found in victims.items() if found]
            if self.killed["executor"] >= EXECUTORS:
                kinds = [kind for kind in kinds if kind != "executor"]
            if kinds:
                kind = self._chance.choice(kinds)
                send(self._chance.choice(victims[kind]), signal.SIGKILL)
                self.killed[kind] += 1


def _is_worker(process: psutil.Process) -> bool:
    """Forked by Spark's daemon for a task."""
    with suppress(psutil.Error):
        mother = process.parent()
        return mother is not None and all("pyspark.daemon" in command(one) for one in (process, mother))
    return False


def _is_executor(process: psutil.Process) -> bool:
    """One that has tasks, or has had some."""
    if not any("CoarseGrainedExecutorBackend" in word for word in command(process)):
        return False
    with suppress(psutil.Error):
        return any(_is_worker(one) for one in process.children(recursive=True))
    return False


COMMANDS = (
    (*JOBS, "deadletter", "--once"),
    ("replay", "--topic", "rooms/#", "--into", "again/{topic}", "--name", "again"),
    ("archive", "--once"),
    ("audit",),
)


def run_until_content(rooms: Rooms, environment: Mapping[str, str], where: Sequence[str]) -> None:
    """One command after the other, each as often as it takes."""
    for words in COMMANDS:
        for attempt in range(TRIES):
            try:
                rooms.run("pipeline", "run", *words, environment=environment, where=where)
                break
            except AssertionError as error:
                print(f"try {attempt}: {error}"[-3000:])  # which is to be seen where the test fails
                last = error
        else:
            raise last


def check(rooms: Rooms) -> None:
    rooms.check()
    rooms.check_dead()
    rooms.check_copies("again")


def test_jobs_on_a_cluster_whose_workers_die(broker: BrokerProcess, tmp_path: Path) -> None:
    rooms = Rooms(broker, tmp_path)
    rooms.publish()
    (tmp_path / "driver").mkdir()
    patient = {"spark.task.maxFailures": "100", "spark.deploy.maxExecutorRetries": "-1"}
    chosen = settings(tmp_path / "driver") | patient
    with Cluster(tmp_path / "cluster") as cluster:
        conf = [word for pair in chosen.items() for word in ("--conf", "=".join(pair))]
        killing = Killing(cluster.family, 16, cluster=True)
        with killing.meanwhile():
            run_until_content(rooms, cluster.environment(), ("--master", cluster.address, *conf))
    check(rooms)
    assert killing.killed["worker"], killing.killed
    assert killing.killed["executor"], killing.killed


def test_jobs_through_connect_whose_workers_die(broker: BrokerProcess, tmp_path: Path) -> None:
    rooms = Rooms(broker, tmp_path)
    rooms.publish()
    with ConnectServer(tmp_path / "server", "local[2, 100]") as server:
        killing = Killing(server.family, 16, cluster=False)
        with killing.meanwhile():
            run_until_content(rooms, server.environment(), ("--remote", server.address))
    check(rooms)
    assert killing.killed["worker"], killing.killed
