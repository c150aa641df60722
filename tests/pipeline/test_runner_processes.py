"""`stafeta pipeline run` as a process: killed, started again, and told to leave."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stafeta.cli import exits
from tests.brokers import BrokerProcess
from tests.pipeline.processes import Family
from tests.pipeline.queries import address, connect, payloads
from tests.pipeline.sessions import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(400)]

PATIENCE = 150.0
FAHRENHEIT = "fahrenheit/upb/hall/temperature"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
SMALL = ("--master", "local[2]", *(f"--conf={name}={value}" for name, value in SETTINGS.items()))


@pytest.fixture
def family() -> Iterator[Family]:
    with Family() as one:
        yield one


def command(broker: BrokerProcess, folder: Path, *arguments: str) -> list[str]:
    options = (
        "--broker",
        address(broker),
        "--set",
        f"lake.warehouse={folder}",
        "--set",
        "pipeline.trigger=200ms",
    )
    return [sys.executable, "-m", "stafeta", "pipeline", *arguments, *options]


def started(
    family: Family, line: list[str], errors: Path, terminal: int | None = None
) -> "subprocess.Popen[bytes]":
    with errors.open("ab") as file:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file if terminal is None else terminal,
            env=family.environment(),
            start_new_session=True,
        )


def until(broker: BrokerProcess, errors: Path, counts: dict[str, int]) -> None:
    """Waits until topics have so many messages; where they do not, what the runner has said is told."""
    with connect(broker) as connection:

        def there() -> bool:
            found = {topic.topic: topic.next - 1 for topic in connection.topics()}
            return all(found.get(topic, 0) >= count for topic, count in counts.items())

        try:
            wait_until(there, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{errors.read_text()}") from None


def readings(broker: BrokerProcess, *numbers: float) -> None:
    with connect(broker) as connection:
        connection.publish("upb/hall/temperature", [str(number) for number in numbers], kind="float")


def test_a_users_jobs_outlive_a_kill_and_leave_each_row_once(
    broker: BrokerProcess, tmp_path: Path, family: Family
) -> None:
    errors, mine = tmp_path / "errors", str(ROOT / "examples" / "my_job.py")
    line = command(broker, tmp_path / "lake", "run", mine, *SMALL)
    readings(broker, 21.5, 31.5)
    process = started(family, line, errors)
    until(broker, errors, {"hot": 1, "counts": 1})
    process.kill()
    process.wait()
    wait_until(lambda: not family.members(), PATIENCE)  # neither the JVM nor a worker stays

    readings(broker, 10, 40)
    process = started(family, line, errors)
    until(broker, errors, {"hot": 2, FAHRENHEIT: 4, "counts": len(payloads(broker, "counts")) + 1})
    again = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, again.stdout) == (exits.USAGE, "")
    assert again.stderr.startswith("stafeta: The job 'hot' runs already, with the same checkpoints (process ")
    status = command(broker, tmp_path / "lake", "status")
    told = subprocess.run(status, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert [one.split()[:2] for one in told[1:]] == [
        [name, "running"] for name in ("counts", "fahrenheit", "hot")
    ]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == exits.OK
    assert not family.members()

    assert len(payloads(broker, "hot")) == 2
    assert payloads(broker, FAHRENHEIT) == ["70.70", "88.70", "50.00", "104.00"]
    assert sum(map(int, payloads(broker, "counts"))) == 4
    lines = errors.read_text().splitlines()
    assert lines[0] == "Starting Spark for hot, fahrenheit, counts."
    assert {one for one in lines if one.endswith("running.")} == {
        f"{name}: running." for name in ("hot", "fahrenheit", "counts")
    }
    assert next(one for one in lines if "stopped, " in one).endswith("micro-batches.")
    assert not [one for one in lines if "WARN" in one or "Traceback" in one], lines


SLOW = """\
import pathlib, time
from stafeta.pipeline import job

@job
def slow(context):
    def take(batch, number):
        pathlib.Path({path!r}).touch()
        time.sleep(600)

    return context.start(context.stream("upb/#").writeStream.foreachBatch(take))
"""


def test_on_a_terminal_jobs_are_seen_live_and_a_second_ctrl_c_ends_at_once(
    broker: BrokerProcess, tmp_path: Path, family: Family
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(SLOW.format(path=str(begun)))
    readings(broker, 1)
    ours, theirs = pty.openpty()
    line = command(broker, tmp_path / "lake", "run", str(tmp_path / "slow.py"), *SMALL)
    process = started(family, line, tmp_path / "errors", terminal=theirs)
    os.close(theirs)
    seen = bytearray()

    def shows(text: str) -> bool:
        with suppress(OSError):  # it has closed it
            os.set_blocking(ours, False)
            seen.extend(os.read(ours, 65536))
        return text.encode() in seen

    wait_until(lambda: shows("slow  running") and begun.exists(), PATIENCE)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    time.sleep(1.0)  # it waits for the micro-batch: nothing is to happen
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == exits.INTERRUPTED
    wait_until(lambda: not family.members(), PATIENCE)
    os.close(ours)
    assert b"\x1b[1F\x1b[J" in seen  # drawn again in its place
    assert b"Traceback" not in seen
