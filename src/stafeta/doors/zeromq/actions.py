"""What each request does to the verbs."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

from stafeta import __version__
from stafeta.broker import Subscription, Topic, Verbs
from stafeta.doors.zeromq.codec import (
    Ack,
    Clients,
    Dialect,
    FetchResult,
    Get,
    Login,
    Put,
    PutSequence,
    Read,
    Request,
    Skip,
    Stats,
    Subscribe,
    Subscriptions,
    TopicLine,
    Topics,
    Unsubscribe,
    Wait,
    Watch,
)
from stafeta.doors.zeromq.json_dialect import listed, ready, stats, stored_sequence, watched
from stafeta.doors.zeromq.watchers import Watchers
from stafeta.errors import InvalidClient, NoSuchOffset, OutOfSequence, StafetaError, StoreDamaged
from stafeta.names import PREFIXES, check_client
from stafeta.ranges import ranges_of

MAX_SIZE = 1 << 20
PORTION = 1000  # messages or ids of one request, before others get their turn
GROUP = 128 << 10  # bytes in a group, after which the next portion waits for another one
PORTION_SIZE = 64 << 10  # bytes of messages that are looked through together
# What reads, waits, or looks at all that there is.
LOOKING = Get | Topics | Skip | Wait | Watch | Read | Stats | Clients | Subscriptions


def act(verbs: Verbs, dialect: Dialect, request: Request, source: str) -> bytes:
    """Carry out a request that needs no reading; returns the reply for when it is durable."""
    match request:
        case Put(topic, payload, kind, client, counter):
            if client:
                _check_producer(client)
            if counter is None or not client:
                offset = verbs.publish(topic, payload, kind, source, client)
            else:
                offset = verbs.publish_once(topic, payload, client, counter, kind, source)
            return dialect.stored(offset)
        case PutSequence(topic, payloads, kind, client, sequence, create):
            _check_producer(client)
            return stored_sequence(
                *verbs.publish_sequence(topic, payloads, client, sequence, kind, source, create=create)
            )
        case Subscribe(client, filter_, mark):
            _check_own(client)
            subscription = verbs.subscribe(client, filter_)
            # Of what the reply waits for too: the subscription may have it behind it.
            known = None if mark is None else verbs.mark(verbs.next_position - 1)
            return dialect.subscribed(subscription.last_done, known)
        case Unsubscribe(client, filter_):
            _check_own(client)
            verbs.unsubscribe(client, filter_)
            return dialect.done()
        case Ack(client, filter_, ids, up_to):
            subscription, one = _aim(verbs, client, filter_)
            assert one is not None, "acknowledging positions needs reading"
            verbs.ack_all(subscription, one, ranges_of(ids or ()) if up_to is None else [(0, up_to + 1)])
            return dialect.done()
        case Login():
            return dialect.logged_in(verbs.new_client())
        case _:
            raise AssertionError("it takes time")


def has_many(body: bytes) -> bool:
    """True for a request, not yet parsed, that seems to have many messages or ids in it."""
    listed = body.startswith(b"ACK ") or b'"publications"' in body or b'"ids"' in body
    return listed and body.count(b",") > PORTION


def takes_time(verbs: Verbs, request: Request) -> bool:
    """True where a request has to read, or is so large that others get their turn while it is carried out. Raises
    `DataLoss` where its client has read another log."""
    if isinstance(request, Put):  # first, since it is most of them
        return False
    if isinstance(request, Subscribe | Get | Ack) and request.mark:
        verbs.check_mark(request.mark)
    match request:
        case _ if isinstance(request, LOOKING):
            return True
        case Ack(client, filter_, ids, _):
            # By position: only the log tells which messages those are.
            return len(ids or ()) > PORTION or _aim(verbs, client, filter_)[1] is None
        case PutSequence(_, payloads):
            return len(payloads) > PORTION
    return False


async def act_in_portions(
    verbs: Verbs, watchers: Watchers, dialect: Dialect, request: Request, source: str, size: int
) -> bytes:
    """Carry out a request that takes time; returns the reply when what it did is durable."""
    size = min(size, MAX_SIZE)
    if isinstance(request, PutSequence):
        return await _put_in_portions(verbs, request, source)
    if isinstance(request, Ack):
        subscription, one = _aim(verbs, request.client, request.filter)
        if one is None:
            await _ack_positions(verbs, subscription, request)
        else:
            await _ack_in_portions(verbs, subscription, one, request.ids or ())
        return dialect.done()
    if isinstance(request, Topics):
        found = await verbs.listed(*request)
        lines = [TopicLine(t.name, t.first, t.visible, verbs.subscribed_to(t)) for t in found]
        return listed("topics", lines)
    if isinstance(request, Stats):
        return stats({"version": __version__, **verbs.stats()})
    if isinstance(request, Clients):
        return listed("clients", await verbs.client_lines(*request))
    if isinstance(request, Subscriptions):
        return listed("subscriptions", await verbs.subscription_lines(*request))
    if isinstance(request, Watch):
        return watched(await watchers.ask(verbs, request, size))
    if isinstance(request, Wait):
        return ready(await _ready(verbs, watchers, request))
    if isinstance(request, Read):
        return dialect.messages(
            Get("", request.topic, limit=request.limit), await _read(verbs, request, size), size
        )
    if isinstance(request, Skip):
        await verbs.skip(request.topic, request.first, request.last + 1)
        return dialect.done()
    assert isinstance(request, Get)
    if request.wait:
        fetched = await _wait(verbs, watchers, request, size)
    else:
        fetched = await _deliver(verbs, request, size)
    if request.mark is not None:
        fetched = fetched._replace(mark=verbs.mark(verbs.visible_position - 1))
    return dialect.messages(request, fetched, size)


class Portions:
    """A large request that is carried out a portion at a time, each in the group that is open then."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._commits: list[asyncio.Future[None]] = []

    async def others_turn(self) -> None:
        """Call after each portion. Raises why one could not be stored.

        Whatever joins a group waits for all of it: what is large does not let one grow beyond a few milliseconds."""
        verbs = self._verbs
        commit = verbs.commit()
        if not self._commits or self._commits[-1] is not commit:
            self._commits.append(commit)
        if verbs.group.size > GROUP:
            await asyncio.wait([commit])
        else:
            await asyncio.sleep(0)
        while self._commits and self._commits[0].done():
            self._commits.pop(0).result()

    async def durable(self) -> None:
        """Returns when all of them are."""
        for commit in self._commits:
            await asyncio.wait([commit])
            commit.result()


