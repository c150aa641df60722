"""Collection: messages that nobody waits for, and that no retention keeps, go."""

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from stafeta.broker.topic import Topic
from stafeta.errors import StoreError
from stafeta.store.port import Store

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker

log = logging.getLogger("stafeta.broker")

PORTION = 500  # topics looked at before others get their turn


class Collector:
    def __init__(self, broker: "Broker", store: Store) -> None:
        self._broker = broker
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self.dirty: set[Topic] = set()  # topics in which something may have become collectable
        self.held = False  # true where nothing may be: who waits for what is not known

    def start(self, interval: float) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(interval))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self, interval: float) -> None:
        failed = False
        while True:
            await asyncio.sleep(interval)
            try:
                await self.collect()
                failed = False
            except StoreError as error:
                if not failed:
                    log.warning("collection fails, and is tried again every %g s: %s", interval, error)
                failed = True

    async def collect(self) -> None:
        """Collect all that can be, and give its space back."""
        looked_at, self.dirty = self.dirty, set()
        try:
            while looked_at:
                portion = list(islice(looked_at, PORTION))
                for topic in portion:
                    await self._collect(topic)
                looked_at.difference_update(portion)
                await asyncio.sleep(0)
            if self._broker.commits.pending.topics:
                await asyncio.shield(self._broker.commit())
            more = True
            while more:
                more = await self._store.sweep()
            if self._store.checkpoint_due:
                await asyncio.shield(self._broker.commit())
        except BaseException:
            self.dirty |= looked_at
            raise
        while self._broker.staging.expire():
            await asyncio.shield(self._broker.commit())

    async def _collect(self, topic: Topic) -> None:
        if not topic.exists or self.held:
            return
        kept = None if topic.retention is None else await self._kept_from(topic)
        self._broker.registry.begin_with(topic)
        limit = self._held_from(topic)  # as of now: someone may have come meanwhile
        if kept is not None:
            limit = min(limit, kept)
        if limit > topic.first:
            self.release(topic, limit)
        if topic.retention is not None and topic.first < topic.visible:
            self.dirty.add(topic)  # time alone makes it collectable
        self._broker.registry.remove_unless_wanted(topic)

    def _held_from(self, topic: Topic) -> int:
        """The first offset that a subscription waits for."""
        visible, lag = topic.visible, self._broker.limits.max_lag
        low: int | None = None
        for subscription, cursor in topic.cursors():
            if subscription.away:
                continue
            floor = cursor.floor if subscription.durable else max(cursor.floor, topic.back(visible, lag))
            if low is None or floor < low:
                low = floor
        # A cursor made while messages were on their way to the disk is above what is visible, and moves from there.
        topic.low = visible if low is None else low
        return min(topic.low, topic.back(visible, 1) if topic.keeps_last else visible)

    async def _kept_from(self, topic: Topic) -> int:
        """The first offset that retention keeps."""
        assert topic.retention is not None
        age, size, messages, _ = topic.retention
        before = None if age is None else self._broker.now() - age
        kept = 1
        if age is not None or size is not None:
            kept = await self._store.horizon(topic.id, before=before, size=size)
        return kept if messages is None else max(kept, topic.back(topic.visible, messages))

    def release(self, topic: Topic, first: int) -> None:
        pending = self._broker.commits.pending
        before = topic.first

        def undo() -> None:
            topic.first = before
            self.dirty.add(topic)

        pending.undo.append(undo)
        pending.topics.add(topic)
        pending.collected += topic.messages(before, first)
        topic.first = first
