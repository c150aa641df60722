"""Work in a Spark session with the settings of the pipeline, in a process of its own that begins cold.

1. Each round is a new process, with a new JVM: what a job's user has who starts it. Ways take turns.
2. Within a round the work is done twice, each time on a new folder: at first cold, then warm.
3. CPU seconds are those of the broker, of the JVM, and of Python: the driver and the workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks.load import Load, LoadFailed
from benchmarks.setting import Setting
from benchmarks.spark_session import MASTER, MEMORY, QUICK_JAVA, driver
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSES = ("cold", "warm")
ROUNDS = (1, 1)  # in earnest, and only to see that it works: one takes minutes


class Cpu(NamedTuple):
    """Seconds."""

    broker: float
    jvm: float
    python: float

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(*(now - then for now, then in zip(self, before, strict=True)))


class Measured(NamedTuple):
    seconds: float
    cpu: Cpu


class Meter:
    """Measures what is done within it."""

    def __init__(self, spark: "SparkSession", broker: int | None) -> None:
        self.measured: list[Measured] = []
        self._jvm = psutil.Process(driver(spark))
        self._broker = psutil.Process(broker) if broker else None
        self._before = Cpu(0, 0, 0)
        self._start = 0.0

    def __enter__(self) -> None:
        self._before = self._cpu()
        self._start = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = perf_counter() - self._start
        self.measured.append(Measured(took, self._cpu().since(self._before)))

    def _cpu(self) -> Cpu:
        jvm = self._jvm.cpu_times()
        # Workers that have ended count for whoever has waited for them.
        python = jvm.children_user + jvm.children_system + processor_time(psutil.Process())
        for process in self._jvm.children(recursive=True):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            python += times.user + times.system + times.children_user + times.children_system
        return Cpu(processor_time(self._broker) if self._broker else 0.0, jvm.user + jvm.system, python)


Work = Callable[["SparkSession", Meter, Path], None]
"""Does something with a session and a new folder, the part of it that counts within the meter."""


def take_turns(
    setting: Setting, config: Config, broker: int, ways: Mapping[str, Work]
) -> dict[str, dict[str, Measured]]:
    """For each way the round in the middle: its passes, cold and warm."""
    rounds: dict[str, list[list[Measured]]] = {label: [] for label in ways}
    count = setting.sized(*ROUNDS)
    for number in range(count):
        for label, work in ways.items():
            setting.say(f"round {number + 1} of {count}, {label}")
            rounds[label].append(in_spark(setting, config, work, broker=broker))
    found = {}
    for label, measures in rounds.items():
        passes = {name: [each[place] for each in measures] for place, name in enumerate(PASSES)}
        found[label] = {name: _middle(each) for name, each in passes.items()}
    return found


def in_spark(
    setting: Setting, config: Config, work: Work, *, broker: int | None = None, passes: int = len(PASSES)
) -> list[Measured]:
    """Has the work done in a new process, in so many passes."""
    with Load() as load, TemporaryDirectory(dir=setting.folder) as place:
        return load.run(_work, config, setting.quick, Path(place), work, broker, passes)


def _work(
    config: Config, quick: bool, place: Path, work: Work, broker: int | None, passes: int
) -> list[Measured]:
    with spark_of(config, quick, place) as spark:
        meter = Meter(spark, broker)
        for number in range(passes):
            folder = place / str(number)
            folder.mkdir()
            work(spark, meter, folder)
        return meter.measured


@contextmanager
def spark_of(config: Config, quick: bool, place: Path) -> Iterator["SparkSession"]:
    """The session that jobs have."""
    from stafeta.pipeline.session import end, session

    spark = session(config, master=MASTER, settings=settings(quick, place))
    try:
        yield spark
    except Exception as error:  # noqa: BLE001 - it is told in words
        # What Spark's errors say is asked of the JVM, which is gone soon; and they cannot go to another process.
        raise LoadFailed(f"{type(error).__name__}: {error}") from None
    finally:
        end(spark)


def settings(quick: bool, place: Path) -> dict[str, str]:
    """What differs from what jobs have by default."""
    return {
        "spark.driver.memory": MEMORY[quick],
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={place}{' ' + QUICK_JAVA if quick else ''}",
        "spark.local.dir": str(place),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }


def about(setting: Setting) -> str:
    """For the notes: how it was measured."""
    from importlib.metadata import version

    rounds, memory = setting.sized(*ROUNDS), MEMORY[setting.quick]
    told = "One round" if rounds == 1 else f"The round in the middle of {rounds}"
    return (
        f"{told}, all ways in turn; each in a new process with a new JVM, in which the "
        f"same is done twice: cold and warm. Spark {version('pyspark')}, {MASTER}, spark.driver.memory={memory}, and "
        "otherwise the settings that jobs have."
    )


def _middle(measures: Iterable[Measured]) -> Measured:
    ordered = sorted(measures)
    return ordered[(len(ordered) - 1) // 2]


def processor_time(process: psutil.Process) -> float:
    """The seconds that a process has used, itself."""
    times = process.cpu_times()
    return float(times.user + times.system)
