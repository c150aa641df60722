"""Topics as Spark tables: read them, ask them, write to them. (docs/spark.md)

Needs `pip install 'stafeta[spark]'`, Java 17 or newer, and a broker: `stafeta serve`. Each `# %%` begins a cell of a
notebook; as a program it is run by `python examples/spark_batch.py --broker grpc://127.0.0.1:8815`.
"""

# %%
# Where the broker is.
import argparse
import os
import random
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import stafeta

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--broker", default="grpc://127.0.0.1:8815", help="where its Flight door is")
BROKER: str = parser.parse_known_args()[0].broker

# %%
# A day of readings from three rooms, one a minute, published as one Arrow table. A topic keeps what a subscription
# waits for: the one named "spark-batch" waits for these until the last cell.
MORNING = datetime(2026, 3, 1, tzinfo=UTC)
MEANS = {"hall": 19, "lab": 22, "roof": 8}
chance = random.Random(16)
rows = [(room, MORNING + timedelta(minutes=minute)) for minute in range(24 * 60) for room in MEANS]
topics, times = [f"example/{room}" for room, _ in rows], [time for _, time in rows]
values = [f"{chance.gauss(MEANS[room], 1.5):.2f}" for room, _ in rows]
table = pa.table({"topic": topics, "timestamp": times, "payload": values})
with stafeta.connect(BROKER) as broker:
    broker.subscribe("example/#", name="spark-batch").close()
    published = broker.publish(None, table, kind="float")
    print(f"Published {published.count:,} readings.")

# %%
# A session. Spark runs its workers with the python3 of the PATH, unless it is told of another.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local[2]").config("spark.sql.python.filterPushdown.enabled", "true")
builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %%
# The topics as a table. `decode` adds number, decimal and text; `columns` leaves out what is not needed.
source = spark.read.format("stafeta").options(broker=BROKER, subscribe="example/+", decode="true")
source = source.option("columns", "topic,offset,timestamp,number,decimal")
readings = source.load()
readings.orderBy("timestamp", "topic").show(3, truncate=False)

# %%
# Filters on topic, offset and timestamp reach the broker: the other topics are not read. Such a table is loaded for one
# query: Spark keeps what was pushed down for the next one that uses it, too.
cold = source.load().where("topic = 'example/roof' AND timestamp < '2026-03-01 06:00:00' AND number < 6")
print(f"Before six it was colder than 6 degrees on the roof in {cold.count()} minutes.")

# %%
# An average for each topic; of `decimal` it is exact.
average = f.avg("decimal").cast("decimal(8,4)").alias("average")
readings.groupBy("topic").agg(f.count("*").alias("readings"), average).orderBy("topic").show()

# %%
# The same table in SQL.
readings.createOrReplaceTempView("readings")
hourly = spark.sql("""
    SELECT topic, hour(timestamp) AS hour, round(avg(number), 2) AS average, max(number) AS highest
    FROM readings GROUP BY topic, hour(timestamp)
""")
hourly.orderBy(f.desc("average")).show(3)

# %%
# Back to a topic, as JSON. It is seen whole or not at all.
messages = hourly.orderBy("topic", "hour").select(
    f.to_json(f.struct("topic", "hour", "average")).alias("payload")
)
sink = messages.write.format("stafeta").mode("append")
sink.options(broker=BROKER, topic="example/rollups/hourly", kind="json").save()

# %%
# Any other client reads it. Then nobody waits for these messages any more.
with stafeta.connect(BROKER) as broker:
    written = broker.read("example/rollups/hourly", columns=["payload"]).column("payload")
    print(f"Wrote {len(written)} averages, first {written[0].as_py().decode()}")
    broker.unsubscribe("example/#", name="spark-batch")
spark.stop()
