"""Topics become a streaming table: each run adds what has come since the run before."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
BROKER = str(spark.conf.get("spark.stafeta.broker"))


@dp.table
def readings() -> DataFrame:
    return (
        spark.readStream.format("stafeta")
        .option("broker", BROKER)
        .option("subscribe", "example/+")
        .option("startingOffsets", "earliest")
        .option("decode", "true")
        .option("columns", "topic,offset,timestamp,number")
        .load()
    )
