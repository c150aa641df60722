"""The configuration of the pipeline that is soaked, and the commands that run it."""

import json
import sys
from pathlib import Path

from tests.pipeline.pipeline_soak_evidence import HIGH, SILENT, SIZE
from tests.pipeline.pipeline_soak_sensors import LIMIT, ORDERS, SCHEMA
from tests.pipeline.sessions import JVM

JOBS = ("archive", "rollup", "alerts", "deadletter")

# What is archived goes from the log soon, so that collection takes part. Readings get their time from the broker, in
# which all topics go side by side: none is late.
_SETTINGS = """
[lake]
warehouse = "{folder}/lake"

[pipeline]
broker = "{broker}"
checkpoints = "{folder}/checkpoints"
trigger = "500ms"
grace = "5s"

[archive]
every = "500ms"

[rollup]
sizes = ["{size}"]
delay = "5s"

[alerts]
rules = "{folder}/alerts.toml"

[deadletter]
schemas = "{folder}/schemas.toml"
"""
_ALERTS = """
[[rule]]
name = "{high}"
topics = "plant/+/+"
above = {limit}

[[rule]]
name = "{silent}"
topics = "plant/+/+"
silent_for = "30s"
"""
_SCHEMAS = """
[[schema]]
topics = "{orders}"
file = "{folder}/order.schema.json"
"""


def write_settings(folder: Path, broker: str) -> Path:
    """Writes the files; returns that of the configuration."""
    (folder / "alerts.toml").write_text(_ALERTS.format(high=HIGH, silent=SILENT, limit=LIMIT))
    (folder / "order.schema.json").write_text(json.dumps(SCHEMA))
    (folder / "schemas.toml").write_text(_SCHEMAS.format(orders=ORDERS, folder=folder))
    file = folder / "stafeta.toml"
    file.write_text(_SETTINGS.format(folder=folder, broker=broker, size=SIZE))
    return file


def command(folder: Path, file: Path, *words: str) -> list[str]:
    """`stafeta pipeline run …`, with a Spark that starts quickly and keeps to the folder."""
    place = folder / "spark"
    place.mkdir(exist_ok=True)
    settings = {
        "spark.driver.extraJavaOptions": JVM.format(folder=place),
        "spark.driver.memory": "1g",
        "spark.local.dir": str(place / "local"),
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    run = [sys.executable, "-m", "stafeta", "pipeline", "run", *words]
    return [*run, "--config", str(file), "--master", "local[2]", *conf]