async def _put_in_portions(verbs: Verbs, request: PutSequence, source: str) -> bytes:
    topic, payloads, kind, client, sequence, create = request
    _check_producer(client)
    verbs.check_lengths(payloads)
    portions = Portions(verbs)
    first = last = 0
    for at in range(0, len(payloads), PORTION):
        portion = payloads[at : at + PORTION]
        try:
            begin, last = verbs.publish_sequence(
                topic, portion, client, sequence + at, kind, source, create=create
            )
        except StafetaError as error:
            expected = verbs.next_sequence(topic, client)
            if expected <= sequence or isinstance(error, OutOfSequence):
                raise
            # What comes before it is stored, or will be: whoever took this for a plain no would use its numbers again.
            raise OutOfSequence(f"{error} What comes before number {expected} is stored.", expected) from None
        first = begin if at == 0 else first
        await portions.others_turn()
    await portions.durable()
    return stored_sequence(first, last)


async def _ack_in_portions(
    verbs: Verbs, subscription: Subscription, topic: Topic, ids: Sequence[int]
) -> None:
    ranges = await asyncio.to_thread(ranges_of, ids)
    verbs.check_offset(topic, ranges[-1][1] - 1)
    portions = Portions(verbs)
    for at in range(0, len(ranges), PORTION):
        verbs.ack_all(subscription, topic, ranges[at : at + PORTION])
        await portions.others_turn()
    await portions.durable()


@lru_cache(10_000)
def _check_producer(client: str) -> None:
    _check_own(client)
    check_client(client)


def _check_own(client: str) -> None:
    if client.startswith(PREFIXES):
        raise InvalidClient(f"The client id {client!r:.80} is a client's of another door; choose another.")


def _aim(verbs: Verbs, client: str, filter_: str) -> tuple[Subscription, Topic | None]:
    """The subscription, and the one topic that is meant, or None for all that a filter matches."""
    _check_own(client)
    subscription = verbs.subscription(client, filter_)
    if subscription.wildcard and filter_ == subscription.filter:
        return subscription, None
    return subscription, verbs.topic(filter_)


async def _deliver(verbs: Verbs, request: Get, size: int) -> FetchResult:
    subscription, topic = _aim(verbs, request.client, request.filter)
    after = request.after
    if topic is None:
        if after is not None:
            await _ack_positions(verbs, subscription, Ack(request.client, request.filter, None, after))
        batches = await verbs.fetch(subscription, None, size, request.limit, in_turn=after is not None)
        return FetchResult(batches, by_position=True)
    if after is None:
        return FetchResult(await verbs.fetch(subscription, [topic], size, request.limit), by_position=False)
    verbs.check_offset(topic, after)
    verbs.ack(subscription, topic, 0, after + 1)
    verbs.commit()
    if not request.single:
        return FetchResult(await verbs.fetch(subscription, [topic], size, request.limit), by_position=False)
    # Whoever says n has n, whatever was acknowledged in its name since.
    batches = await verbs.read(topic, after + 1, 1)
    return FetchResult([batch.cut(batch.base, batch.base + 1) for batch in batches[:1]], by_position=False)


