"""Rows of the table become messages of a topic, each of them once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
BROKER = str(spark.conf.get("spark.stafeta.broker"))

dp.create_sink("warm", "stafeta", {"broker": BROKER, "topic": "warm", "kind": "json"})


@dp.append_flow(target="warm")
def warm_readings() -> DataFrame:
    readings = spark.readStream.table("readings").where("number > 20")
    return readings.select(f.to_json(f.struct("topic", "offset", "number")).alias("payload"))
