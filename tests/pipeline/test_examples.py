"""The examples run as they stand, against a broker as it is when nothing is configured."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from tests.brokers import BrokerProcess
from tests.pipeline.processes import Family
from tests.pipeline.sessions import ROOT, settings

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """Its address. It keeps what subscriptions wait for, and nothing else."""
    with BrokerProcess(tmp_path / "data", doors=("flight",)) as process:
        host, port = process.door("flight")
        yield f"grpc://{host}:{port}"


def output(example: str, broker: str, folder: Path) -> list[str]:
    """What an example prints, line by line. Its Spark is as small as that of the other tests."""
    (folder / "spark").mkdir(exist_ok=True)
    defaults = (f"{name} {value}\n" for name, value in settings(folder / "spark").items())
    (folder / "spark-defaults.conf").write_text("".join(defaults))
    with Family() as family:
        environment = family.environment() | {
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(folder / "spark"),
        }
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / example, "--broker", broker],
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_batch_example_reads_asks_and_writes(broker: str, tmp_path: Path) -> None:
    lines = output("spark_batch.py", broker, tmp_path)
    assert lines[0] == "Published 4,320 readings."
    assert "Before six it was colder than 6 degrees on the roof in 30 minutes." in lines
    assert [line for line in lines if "    1440|" in line] == [
        "|example/hall|    1440|19.0695|",
        "| example/lab|    1440|22.0110|",
        "|example/roof|    1440| 8.0198|",
    ]
    assert "|example/lab|   6|  22.44|  26.01|" in lines
    assert lines[-1] == 'Wrote 72 averages, first {"topic":"example/hall","hour":0,"average":19.07}'
    assert nobody_waits(broker)


def test_the_streaming_example_counts_each_reading_once(broker: str, tmp_path: Path) -> None:
    lines = output("spark_streaming.py", broker, tmp_path)
    parts = [line.partition(", up to") for line in lines if "micro-batch" in line]
    assert [(rows, rest[rest.index("lag") :]) for rows, _, rest in parts] == [
        ("  micro-batch 0: 0 rows", "lag 0"),
        ("  micro-batch 1: 250 rows", "lag 350"),
        ("  micro-batch 2: 250 rows", "lag 100"),
        ("  micro-batch 3: 100 rows", "lag 0"),
        ("  micro-batch 4: 0 rows", "lag 0"),
        ("  micro-batch 4: 20 rows", "lag 0"),
    ]
    assert parts[-1][2].startswith(" {'example/stream/hall': 311, 'example/stream/lab': 311}")
    assert [line for line in lines if " has " in line] == [
        f"  example/averages has {count} messages." for count in (0, 6, 6, 8)
    ]
    assert sorted(lines[-2:]) == [
        '{"topic":"example/stream/hall","readings":310,"average":19.2}',
        '{"topic":"example/stream/lab","readings":310,"average":22.2}',
    ]
    assert nobody_waits(broker)


def nobody_waits(broker: str) -> bool:
    """Whether the example has ended the subscriptions that it has made."""
    with stafeta.connect(broker) as connection:
        return not any(topic.subscribers for topic in connection.topics())
