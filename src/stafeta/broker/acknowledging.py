"""Moving cursors: acknowledgements, offsets that are skipped, going back."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop
from stafeta.broker.cursor import MovedCursor, Span
from stafeta.broker.reading import LogReader
from stafeta.broker.registry import Registry
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import InvalidRequest, LimitReached, NoSuchOffset, StafetaError

log = logging.getLogger("stafeta.broker")


class Acknowledger:
    def __init__(
        self, commits: CommitLoop, registry: Registry, collector: Collector, reader: LogReader
    ) -> None:
        self._commits = commits
        self._registry = registry
        self._collector = collector
        self._reader = reader

    def ack(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        """The subscriber has done with the offsets from `start` up to, not including, `stop`."""
        self.ack_all(subscription, topic, ((start, stop),))

    def ack_surely(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        """The same, and again where it could not be stored, since there is nobody to report that to."""
        try:
            self.ack(subscription, topic, start, stop)
        except StafetaError as error:
            log.error("what client %r has got is not acknowledged: %s", subscription.client, error)
            return
        if subscription.durable:
            again = partial(self.ack_surely, subscription, topic, start, stop)
            self._commits.pending.again.append(again)

    def ack_all(self, subscription: Subscription, topic: Topic, spans: Sequence[Span]) -> None:
        """The subscriber has done with these, which are in ascending order."""
        if subscription.beginning:
            self._registry.begin_with(topic)  # it may not have come to this one, and would read them again
        cursor = subscription.cursors.get(topic)
        if cursor is None or not spans:
            return
        self.check_offset(topic, spans[-1][1] - 1)
        floor, gaps = cursor.floor, cursor.gaps
        moves = cursor.ack(spans)
        if not moves:
            return
        most = self._registry.limits.max_gaps
        if cursor.gaps > max(most, gaps):
            for move in reversed(moves):
                cursor.take_back(move)
            raise LimitReached(
                f"Client {subscription.client!r} has left out messages of {topic.name!r} at {most} places, "
                f"as many as limits.max_gaps allows. Acknowledge those from {cursor.floor} on first."
            )
        if subscription.durable:
            self._commits.pending.moved(subscription, topic, cursor, moves)
        if floor <= topic.low:
            self._collector.dirty.add(topic)

    def check_offset(self, topic: Topic, offset: int) -> None:
        """Refuses an offset that the topic has not reached."""
        if offset >= topic.visible:
            raise NoSuchOffset(
                f"Topic {topic.name!r} has no message {offset} yet; its last is {topic.visible - 1}."
            )

    async def skip(self, name: str, start: int, stop: int) -> None:
        """Let everybody pass over messages that are damaged; those that can be read are refused."""
        topic = self._registry.topic(name)
        if not topic.first <= start < stop <= topic.visible:
            raise NoSuchOffset(
                f"The messages {start} to {stop - 1} are not within {name!r}, which has {topic.first} to "
                f"{topic.visible - 1}."
            )
        readable = await self._reader.next_readable(topic, start)
        if readable is not None and readable.base < stop:
            raise InvalidRequest(
                f"Message {readable.base} of {name!r} can be read: acknowledge it instead. Only what is damaged is "
                "skipped."
            )
        pending, before = self._commits.pending, topic.skipped
        # One range begins at an offset: the longest.
        longest = max([stop, *[end for first, end in before if first == start]])
        pending.group.skipped.append((topic.id, start, longest))
        pending.undo.append(lambda: setattr(topic, "skipped", before))
        topic.skipped = tuple(sorted([*(one for one in before if one[0] != start), (start, longest)]))
        # However many gaps that makes: it is not their choice.
        for subscription, cursor in topic.cursors():
            if (moves := cursor.ack(((start, stop),))) and subscription.durable:
                pending.moved(subscription, topic, cursor, moves)
        self._collector.dirty.add(topic)
        await asyncio.shield(self._commits.commit())
        log.warning("messages %d to %d of %r are damaged, and skipped", start, stop - 1, name)
        topic.notify_watchers()

    def rewind(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        """Let a live subscription begin at this offset of a topic, or at what the topic still holds after it."""
        offset = min(max(offset, topic.first), topic.next)
        cursor = subscription.cursors.get(topic)
        if cursor is not None:
            cursor.floor = offset
        elif offset < topic.next:
            topic.add(subscription, topic.cursor(offset))

    def move(self, subscription: Subscription, topic: Topic, offset: int) -> int:
        """Let a subscription go on at this offset of a topic, forward or back; what it has acknowledged above is not
        acknowledged any more. Returns where it goes on: what the topic does not hold any more is passed over."""
        if not topic.exists or offset > topic.visible:
            raise NoSuchOffset(
                f"Topic {topic.name!r} has no message {offset} yet; its last is {topic.visible - 1}."
            )
        if not subscription.covers(topic.name):
            raise InvalidRequest(f"The subscription to {subscription.filter!r} does not get {topic.name!r}.")
        if subscription.beginning:
            self._registry.begin_with(topic)
        before, cursor, low = (
            subscription.cursors.get(topic),
            topic.cursor(max(offset, topic.first), MovedCursor),
            topic.low,
        )
        offset = cursor.floor
        topic.add(subscription, cursor)
        topic.low = min(topic.low, offset)
        pending = self._commits.pending

        def undo() -> None:
            topic.low = min(low, topic.low)
            if before is None:
                topic.discard(subscription)
                topic.wildcard_generation = 0
            else:
                topic.add(subscription, before)

        pending.undo.append(undo)
        if subscription.durable:
            pending.keep(subscription, topic, cursor)
        self._collector.dirty.add(topic)
        for moved in subscription.on_move:
            moved(topic, offset)
        return offset
