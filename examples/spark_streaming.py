"""A topic of readings becomes a topic of averages, each reading counted once. (docs/spark.md)

Needs `pip install 'stafeta[spark]'`, Java 17 or newer, and a broker: `stafeta serve`. Each `# %%` begins a cell of a
notebook; as a program it is run by `python examples/spark_streaming.py --broker grpc://127.0.0.1:8815`.
"""

# %%
# Where the broker is.
import argparse
import json
import os
import sys
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import stafeta

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--broker", default="grpc://127.0.0.1:8815", help="where its Flight door is")
BROKER: str = parser.parse_known_args()[0].broker
IN, OUT = "example/stream/+", "example/averages"


def publish(count: int) -> None:
    """Publishes so many readings on each of two topics."""
    for room, mean in ("hall", 19), ("lab", 22):
        readings = [f"{mean + number % 5 / 10:.1f}" for number in range(count)]
        broker.publish(f"example/stream/{room}", readings, kind="float")
    print(f"Published {2 * count} readings.")


# %%
# A session. Spark runs its workers with the python3 of the PATH, unless it is told of another.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %%
# The average of each topic so far, as JSON. `durable` is the name of the subscription for which the broker holds the
# readings until the query has them in its checkpoint.
source = spark.readStream.format("stafeta").options(
    broker=BROKER, subscribe=IN, durable="averages", decode="true"
)
readings = source.option("columns", "topic,number").option("maxOffsetsPerTrigger", 250).load()
averages = readings.groupBy("topic").agg(
    f.count("*").alias("readings"), f.round(f.avg("number"), 3).alias("average")
)
messages = averages.select(f.to_json(f.struct("topic", "readings", "average")).alias("payload"))
checkpoint = TemporaryDirectory()


def run() -> None:
    """Takes what is there, as one would every hour, and tells how it went."""
    sink = messages.writeStream.format("stafeta").outputMode("complete").trigger(availableNow=True)
    sink = sink.options(broker=BROKER, topic=OUT, kind="json", checkpointLocation=checkpoint.name)
    query = sink.start()
    query.awaitTermination()
    for progress in query.recentProgress:
        taken = progress.sources[0]
        end, latest = json.loads(taken.endOffset or "{}"), json.loads(taken.latestOffset or "{}")
        offsets = {topic: end[topic] for topic in latest if topic in end}
        lag = sum(latest[topic] - offset for topic, offset in offsets.items())
        print(f"  micro-batch {progress.batchId}: {progress.numInputRows} rows, up to {offsets}, lag {lag}")
    print(f"  {OUT} has {broker.read(OUT).num_rows} messages.")


# %%
# The first run makes the subscription. What is published then is there for the second, which takes 250 readings at a
# time.
broker = stafeta.connect(BROKER)
broker.subscribe(OUT, name="spark-streaming").close()
run()
publish(300)
run()

# %%
# Nothing new: nothing comes again. Then only what is new comes, and the averages go on from the checkpoint.
run()
publish(10)
run()

# %%
# What others get. Then nobody waits for these messages any more.
for payload in broker.read(OUT, columns=["payload"]).column("payload"):
    print(payload.as_py().decode())
broker.unsubscribe(OUT, name="spark-streaming")
broker.unsubscribe(IN, name="averages")
broker.close()
spark.stop()
checkpoint.cleanup()
