"""Readings of many rooms, the jobs that read them, wherever those run, and what has to come of it.

1. Each room has a reading a second for three minutes, and one more half a minute later, which closes their windows. One
   reading is hot.
2. The jobs are run as a person runs them: as commands, once.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from stafeta.config import load
from stafeta.pipeline import Lake
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect

ROOMS = 70  # so many that a micro-batch has several tasks
JOBS = ("archive", "rollup", "alerts")
_MINUTES = 3
_HOT = 100  # which of the readings
READINGS = 60 * _MINUTES + 1
_PATIENCE = 800.0
_SCHEMAS = "[[schema]]\ntopics = 'rooms/#'\ninline = {maximum = 30}\n"
_RULES = '[[rule]]\nname = "hot"\ntopics = "rooms/#"\nabove = 30\n'


class Rooms:
    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.topics = [f"rooms/{number:02}/temperature" for number in range(ROOMS)]
        self._broker = broker
        self._folder = folder
        self._config = folder / "stafeta.toml"
        self.errors = ""
        (folder / "alerts.toml").write_text(_RULES)
        (folder / "schemas.toml").write_text(_SCHEMAS)
        sections: dict[str, dict[str, object]] = {
            "lake": {"warehouse": str(folder / "lake")},
            "pipeline": {"broker": address(broker)},
            "rollup": {"sizes": ["1m"], "delay": "10s"},
            "alerts": {"rules": str(folder / "alerts.toml")},
            "deadletter": {"schemas": str(folder / "schemas.toml")},
        }
        self._config.write_text(
            "".join(
                f"[{section}]\n"
                + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
                for section, options in sections.items()
            )
        )

    def publish(self) -> None:
        begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
        seconds = [*range(60 * _MINUTES), 60 * _MINUTES + 30]
        values = [35.5 if second == _HOT else 20 + second % 10 / 10 for second in seconds]
        data = pa.table(
            {
                "payload": [str(value) for value in values],
                "timestamp": pa.array([begin + timedelta(seconds=second) for second in seconds]),
            }
        )
        with connect(self._broker) as connection:
            for topic in self.topics:
                connection.publish(topic, data, kind="float")

    def run(self, *words: str, environment: Mapping[str, str], where: Sequence[str]) -> str:
        """What `stafeta` prints; it has to be content. `errors` is what it has written beside it."""
        done = subprocess.run(
            [sys.executable, "-m", "stafeta", *words, "--config", str(self._config), *where],
            env=dict(environment),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.errors = done.stderr
        return done.stdout

    def check(self) -> None:
        """Each reading is in the lake once, each window in lake and topic once, and each alert in its topic."""
        lake = Lake(load(str(self._config)).lake)
        messages = lake.table("messages").scan(selected_fields=("topic", "offset", "payload")).to_arrow()
        found = Counter(
            (row["topic"], row["offset"]) for row in messages.to_pylist() if row["topic"].startswith("rooms/")
        )
        assert found == Counter((topic, offset) for topic in self.topics for offset in range(1, READINGS + 1))

        stored = lake.table("rollups").scan(selected_fields=("topic", "size", "count")).to_arrow().to_pylist()
        windows = Counter((row["topic"], row["size"], row["count"]) for row in stored)
        # The last one has one reading, and closes since it is over.
        assert windows == {
            (topic, "1m", count): times for topic in self.topics for count, times in ((60, _MINUTES), (1, 1))
        }
        told = [(said["topic"], said["count"], said["max"]) for said in self._told("rollup/1m/#")]
        cool, hot = 20.9, 35.5
        assert Counter(told) == Counter(
            (topic, count, top)
            for topic in self.topics
            for count, top in ((60, cool), (60, hot), (60, cool), (1, 20.0))
        )

        alerts = [(said["topic"], said["state"], said["value"]) for said in self._told("alerts/#")]
        states = (("raised", 35.5), ("cleared", 20.1))
        assert Counter(alerts) == Counter((topic, *state) for topic in self.topics for state in states)

    def check_dead(self) -> None:
        """Each hot reading is dead once, in the lake and in its topic."""
        dead = Lake(load(str(self._config)).lake).table("dead").scan(selected_fields=("topic", "offset"))
        found = Counter((row["topic"], row["offset"]) for row in dead.to_arrow().to_pylist())
        assert found == Counter((topic, _HOT + 1) for topic in self.topics)
        assert Counter((said["topic"], said["offset"]) for said in self._told("dead/#")) == found

    def check_copies(self, prefix: str) -> None:
        """Each reading is in the copy of its topic once, in its order."""
        with connect(self._broker) as connection:
            for topic in self.topics:
                one, other = (
                    connection.read(name).column("payload") for name in (topic, f"{prefix}/{topic}")
                )
                assert one == other, topic

    def _told(self, filter_: str) -> list[dict[str, object]]:
        with connect(self._broker) as connection:
            return [json.loads(one.as_py()) for one in connection.read(filter_).column("payload")]
