"""Lakes on one broker, and what is done to them: what each should have is worked out from sets of offsets."""

import shutil
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.errors import DataLoss, StoreDamaged
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
FAR = 10**6  # days since 1970: every day is closed


@dataclass
class Saved:
    """A copy of a warehouse, and what its lakes had noted as absent then."""

    path: Path
    absent: dict[int, Offsets]


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
        archiving = self._archiving(number)
        lost = self._nowhere(number)
        if lost:
            assert number in self.was_put_back, lost  # nothing else loses anything
            with pytest.raises(DataLoss, match="Neither the lake nor the log has message"):
                archiving.run()
            self.losses += 1
        gone = self._gone(number)
        archiving.run(accept_loss=bool(lost))
        self._is_archived(number, lost, gone)

    def archive_while_all_goes_on(self, number: int) -> None:
        """The job runs, and something is published, read and merged meanwhile."""
        if self._nowhere(number):
            return
        gone = self._gone(number)
        config, lake = self._config(number, grace=3600.0), self._lake(number)
        with Archiving(self.spark, config, self.folder).running():
            self.publish(number)
            assert messages(self.spark, config).count() == sum(
                len(self._sent(topic) - self._unseen(number, gone, topic)) for topic in TOPICS
            )
            compact(lake, "messages", size=1 << 20, keep=86_400.0, until=FAR)
            wait_until(lambda: self._has_all(number, gone))
        self._is_archived(number, {}, gone)

    def die_before_the_commit(self, number: int) -> None:
        self._die(number, committed=False)

    def die_after_the_commit(self, number: int) -> None:
        self._die(number, committed=True)

    def _die(self, number: int, *, committed: bool) -> None:
        """The driver ends in the middle of a micro-batch. Whether it had begun one is the lake's to say."""
        if self._nowhere(number):
            return
        gone = self._gone(number)
        self._archiving(number).die(committed=committed)
        self._note_absent(number, {}, gone)

    def _archiving(self, number: int) -> Archiving:
        return Archiving(self.spark, self._config(number), self.folder)

    def _is_archived(self, number: int, lost: Offsets, gone: Offsets) -> None:
        self._note_absent(number, lost, gone)
        self.settle()
        self._archiving(number).acknowledge()
        there = self._there(number)
        for topic in TOPICS:
            absent = self.absent[number].get(topic, set())
            assert there.get(topic, set()) == self._sent(topic) - absent, (topic, absent)

    def _note_absent(self, number: int, lost: Offsets, gone: Offsets) -> None:
        for topic in TOPICS:
            known = self.absent.setdefault(number, {})
            known[topic] = known.get(topic, set()) | lost.get(topic, set()) | gone.get(topic, set())

    def _unseen(self, number: int, gone: Offsets, topic: str) -> set[int]:
        return self.absent.get(number, {}).get(topic, set()) | gone.get(topic, set())

    def _has_all(self, number: int, gone: Offsets) -> bool:
        there = self._there(number)
        return all(
            there.get(topic, set()) == self._sent(topic) - self._unseen(number, gone, topic)
            for topic in TOPICS
        )

    def compact(self, number: int) -> None:
        lake = self._lake(number)
        if lake.has("messages"):
            compact(lake, "messages", size=1 << 20, keep=86_400.0, until=FAR)

    def save(self, number: int) -> None:
        """Copies a warehouse away, as a backup does."""
        warehouse, _ = LAKES[number]
        if (self.folder / warehouse).exists():
            self.copies += 1
            path = self.folder / f"copy-{self.copies}"
            shutil.copytree(self.folder / warehouse, path)
            self.saved[warehouse] = Saved(path, deepcopy(self.absent))

    def put_back(self, number: int) -> None:
        """Puts a warehouse back as it was."""
        warehouse, _ = LAKES[number]
        if (saved := self.saved.get(warehouse)) is None:
            return
        shutil.rmtree(self.folder / warehouse)
        shutil.copytree(saved.path, self.folder / warehouse)
        for one, (place, _) in enumerate(LAKES):
            if place == warehouse:
                self.absent.pop(one, None)
                if one in saved.absent:
                    self.absent[one] = deepcopy(saved.absent[one])
                self.was_put_back.add(one)

    def put_back_catalog(self, number: int) -> None:
        """Puts a catalog alone back: it is found out, and nothing is missing."""
        warehouse, _ = LAKES[number]
        saved = self.saved.get(warehouse)
        if saved is not None and (saved.path / "catalog.db").exists():
            copied(saved.path / "catalog.db", self.folder / warehouse / "catalog.db")

    def lose_catalog(self, number: int) -> None:
        (self.folder / LAKES[number][0] / "catalog.db").unlink(missing_ok=True)

    def lose_a_file(self, number: int) -> None:
        """Moves a data file away, until audit has missed it, and puts it back."""
        lake = self._lake(number)
        urls = (
            [task.file.file_path for task in lake.table("messages").scan().plan_files()]
            if self._there(number)
            else []
        )
        if urls:
            path = Path(min(urls).removeprefix("file://"))
            path.rename(self.folder / "file")
            found = audit(self.spark, self._config(number), lake, "#").findings
            lists = archived.urls(lake.table("messages"))
            listed = all(Path(url.removeprefix("file://")).exists() for url in lists)
            # Without the lists nobody knows what was in the file.
            assert {"files", *(["archive"] if listed else [])} <= {one.check for one in found}, found
            (self.folder / "file").rename(path)

    def lose_the_table(self, number: int) -> None:
        """Moves the table's folder away: nobody begins another one in its place. And puts it back."""
        if not self._there(number):
            return
        path = Path(self._lake(number).table("messages").location().removeprefix("file://"))
        path.rename(self.folder / "table")
        for look in (self._archiving(number).run, partial(messages, self.spark, self._config(number))):
            with pytest.raises((StoreDamaged, FileNotFoundError)):
                look()
        shutil.rmtree(path, ignore_errors=True)  # of locks
        (self.folder / "table").rename(path)

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

    # --- what there is, by itself

    def _config(self, number: int, grace: float = 0.0) -> Config:
        warehouse, namespace = LAKES[number]
        return config_of(self.broker, self.folder, lake=warehouse, namespace=namespace, grace=grace)

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
