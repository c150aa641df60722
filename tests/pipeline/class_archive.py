"""Makes the archive of Spark's classes that the JVMs of the tests start with.

python -m tests.pipeline.class_archive

Half of what a JVM does until Spark answers is finding, reading and verifying some 17,000 classes. One that is given an
archive of them (class data sharing) takes 5 s instead of 10 s, and half of the processor. It is made once, from a
session that does a little of everything, and belongs to the environment that Spark is installed in. A JVM whose Java or
classpath is another ignores it.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stafeta.errors import JavaMissing
from stafeta.pipeline.java import check_java
from stafeta.pipeline.session import SETTINGS
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, read, write
from tests.pipeline.sessions import ARCHIVE, PLAIN_JVM, session


def make() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = folder / "classes.jsa"
        plugin = {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        }
        jvm = f"{PLAIN_JVM.format(folder=folder)} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        more = SETTINGS | plugin | {"spark.driver.extraJavaOptions": jvm}
        with session("local[2]", folder / "spark", more) as spark:
            _do_a_little_of_everything(spark, folder)
        shutil.move(made, ARCHIVE.with_suffix(".part"))
        ARCHIVE.with_suffix(".part").rename(ARCHIVE)


def _do_a_little_of_everything(spark: SparkSession, folder: Path) -> None:
    spark.range(100).selectExpr("id", "id % 3 AS rest", "cast(id AS string) AS text").createOrReplaceTempView(
        "some"
    )
    spark.sql(
        "SELECT rest, count(*), avg(id), max(text), percentile_approx(id, 0.5) FROM some "
        "JOIN some AS more USING (id, rest, text) WHERE text LIKE '%1%' GROUP BY rest ORDER BY rest"
    ).collect()
    spark.table("some").write.parquet(str(folder / "parquet"))
    spark.read.parquet(str(folder / "parquet")).mapInArrow(_same, "id long").toArrow()
    with BrokerProcess(folder / "data", "--set", 'topics."#".keep=36500d', doors=("flight",)) as broker:
        with connect(broker) as connection:
            connection.publish("a", ["1", "2"], kind="int")
        write(read(spark, broker, "a", decode=True).where("offset > 1").select("payload"), broker, topic="b")
        rows = spark.readStream.format("stafeta").options(broker=address(broker), subscribe="a").load()
        windows = rows.withWatermark("timestamp", "1 second").groupBy("topic", "timestamp").count()
        for query in (
            rows.select("payload").writeStream.format("stafeta").options(broker=address(broker), topic="c"),
            windows.writeStream.foreachBatch(_take),
        ):
            query.option("checkpointLocation", str(folder / str(id(query)))).trigger(
                availableNow=True
            ).start().awaitTermination()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["id"])


def _take(batch: DataFrame, number: int) -> None:
    batch.collect()


if __name__ == "__main__":
    try:
        check_java()
    except JavaMissing as error:
        print(f"{error} Tests with Spark fail.", file=sys.stderr)
    else:
        make()
