"""Lakes on one broker, and what is done to them: what each should have is worked out from sets of offsets."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.errors import DataLoss
from stafeta.pipeline import messages
from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.jobs.compact import compact
from stafeta.pipeline.lake import Lake, archived
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of, copied
from tests.pipeline.lakes import offsets
from tests.pipeline.queries import Seen, connect, seen
from tests.waiting import PATIENCE, wait_until

Offsets = dict[str, set[int]]
LAKES = (("lake", "stafeta"), ("lake", "other"), ("second", "stafeta"))  # folders and namespaces
TOPICS = ("a", "b/c,d")
MOST = 5  # steps with commits after which a copy of the catalog names metadata that is gone
FAR = 10**6  # days since 1970: every day is closed


@dataclass
class Saved:
    """A copy of a catalog, and what lakes whose tables it lists had noted as absent then."""

    path: Path
    absent: dict[int, Offsets]
    commits: int = 0
    """Since then, about: a table keeps the metadata of the last twenty."""


@dataclass
class Pipelines:
    """Three lakes of two warehouses, each archived to at times, whose archives share one folder of checkpoints."""

    spark: SparkSession
    broker: BrokerProcess
    folder: Path
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    absent: dict[int, Offsets] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)
    was_put_back: set[int] = field(default_factory=set)
    copies: int = 0
    losses: int = 0
    """How often the archive asked whether to go on."""

    # --- steps

    def publish(self, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        first = self.sent[topic] + 1
        with connect(self.broker) as connection:
            connection.publish(topic, [f"{topic}:{one}" for one in range(first, first + 3 + number)])
        self.sent[topic] += 3 + number

    def archive(self, number: int) -> None:
        """Runs the job. It asks whether to go on exactly if something is nowhere that was there once."""
        self._commits(number)
        archiving = Archiving(self.spark, self._config(number), self.folder)
        lost = self._nowhere(number)
        if lost:
            assert number in self.was_put_back, lost  # nothing else loses anything
            with pytest.raises(DataLoss, match="Neither the lake nor the log has message"):
                archiving.run()
            self.losses += 1
        gone = self._gone(number)
        archiving.run(accept_loss=bool(lost))
        for topic in TOPICS:
            known = self.absent.setdefault(number, {})
            known[topic] = known.get(topic, set()) | lost.get(topic, set()) | gone.get(topic, set())
        self.settle()
        archiving.acknowledge()
        there = self._there(number)
        for topic in TOPICS:
            absent = self.absent[number].get(topic, set())
            assert there.get(topic, set()) == self._sent(topic) - absent, (topic, absent)

    def compact(self, number: int) -> None:
        lake = self._lake(number)
        if lake.has("messages"):
            self._commits(number)
            compact(lake, "messages", size=1 << 20, keep=86_400.0, until=FAR)

    def save(self, number: int) -> None:
        """Copies a catalog away."""
        warehouse, _ = LAKES[number]
        catalog = self.folder / warehouse / "catalog.db"
        if catalog.exists():
            self.copies += 1
            path = self.folder / f"copy-{self.copies}.db"
            copied(catalog, path)
            absent = {
                one: {topic: set(some) for topic, some in known.items()} for one, known in self.absent.items()
            }
            self.saved[warehouse] = Saved(path, absent)

    def put_back(self, number: int) -> None:
        """Puts a catalog back as it was, and nothing else."""
        warehouse, _ = LAKES[number]
        if (saved := self.saved.get(warehouse)) is None or saved.commits > MOST:
            return
        copied(saved.path, self.folder / warehouse / "catalog.db")
        for one, (place, _) in enumerate(LAKES):
            if place == warehouse:
                self.absent.pop(one, None)
                if one in saved.absent:
                    self.absent[one] = {topic: set(some) for topic, some in saved.absent[one].items()}
                self.was_put_back.add(one)

    def lose_checkpoints(self, _: int) -> None:
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)

    def lose_lists(self, number: int) -> None:
        """Removes what says which offsets are in the files. What was noted as absent in the middle is forgotten with
        it, so this is done only where there is no such thing."""
        lake = self._lake(number)
        if lake.has("messages") and not any(self.absent.get(number, {}).values()):
            place = lake.table("messages").location().removeprefix("file://")
            shutil.rmtree(Path(place) / "archived", ignore_errors=True)
            archived._read.cache_clear()

    def restart_broker(self, _: int) -> None:
        self.broker.restart()

    # --- what must be so after each step

    def check(self, number: int, *, audited: bool) -> None:
        """The view over lake and log has what they have, once; and audit finds exactly what is wrong."""
        config, lake = self._config(number), self._lake(number)
        log = self._log()
        there = self._there(number)
        expected = sorted(
            Seen(topic, one, f"{topic}:{one}")
            for topic in TOPICS
            for one in there.get(topic, set()) | log.get(topic, set())
        )
        assert seen(messages(self.spark, config)) == expected
        if audited:
            report = audit(self.spark, config, lake, "#")
            assert bool(report.findings) == self._is_unsound(number), report.table()
            assert report.messages == len(expected)

    def settle(self) -> None:
        """Waits until everything that may be acknowledged is, and the broker has collected what it may."""
        for thread in threading.enumerate():
            if thread.name == "stafeta-archive":
                thread.join(PATIENCE)
        with connect(self.broker) as connection:

            def collected() -> bool:
                lowest: dict[str, int] = {}
                for subscription in connection.subscriptions():
                    for cursor in subscription.cursors:
                        lowest[cursor.topic] = min(cursor.floor, lowest.get(cursor.topic, cursor.floor))
                return all(one.first >= lowest.get(one.topic, 0) for one in connection.topics("#"))

            wait_until(collected)

    def _commits(self, number: int) -> None:
        if saved := self.saved.get(LAKES[number][0]):
            saved.commits += 1

    # --- what there is, by itself

    def _config(self, number: int) -> Config:
        warehouse, namespace = LAKES[number]
        return config_of(self.broker, self.folder, lake=warehouse, namespace=namespace)

    def _lake(self, number: int) -> Lake:
        return Lake(self._config(number).lake)

    def _sent(self, topic: str) -> set[int]:
        return set(range(1, self.sent[topic] + 1))

    def _there(self, number: int) -> Offsets:
        """What the lake's files have; nothing is there twice."""
        lake = self._lake(number)
        if not lake.has("messages"):
            return {}
        found = offsets(lake)
        assert all(len(some) == len(set(some)) for some in found.values())
        return {topic: set(some) for topic, some in found.items()}

    def _log(self) -> Offsets:
        with connect(self.broker) as connection:
            return {one.topic: set(range(one.first, one.next)) for one in connection.topics("#")}

    def _floors(self, number: int) -> dict[str, int]:
        """How far the archive of a lake has acknowledged."""
        lake = self._lake(number)
        if not lake.has("messages"):
            return {}
        with connect(self.broker) as connection:
            return {
                cursor.topic: cursor.floor
                for one in connection.subscriptions()
                if one.client == f"flight/{holder(lake)}"
                for cursor in one.cursors
            }

    def _missing(self, number: int, wanted: Callable[[str], bool]) -> Offsets:
        there, log, absent = self._there(number), self._log(), self.absent.get(number, {})
        found = {
            topic: self._sent(topic)
            - there.get(topic, set())
            - log.get(topic, set())
            - absent.get(topic, set())
            for topic in TOPICS
            if wanted(topic)
        }
        return {topic: some for topic, some in found.items() if some}

    def _nowhere(self, number: int) -> Offsets:
        """What of topics that the lake had, or the broker held for it, is neither in it nor in the log."""
        there, floors = self._there(number), self._floors(number)
        return self._missing(number, lambda topic: bool(there.get(topic)) or topic in floors)

    def _gone(self, number: int) -> Offsets:
        """What of other topics was gone before."""
        there, floors = self._there(number), self._floors(number)
        return self._missing(number, lambda topic: not there.get(topic) and topic not in floors)

    def _is_unsound(self, number: int) -> bool:
        there, absent = self._there(number), self.absent.get(number, {})
        ahead = any(
            set(range(1, floor)) - there.get(topic, set()) - absent.get(topic, set())
            for topic, floor in self._floors(number).items()
        )
        gaps: Any = self._missing(number, lambda topic: bool(there.get(topic) or absent.get(topic)))
        return ahead or bool(gaps)
