"""How soon 2,000,000 readings are asked and audited, from shell to shell, with a pipeline that runs and without."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import NamedTuple

import psutil

from benchmarks import bulk
from benchmarks.brokers import Broker, environment
from benchmarks.load import Load, LoadFailed
from benchmarks.percentiles import median
from benchmarks.pipeline_jobs import configured, lake_of, rows_in
from benchmarks.pipeline_latency import Case, running
from benchmarks.pipeline_load import READINGS, TOPICS, write_readings
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import Setting

SELECT_1 = "SELECT 1"
COUNT = "SELECT count(*) FROM messages"
NEWEST = "SELECT topic, max(offset), max(timestamp) FROM messages GROUP BY topic ORDER BY topic"
LATEST = f"SELECT text FROM messages WHERE topic = '{READINGS}/00' ORDER BY offset DESC LIMIT 1"
SQL, AUDIT = "stafeta sql", "stafeta pipeline run audit"
BESIDE, ALONE = "a pipeline", "nothing"
ARCHIVE = Case("1s", "1s")
SETTLED = (75.0, 5.0)  # seconds after which a pipeline that has nothing to do is warmed up for questions
PATIENCE = 300.0
_IDLE = 0.2  # of a processor, and so many seconds in which a pipeline takes no more
_LOOK = 3.0


class Question(NamedTuple):
    command: str
    what: str
    bar: float | None = None  # seconds


ASKED = (
    Question(SQL, SELECT_1),
    Question(SQL, COUNT, 1.0),
    Question(SQL, NEWEST),
    Question(SQL, LATEST),
    Question(AUDIT, "", 10.0),
)
BY_ITSELF = (Question(SQL, SELECT_1, 8.0), Question(SQL, COUNT, 8.0))


def run(setting: Setting) -> list[Table]:
    total = setting.total or setting.sized(2_000_000, 20_000)
    rows: list[Row] = []
    with (
        TemporaryDirectory(dir=setting.folder) as folder,
        Broker(Path(folder) / "data", "flight") as broker,
        Load() as load,
    ):
        place = Path(folder)
        load.run(bulk.keep, broker.flight, f"{READINGS}/#")
        setting.say(f"storing {total:,} readings")
        load.run(write_readings, broker.flight, total)
        ask = partial(_asked, place, broker.flight, total)
        with running(place, broker.flight, ARCHIVE, ("archive", "rollup")) as process:
            setting.say("archiving them")
            _settle(process, partial(rows_in, lake_of(configured(broker, place)), "messages"), total, setting)
            rows += _rows(setting, ASKED, BESIDE, ask)
        ask(BY_ITSELF[0], [])  # archives classes where none are
        ask(BY_ITSELF[1], [])
        rows += _rows(setting, BY_ITSELF, ALONE, ask)
    return [
        Table(
            f"Commands over {total:,} readings of {TOPICS} topics, from shell to shell",
            "All of them are in the lake, and still in the log. Beside a pipeline of archive and rollup, which has "
            "done all there was to do and answers them, or a Spark of their own, with an archive of its classes. The "
            f"first time and the one in the middle of {setting.sized(*_TIMES)} that follow.",
            (
                Column("command", "command"),
                Column("what", "what"),
                Column("beside", "beside"),
                Column("first", "first s", 2),
                Column("seconds", "s", 2),
            ),
            tuple(rows),
            labels=3,
        )
    ]


_TIMES = (3, 1)


def _rows(
    setting: Setting, asked: Sequence[Question], beside: str, ask: "Callable[[Question, list[float]], None]"
) -> Iterator[Row]:
    for question in asked:
        setting.say(f"{question.command} {question.what}, beside {beside}")
        took: list[float] = []
        for _ in range(1 + setting.sized(*_TIMES)):
            ask(question, took)
        values: dict[str, Value] = {"command": question.command, "what": question.what, "beside": beside}
        values |= {"first": took[0], "seconds": median(took[1:])}
        yield Row(values, (Bar("seconds", "≤", question.bar, " s"),) if question.bar else ())


def _asked(place: Path, broker: str, total: int, question: Question, took: list[float]) -> None:
    command = [sys.executable, "-m", *question.command.split(), *filter(None, [question.what])]
    command += ["--json", "--config", str(place / "stafeta.toml"), "--broker", broker]
    start = perf_counter()
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    took.append(perf_counter() - start)
    expected = {COUNT: f'{{"count(1)":{total}}}', SELECT_1: '{"1":1}'}.get(question.what, "")
    if done.returncode or not done.stdout or expected not in done.stdout:
        raise LoadFailed(f"{' '.join(command)} ends with {done.returncode}: {done.stdout}{done.stderr}")


def _settle(process: psutil.Process, archived: "Callable[[], int]", total: int, setting: Setting) -> None:
    """Waits until a pipeline has done all that there was to do, and has warmed itself up."""
    begin = monotonic()
    while monotonic() < begin + PATIENCE:
        before = _processor(process)
        sleep(_LOOK)
        if (
            _processor(process) - before < _IDLE * _LOOK
            and monotonic() > begin + setting.sized(*SETTLED)
            and archived() >= total
        ):
            return
    raise LoadFailed("The pipeline does not come to an end with what there is.")


def _processor(process: psutil.Process) -> float:
    """Seconds that it and all below it have taken."""
    taken = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        taken += times.user + times.system
    return taken
