"""Lakes for tests: their configuration, what a topic has put into one, and what nobody should do to one."""

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import stafeta
from stafeta.config import Config
from stafeta.config.options import Archive as ArchiveOptions
from stafeta.config.options import Lake as LakeOptions
from stafeta.config.options import Pipeline
from stafeta.names import filters_of
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.archive import JOB, KEEPER
from stafeta.pipeline.jobs.archiving.retention import RetentionKeeper
from stafeta.pipeline.lake import Lake, Written, files
from stafeta.pipeline.lake.archived import ARCHIVED, known_in
from stafeta.pipeline.lake.tables import TABLES
from tests.brokers import BrokerProcess
from tests.pipeline.lakes import archive
from tests.pipeline.queries import address
from tests.waiting import PATIENCE

_DEAD = "the driver has died"


def config_of(
    broker: BrokerProcess, folder: Path, *, lake: str = "lake", namespace: str = "stafeta", **pipeline: object
) -> Config:
    options = {"broker": address(broker), "trigger": 0.0, "grace": 0.0} | pipeline
    return Config(
        archive=ArchiveOptions(every=0.0),
        lake=LakeOptions(warehouse=str(folder / lake), namespace=namespace),
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
        archive(self._spark, self._broker, self.lake, subscribe, end=stop)

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
            transaction.set_properties({ARCHIVED: json.dumps(known_in(table).archived | said)})


class Archiving:
    """The job with a checkpoint, to be run again and again."""

    def __init__(self, spark: SparkSession, config: Config, folder: Path) -> None:
        self.config = config
        self.lake = Lake(config.lake)
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self._keepers: list[threading.Thread] = []

    def run(self, **arguments: object) -> StreamingQuery:
        """Archives what is there, and ends."""
        query = self._start(once=True, **arguments)
        assert query.awaitTermination(PATIENCE), "the job does not end"
        return query

    def die(self, *, committed: bool) -> None:
        """Archives what is there, and fails with the first micro-batch: before it is committed, or just after."""
        context = Context(self._spark, self.config, "archive", str(self.checkpoint), once=True)
        context.__dict__["lake"] = _DyingLake(self.config.lake, committed)
        (query,) = JOB.start(context)
        with suppress(StreamingQueryException):
            assert query.awaitTermination(PATIENCE), "the job does not end"
        error = query.exception()
        assert error is None or _DEAD in str(error), error

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self._start(once=False)
        try:
            yield query
        finally:
            query.stop()

    def acknowledge(self) -> None:
        """What the job does when it has run, if it can: lets the broker go of what is in the lake."""
        pipeline, now = self.config.pipeline, time.time()
        filters, notes = filters_of(pipeline.subscribe), str(self.checkpoint / "keeper")
        keeper = RetentionKeeper(self.lake, pipeline.broker, filters, pipeline.grace, notes)
        keeper.look(now)
        with stafeta.connect(pipeline.broker, timeout=PATIENCE) as broker:
            keeper.acknowledge(broker, now)

    def forget_last_commit(self) -> None:
        """As if the driver had died just before it noted that the last micro-batch is done."""
        (commits,) = self.checkpoint.glob("*/commits")
        last = max((one for one in commits.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name))
        for one in (last, commits / f".{last.name}.crc"):
            one.unlink(missing_ok=True)

    def lose_checkpoint(self) -> None:
        """Removes it, when nobody writes to it any more: the keeper does a little longer than the query."""
        for keeper in self._keepers:
            keeper.join(PATIENCE)
        shutil.rmtree(self.checkpoint)

    def _start(self, *, once: bool, **arguments: object) -> StreamingQuery:
        context = Context(self._spark, self.config, "archive", str(self.checkpoint), once, arguments)
        others = {*threading.enumerate()}
        (query,) = JOB.start(context)
        self._keepers += [one for one in threading.enumerate() if one.name == KEEPER and one not in others]
        return query


class _DyingLake(Lake):
    def __init__(self, settings: LakeOptions, committed: bool) -> None:
        super().__init__(settings)
        self._is_committed = committed

    def archive_files(self, *arguments: Any, **named: Any) -> Written:
        if self._is_committed:
            super().archive_files(*arguments, **named)
        raise RuntimeError(_DEAD)


def copied(source: Path, target: Path) -> None:
    """Copies a catalog over another, or to a new file, whoever has them open."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)