async def _read(verbs: Verbs, request: Read, size: int) -> FetchResult:
    topic = verbs.topic(request.topic)
    start = request.start or topic.back(topic.visible, request.last)
    start = max(start, topic.first)
    found = await verbs.read(topic, start, size, min(start + request.limit, topic.visible))
    return FetchResult(found, by_position=False)


async def _ready(verbs: Verbs, watchers: Watchers, request: Wait) -> list[str]:
    """The filters that have something for the client, as soon as there are any."""
    aims = {filter_: _aim(verbs, request.client, filter_) for filter_ in request.filters}
    wakeup = asyncio.Event()

    def wake(topic: Topic) -> None:
        wakeup.set()

    async def found() -> list[str]:
        return [
            filter_
            for filter_, (subscription, one) in aims.items()
            if await verbs.has_pending(subscription, one)
        ]

    for subscription, _ in aims.values():
        verbs.watch(subscription, wake)
    try:
        with watchers.polling(wakeup):
            async with asyncio.timeout(request.wait or None):
                while not (filters := await found()) and request.wait:
                    await wakeup.wait()
                    wakeup.clear()
                    for filter_ in aims:
                        verbs.check_subscribed(request.client, filter_)
        return filters
    except TimeoutError:
        return []
    finally:
        for subscription, _ in aims.values():
            verbs.unwatch(subscription, wake)


async def _wait(verbs: Verbs, watchers: Watchers, request: Get, size: int) -> FetchResult:
    """Until there is something to deliver, or the time is over."""
    subscription, _ = _aim(verbs, request.client, request.filter)
    wakeup = asyncio.Event()

    def wake(topic: Topic) -> None:
        wakeup.set()

    verbs.watch(subscription, wake)  # first: more may come while it is looked for
    try:
        fetched = await _deliver(verbs, request, size)
        with watchers.polling(wakeup):
            async with asyncio.timeout(request.wait):
                while not fetched.batches:
                    await wakeup.wait()
                    wakeup.clear()
                    verbs.check_subscribed(request.client, request.filter)
                    fetched = await _deliver(verbs, request, size)
        return fetched
    except TimeoutError:
        return FetchResult([], False)
    finally:
        verbs.unwatch(subscription, wake)


async def _ack_positions(verbs: Verbs, subscription: Subscription, request: Ack) -> None:
    """Acknowledge messages of a filter by their positions, single ones or all up to one."""
    wanted = sorted(set(request.ids or ()))
    last = wanted[-1] if wanted else 0
    if request.up_to is not None:
        last = request.up_to
    if last >= verbs.next_position:
        raise NoSuchOffset(f"No message has the position {last} yet; the last is {verbs.next_position - 1}.")
    portions = Portions(verbs)
    async for topic, floor in verbs.unacknowledged(subscription):
        if request.up_to is not None:
            end = await verbs.offset_at(topic, last + 1, floor)
            verbs.ack(subscription, topic, 0, end)
            await portions.others_turn()
        else:
            await _ack_single_positions(verbs, subscription, topic, floor, wanted, portions)
    await portions.durable()


async def _ack_single_positions(
    verbs: Verbs,
    subscription: Subscription,
    topic: Topic,
    offset: int,
    wanted: list[int],
    portions: Portions,
) -> None:
    """From wanted position to wanted position: near ones are read together, what lies between others is not."""
    at = 0
    while at < len(wanted):
        offset = await verbs.offset_at(topic, wanted[at], offset)
        try:
            batches = await verbs.read(topic, offset, PORTION_SIZE, min(offset + PORTION, topic.visible))
        except StoreDamaged as error:
            offset = error.stop
            continue
        if not batches:
            return
        found: list[int] = []
        for batch in batches:
            found += [o for o, position in enumerate(batch.positions, batch.base) if _has(wanted, position)]
        verbs.ack_all(subscription, topic, ranges_of(found))
        offset = batches[-1].end
        at = bisect_right(wanted, batches[-1].last_position)
        await portions.others_turn()


def _has(wanted: list[int], position: int) -> bool:
    at = bisect_left(wanted, position)
    return at < len(wanted) and wanted[at] == position
