"""Lakes for tests: their configuration, what a topic has put into one, and what nobody should do to one."""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stafeta.config import Config
from stafeta.config.options import Archive as ArchiveOptions
from stafeta.config.options import Lake as LakeOptions
from stafeta.config.options import Pipeline
from stafeta.pipeline.lake import Lake, files
from stafeta.pipeline.lake.lake import ARCHIVED, archived_in
from stafeta.pipeline.lake.tables import TABLES
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, read

COLUMNS = ",".join(TABLES["messages"].names)


def config_of(broker: BrokerProcess, folder: Path, **pipeline: object) -> Config:
    options = {"broker": address(broker), "trigger": 0.0, "grace": 0.0} | pipeline
    return Config(
        archive=ArchiveOptions(every=0.0),
        lake=LakeOptions(warehouse=str(folder / "lake")),
        pipeline=Pipeline(**options),  # type: ignore[arg-type]
    )


class Archive:
    """The table `messages` of a lake, without the job that fills it."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, config: Config) -> None:
        self.lake = Lake(config.lake)
        self._spark = spark
        self._broker = broker

    def take(self, subscribe: str, stop: int | None = None) -> None:
        """Archives these topics, or their messages below an offset, as the job archive would."""
        rows = read(self._spark, self._broker, subscribe, columns=COLUMNS)
        self.lake.archive(rows if stop is None else rows.where(rows["offset"] < stop), "tests", 0)

    def rows(self) -> DataFrame:
        return self.lake.frame(self._spark, "messages")

    # --- behind everybody's back

    def replace(self, rows: DataFrame) -> None:
        """Puts other rows in the place of all. The files of those are still there to be read."""
        table = self.lake.table("messages")
        table.delete()
        table.add_files(files.write(rows, TABLES["messages"], table.location()))

    def say(self, **said: list[tuple[int, int]]) -> None:
        """Lets the lake say that it has these offsets of topics."""
        table = self.lake.table("messages")
        with table.transaction() as transaction:
            transaction.set_properties({ARCHIVED: json.dumps(archived_in(table) | said)})
