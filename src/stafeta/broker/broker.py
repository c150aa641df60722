"""The broker: what doors call. Its parts do the work, each in a module of its own.

1. Every verb that changes something takes effect in memory at once and is durable when the future of `commit()`,
   called after it, resolves. A verb that raises has changed nothing.
2. All of this runs on one event loop; only the store has threads.
3. Doors call the broker, and know nothing of its parts.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stafeta.broker import overview
from stafeta.broker.acknowledging import Acknowledger
from stafeta.broker.checks import UserTopics
from stafeta.broker.clock import TurnClock
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop, Pending, Share
from stafeta.broker.consumer import Consumer
from stafeta.broker.counts import Counts
from stafeta.broker.gate import Verbs
from stafeta.broker.guarded import GuardedBroker
from stafeta.broker.lag import Head, Lag, LagSampler
from stafeta.broker.log import Log
from stafeta.broker.producer import decode
from stafeta.broker.producers import Producers
from stafeta.broker.publishing import Publisher
from stafeta.broker.reading import LogReader
from stafeta.broker.registry import Registry
from stafeta.broker.runs import Runs
from stafeta.broker.sessions import Sessions
from stafeta.broker.staging import Staging
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.config.options import Limits
from stafeta.errors import NotSubscribed, StafetaError
from stafeta.message import Batch
from stafeta.names import client_of, owner_of
from stafeta.security import ANYONE, Principal, Security
from stafeta.security.pace import Pace, Paces
from stafeta.security.rules import SUBSCRIBE
from stafeta.store.port import Group, Promotion, Snapshot, Store, Usage

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch

log = logging.getLogger("stafeta.broker")


class Broker:
    """Make one with `await Broker.open(store)`."""

    principal = ANYONE  # for whom its verbs are carried out
    pace: Pace | None = None  # how much that one may ask for: as much as he likes

    def __init__(
        self,
        store: Store,
        limits: Limits,
        retention: Callable[[str], Retention | None],
        tail: int,
        security: Security,
    ) -> None:
        self._store = store
        self.security = security
        self.user_topics = UserTopics()
        self.paces = Paces(lambda: (self.limits.max_client_requests, self.limits.max_client_bytes))
        self.totals = Counts()
        self.commits = CommitLoop(store, self.totals, self._committed)
        self.collector = Collector(self, store)
        self.registry = Registry(self.commits, self.collector, limits, retention)
        self.log = Log(store, tail)
        self.clock = TurnClock()
        self.producers = Producers(self.commits, self.registry)
        self.staging = Staging(self)
        self.sessions = Sessions()
        self.lag_sampler = LagSampler(self, store)
        self.known_times: dict[Head, int] = {}  # of messages, from the last lists of who is behind
        self.runs = Runs((), 1)
        self.started = time.monotonic()
        self.began = 1  # the position at which this run began
        if security.configured:
            self.registry.owners = _Owners(security)
            security.on_change(self._users_changed)
        self._bind_parts()

    def _bind_parts(self) -> None:
        """What doors call of the parts: the parts' own methods, so that nothing costs a call more than it has to."""
        registry, staging, sessions = self.registry, self.staging, self.sessions
        self.now = self.clock.now

        # Topics
        self.topics = registry.topics
        self.topic = registry.topic
        self.listed = registry.listed
        self.subscribed_to = registry.subscribed_to
        self.make_topic = registry.make_topic
        self.empty_topic = registry.empty_topic
        self.subscribers_of = registry.subscribers_of
        self.start_collection = self.collector.start

        # Publishing
        publisher = Publisher(self.commits, registry, self.producers, self.clock, self.totals)
        self.publish = publisher.publish
        self.publish_all = publisher.publish_all
        self.publish_own = publisher.publish_own
        self.publish_once = publisher.publish_once
        self.publish_sequence = publisher.publish_sequence
        self.append = publisher.append
        self.check_append = publisher.check_append
        self.check_writable = publisher.check_writable
        self.check_lengths = publisher.check_lengths
        self.check_longest = publisher.check_longest
        self.next_sequence = self.producers.next_sequence
        self.next_offset = publisher.next_offset

        # Transactions
        self.begin_transaction = staging.begin
        self.stage = staging.stage
        self.stage_batch = staging.stage_batch
        self.stage_apart = staging.stage_apart
        self.prepare_transaction = staging.prepare
        self.commit_transaction = staging.commit
        self.abort_transaction = staging.abort
        self.is_committed = staging.is_done
        self.last_transaction = staging.last
        self.transaction_label = staging.label
        self.staged_topics = staging.topics

        # Clients and subscriptions
        self.clients = registry.clients
        self.new_client = registry.new_client
        self.open_session = sessions.open
        self.session_holder = sessions.holder
        self.close_session = sessions.close
        self.subscribe = registry.subscribe
        self.unsubscribe = registry.unsubscribe
        self.subscription = registry.subscription
        self.begun = registry.begun
        self.leave = registry.leave
        self.matched_by = registry.matched_by
        self.watch = registry.watch
        self.unwatch = registry.unwatch

        # Reading
        reader = LogReader(self.log, self._store, self.totals)
        self.fetch = reader.fetch
        self.has_pending = reader.has_pending
        self.unacknowledged = reader.unacknowledged
        self.read = reader.read
        self.scan = reader.scan
        self.locate = reader.locate
        self.offset_at = reader.offset_at
        self.measure = reader.measure

        # Acknowledging
        acknowledger = Acknowledger(self.commits, registry, self.collector, reader)
        self.ack = acknowledger.ack
        self.ack_surely = acknowledger.ack_surely
        self.ack_all = acknowledger.ack_all
        self.check_offset = acknowledger.check_offset
        self.skip = acknowledger.skip
        self.rewind = acknowledger.rewind
        self.move = acknowledger.move

    @classmethod
    async def open(
        cls,
        store: Store,
        limits: Limits | None = None,
        retention: Callable[[str], Retention | None] = lambda name: None,
        tail: int = 32 << 20,
        security: Security | None = None,
    ) -> "Broker":
        """`tail` is how many bytes of the newest messages stay in memory."""
        broker = cls(store, limits or Limits(), retention, tail, security or Security())
        snapshot = await store.open()
        try:
            broker._recover(snapshot)
        except BaseException:
            await store.close()
            raise
        return broker

    def _recover(self, snapshot: Snapshot) -> None:
        topics = self.registry.restore(snapshot)
        for topic_id, name, state in snapshot.producers:
            self.producers.add(topics[topic_id], name, decode(name, state))
        replayed = 1  # the position after all that is
        for topic_id, batch in snapshot.recent:
            replayed = max(replayed, batch.last_position + 1)
            self.producers.replay(topics[topic_id], batch)
        if snapshot.restored:
            self.producers.restored(snapshot.restored)
            log.info(
                "this data was restored from a backup; what came since then has offsets from %d on",
                snapshot.restored,
            )
        for topic_id in snapshot.doubtful:
            topics[topic_id].doubtful = True
        self.staging.recover(snapshot)
        position = max(snapshot.position, replayed) + snapshot.lost_positions
        self.log.visible_position = self.began = position
        self.commits.begin_at(position)
        self.runs = Runs(snapshot.runs, position)
        self.commits.run = self.runs.current
        if self.security.configured:  # the users may have changed since
            for _ in self.registry.recheck():
                pass
            self.commit()

    # --- users

    def for_principal(self, principal: Principal) -> Verbs:
        """The verbs, as this principal may use them: the broker itself where no users are configured."""
        return GuardedBroker(self, principal) if self.security.configured else self

    def check_alive(self) -> None:
        """As that of who is checked: everybody may come in."""

    def sees_all(self) -> bool:
        return True

    def check_sees_all(self) -> None: ...

    def may_query(self) -> bool:
        return True

    def check_may_query(self) -> None: ...

    def record_query(self, statement: str) -> None: ...

    def may_publish(self, name: str) -> bool:
        return True

    def check_subscribe(self, client: str, filter_: str) -> None: ...

    def check_subscribed(self, client: str, filter_: str) -> None: ...

    def _users_changed(self) -> None:
        self.registry.portions.do(self.registry.recheck())
        self.commit()

    def reconfigure(self, limits: Limits, retention: Callable[[str], Retention | None]) -> None:
        """Change limits and retention while running."""
        self.registry.reconfigure(limits, retention)

    async def close(self) -> None:
        """Take nothing more, make durable what was taken, and let go of the store."""
        if self.registry.closed:
            return
        self.registry.closed = True
        await self.collector.stop()
        await self.lag_sampler.stop()
        self.commits.checkpoint_wanted = True
        commit = self.commit()
        await asyncio.wait([commit])
        if commit.exception() is not None:
            log.error("the last commit failed: %s", commit.exception())
        await self._store.close()

    @property
    def limits(self) -> Limits:
        return self.registry.limits

    # --- commits

    def commit(self) -> asyncio.Future[None]:
        """Resolves when all that was done so far is durable, or raises why it could not be. Do not cancel it."""
        return self.commits.commit()

    def answer(self, answer: Callable[[StafetaError | None], object]) -> None:
        """Call this, with the error if there is one, when all that was done so far is durable or could not be made so:
        sooner than whatever waits for `commit`."""
        self.commits.answer(answer)

    @property
    def group(self) -> Pending:
        """The group that grows: what the next commit writes. Doors look at its size."""
        return self.commits.pending

    def share(self) -> Share:
        """For a door to count what it adds to a group."""
        return Share(self.commits)

    def set_bulk_source(self, fill: Callable[[], bool]) -> None:
        """`fill` is called when a group is about to be written, and adds what could wait until then; it returns whether
        there was any."""
        self.commits.fill = fill

    def bulk_ready(self) -> None:
        """There is something to fill a group with."""
        self.commits.wake()

    def write_ahead(self, batch: "ColumnBatch", done: Callable[[], None]) -> bool:
        """Have the store write a large batch that is about to be published; false where there is nothing to wait for.
        Else `done` is called by another thread, and until then it is not to be published. Any thread may call this."""
        return self._store.write_ahead(batch, done)

    @property
    def congested(self) -> bool:
        """True while so much waits to become durable that a door should read no further."""
        return self.commits.size > self.registry.limits.max_pending

    def _committed(self, pending: Pending, group: Group) -> None:
        fresh: dict[Topic, list[Batch]] = {}
        watched: list[Topic] = []
        dirty = self.collector.dirty
        for (topic, base, _), append in zip(pending.appends, group.appends, strict=True):
            is_watched = topic.watched and topic.has_watcher
            if isinstance(append, Promotion):
                topic.visible = base + append.rows
                topic.tail = None  # what is in memory must be without gaps
                fresh.pop(topic, None)
            else:
                batch = append.batch
                topic.visible = base + batch.count
                if is_watched or topic.cached:
                    fresh.setdefault(topic, []).append(batch)
                else:
                    topic.tail = None
            if is_watched:
                watched.append(topic)
            elif not topic.has_active_subscriber:
                dirty.add(topic)
            if topic.retention is not None:
                dirty.add(topic)
        self.log.visible_position = group.position
        self.log.add([(topic, batch) for topic, batches in fresh.items() for batch in batches])
        for topic in watched:
            topic.notify_watchers()

    # --- what there is

    def stats(self) -> dict[str, object]:
        return overview.stats(self)._asdict()

    def figures(self) -> overview.Figures:
        """What it has done and has, at no cost."""
        return overview.figures(self, self._store)

    async def lag(self) -> Lag:
        """How far durable subscriptions are behind: as of now, or of a few seconds ago where they are many."""
        return await self.lag_sampler.lag()

    async def usage(self) -> Usage:
        """How much room the store takes, and how much is left."""
        return await self._store.usage()

    async def ping(self) -> None:
        """Returns once the store has done what was asked of it before: never, while it hangs."""
        await self._store.ping()

    async def client_lines(self, after: str, limit: int) -> list[overview.ClientLine]:
        return await overview.clients(self, after, limit)

    async def subscription_lines(
        self, after: tuple[str, str], limit: int, wanted: str = "", *, search: str = ""
    ) -> list[overview.SubscriptionLine]:
        return await overview.subscriptions(self, after, limit, wanted, search=search)

    def durable_subscriptions(self) -> list[tuple[str, Subscription]]:
        """Each with the name of its client."""
        return [
            (one.client, one) for filters in self.clients.values() for one in filters.values() if one.durable
        ]

    async def lagging_lines(
        self, limit: int, *, by_age: bool = False, wanted: str = "", search: str = ""
    ) -> list[overview.SubscriptionLine]:
        return await overview.lagging(self, limit, by_age=by_age, wanted=wanted, search=search)

    def subscription_named(self, client: str, filter_: str) -> Subscription:
        """That of a client by the name that it has in the lists of what there is."""
        found = self.clients.get(client, {}).get(filter_)
        if found is None:
            raise NotSubscribed(f"Client {client!r} has no subscription to {filter_!r}.")
        return found

    def end_subscription(self, subscription: Subscription) -> None:
        """As unsubscribing, for one that was found by the name of its client."""
        self.unsubscribe(subscription.client, subscription.filter)

    def not_ready(self) -> str | None:
        """Why nothing can be stored now; None where it can, as far as that is known."""
        if self.registry.closed:
            return "The broker is shutting down."
        return self.commits.refusing()

    # --- positions

    @property
    def visible_position(self) -> int:
        """That of the first message that is not durable yet."""
        return self.log.visible_position

    @property
    def next_position(self) -> int:
        """That of the next message."""
        return self.commits.position

    def mark(self, position: int) -> str:
        """What a reader has to remember who knows of the messages up to this position."""
        return self.runs.mark(position)

    def check_mark(self, mark: str) -> None:
        """Raises `DataLoss` where messages are not there any more that the reader knows of."""
        self.runs.check(mark)

    # --- pushing

    def consumer(
        self, client: str, on_ready: Callable[[], None] = lambda: None, *, unbounded_lag: bool = False
    ) -> Consumer:
        """What a connection that is pushed its messages reads from."""
        return Consumer(self, client, on_ready, unbounded_lag=unbounded_lag)


class _Owners:
    """Whose the clients are: their names tell it. (`names.owned`)"""

    def __init__(self, security: Security) -> None:
        self._security = security

    def permits(self, client: str) -> Callable[[str], bool] | None:
        user = self._user(client)
        if user is None:
            return None
        security, called = self._security, client_of(client)

        def permits(name: str) -> bool:
            return bool(security.permissions(user).on(name, called) & SUBSCRIBE)

        return permits

    def exists(self, client: str) -> bool:
        user = self._user(client)
        return user is None or user in self._security.users.users

    def _user(self, client: str) -> str | None:
        """None for a name from before there were users, which nobody has now: what it holds stays."""
        return owner_of(client)[0] or self._security.plain_user
