"""Jobs of the pipeline as the benchmarks run them: on a folder of their own, until they have read what there is."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import stafeta
from benchmarks.brokers import Broker
from stafeta.config import Config
from stafeta.names import FLIGHT_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stafeta.pipeline.lake import Lake


def configured(broker: Broker, folder: Path) -> Config:
    """A configuration as it is by default, for this broker and with the lake in this folder."""
    config = Config()
    return moved(replace(config, pipeline=replace(config.pipeline, broker=broker.flight)), folder)


def moved(config: Config, folder: Path) -> Config:
    """The same with its lake and its checkpoints in another folder."""
    pipeline = replace(config.pipeline, checkpoints=str(folder / "checkpoints"))
    return replace(config, lake=replace(config.lake, warehouse=str(folder / "lake")), pipeline=pipeline)


def finish(spark: "SparkSession", config: Config, name: str, **arguments: object) -> None:
    """Runs a job to the end of what there is."""
    from stafeta.pipeline.job import Context
    from stafeta.pipeline.jobs import find

    checkpoint = f"{config.pipeline.checkpoints}/{name}"
    context = Context(spark, config, name, checkpoint, once=True, arguments=arguments)
    for query in find(name).start(context):
        query.awaitTermination()


def forget(config: Config, name: str) -> None:
    """Has the broker forget how far a job has come, so that it begins anew."""
    begin = f"{FLIGHT_PREFIX}pipeline/{name}"
    with stafeta.connect(config.pipeline.broker) as broker:
        for one in broker.subscriptions():
            if f"{one.client}/".startswith(f"{begin}/"):
                broker.unsubscribe(one.filter, name=one.client.removeprefix(FLIGHT_PREFIX))


def lake_of(config: Config) -> "Lake":
    from stafeta.pipeline.lake import Lake

    return Lake(config.lake)


def rows_in(lake: "Lake", table: str) -> int:
    """How many rows a table has, as its manifests say."""
    return sum(task.file.record_count for task in lake.table(table).scan().plan_files())
