"""`stafeta put`, from shell to shell."""

import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.brokers import Broker, environment
from benchmarks.frames import Subs
from benchmarks.load import Load, pace
from benchmarks.percentiles import median
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import Setting

SOON = Bar("median_s", "<", 0.25, " s")


def run(setting: Setting) -> list[Table]:
    times = setting.sized(20, 3)
    script = Path(sys.executable).with_name("stafeta")
    stafeta = [str(script)] if script.exists() else [sys.executable, "-m", "stafeta"]
    commands = {
        "stafeta put news hello": [*stafeta, "put", "news", "hello"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    took: dict[str, list[float]] = {label: [] for label in commands}
    with Broker(setting.folder / "data") as broker, Load() as load:
        load.run(pace, broker.address, Subs(1, "keeper", "news"))
        surroundings = environment() | {
            "STAFETA_BROKER": broker.address,
            "STAFETA_STATE": str(setting.folder / "state"),
        }
        for number in range(times + 1):
            for label, command in commands.items():
                start = perf_counter()
                subprocess.run(command, env=surroundings, stdout=subprocess.DEVNULL, check=True)
                if number:  # the first compiles what was not yet
                    took[label].append(perf_counter() - start)
    rows = tuple(
        Row(
            {"command": label, "median_s": median(seconds), "slowest_s": max(seconds)},
            (SOON,) if label.startswith("stafeta") else (),
        )
        for label, seconds in took.items()
    )
    return [
        Table(
            "A command, from shell to shell",
            f"{times} times, in turn with Python that does nothing.",
            (
                Column("command", "command"),
                Column("median_s", "median s", 3),
                Column("slowest_s", "slowest s", 3),
            ),
            rows,
        )
    ]
