"""The example of Spark Declarative Pipelines on a broker of a test: how it is run, and what has to come of it."""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from tests.brokers import BrokerProcess
from tests.pipeline.processes import Family
from tests.pipeline.queries import address, connect, payloads
from tests.pipeline.sessions import JVM, ROOT, environment

_ROOMS = ("hall", "lab")
_PATIENCE = 400.0


class Example:
    """A copy of the example. All that its runs keep is in the folder `kept` in it, unless the tables are elsewhere."""

    def __init__(self, broker: BrokerProcess, folder: Path, tables: Path | None = None) -> None:
        self._broker = broker
        self._folder = folder
        self._tables = tables or folder / "kept" / "tables"
        shutil.copytree(ROOT / "examples" / "declarative", folder)
        changes = {
            "/tmp/stafeta-declarative": str(folder / "kept"),
            "grpc://127.0.0.1:8815": address(broker),
            "-Dderby": f"{JVM.format(folder=folder)} -Dderby",
        }
        for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
            text = (folder / name).read_text()
            for before, after in changes.items():
                text = text.replace(before, after)
            (folder / name).write_text(text)

    def run(self, *words: str, more: Mapping[str, str]) -> str:
        """What a run prints, as a person starts it in the folder of the example; `more` is for its environment."""
        with Family() as family:
            done = subprocess.run(
                [Path(sys.executable).with_name("spark-pipelines"), "run", *words],
                cwd=self._folder,
                env=family.environment() | environment() | dict(more),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def publish(self, first: int, last: int) -> None:
        """Readings of each room, both ends included: the n-th is n."""
        with connect(self._broker) as connection:
            for room in _ROOMS:
                numbers = [str(number) for number in range(first, last + 1)]
                connection.publish(f"example/{room}", numbers, kind="int")

    def check(self, last: int) -> None:
        """Each reading up to there is once in the table, the warm ones are once in the topic, and all in the view."""
        everything = [(f"example/{room}", number) for room in _ROOMS for number in range(1, last + 1)]
        table = Counter((row["topic"], row["offset"]) for row in self._rows("readings"))
        assert table == Counter(everything)
        assert Counter(payloads(self._broker, "warm")) == Counter(
            f'{{"topic":"{topic}","offset":{number},"number":{number}.0}}'
            for topic, number in everything
            if number > 20
        )
        averages = [tuple(row.values()) for row in self._rows("averages")]
        assert sorted(averages) == [(f"example/{room}", last, (last + 1) / 2) for room in _ROOMS]

    def _rows(self, table: str) -> list[dict[str, object]]:
        found = [pq.read_table(path).to_pylist() for path in (self._tables / table).glob("*.parquet")]
        return [row for rows in found for row in rows]
