import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadFileScheduling

from tests.brokers import BrokerProcess

SHARED = "spark"
"""The scope of all tests that share a Spark session."""

# How long an example takes says nothing where other processes are at work; and to explain a failure, Hypothesis would
# trace each line of hundreds of further runs.
for name, examples in (("test", 30), ("soak", 300), ("torture", 2800)):  # 2800: see `make torture`
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it puts into the background with Ctrl-C ignored, and that is passed on to every program.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Containers have these, and people have not. Without bytecode, each process compiles all that it imports.
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    # A JVM comes before each of Spark's, and does nothing but put its command line together.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
    asked_for = [name for name in ("torture", "soak") if config.getoption(f"--{name}")]
    settings.load_profile((*asked_for, "test")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run what takes minutes (marked soak)")
    parser.addoption("--torture", action="store_true", help="a hundred times the random examples")
    parser.addoption("--states", type=int, default=200, help="how many losses of power to try")
    parser.addoption("--flips", type=int, default=60, help="how many bits to flip")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked soak, unless asked for it. First come those that share a Spark session, which take the
    longest, then other files with slow tests, and of them those with Spark: so no process waits long for another in the
    end."""
    if not config.getoption("--soak"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    slow, spark = (
        {item.path for item in items if item.get_closest_marker(mark)} for mark in ("slow", "spark")
    )
    root = config.rootpath
    shared = {path for path in spark if scope_of(root, str(path.relative_to(root))) == SHARED}
    items.sort(key=lambda item: (item.path not in shared, item.path not in spark, item.path not in slow))


def pytest_collection_finish() -> None:
    gc.freeze()  # a million objects of thousands of tests, through which no collection has to look


@cache
def scope_of(root: Path, file: str) -> str:
    """What the tests of a file run together with: each other, or all that share a Spark session, since a second JVM
    would take longer to get warm than it could help."""
    return SHARED if "spark: SparkSession" in (root / file).read_text() else file


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Which process runs which tests."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(self.config.rootpath, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@cache
def stand_back() -> None:
    """Lets this process and what it starts go behind the one whose tests share a Spark session: for that one, all would
    wait in the end."""
    os.nice(5)


@pytest.fixture(scope="module", autouse=True)
def one_process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where several processes share the tests, those of a file stay together: what a file starts is started once. So do
    those that share a Spark session."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    folder = tmp_path_factory.getbasetemp().parent / "processes"
    folder.mkdir(exist_ok=True)
    scope = scope_of(request.config.rootpath, str(request.path.relative_to(request.config.rootpath)))
    if scope != SHARED:
        stand_back()
    note = folder / scope.replace(os.sep, ".")
    try:
        with note.open("x") as file:
            file.write(worker)
    except FileExistsError:
        first = note.read_text()
        assert first == worker, f"the tests of {scope} are split over two processes, {first} and {worker}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that runs, on an empty folder."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process
