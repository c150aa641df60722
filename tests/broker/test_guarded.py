"""The verbs as users may use them: every one is checked, names are their users' own, and nothing is seen that may not
be."""

from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any

import pytest

from stafeta.broker import Broker, Retention
from stafeta.broker.guarded import GuardedBroker
from stafeta.errors import (
    InvalidClient,
    NoSuchTopic,
    NotAuthenticated,
    NotPermitted,
    NotSubscribed,
)
from stafeta.message import RowBatch
from stafeta.security import Principal, Users
from stafeta.testing.memory import MemoryStore
from tests.broker.principals import USERS, opened, taken, texts, user, verbs
from tests.broker.stores import run


def test_without_users_the_verbs_are_the_broker() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        assert broker.for_principal(Principal()) is broker
        await broker.close()

    run(work())


# --- every verb

Doing = Callable[[GuardedBroker, Any], object]
BATCH = RowBatch("a/t", 0, [(0, 0, "", "", 3, None, b"x")])
# Each done by somebody who may do nothing, on a topic and a subscription that another has.
REFUSED: dict[str, Doing] = {
    "check_sees_all": lambda v, s: v.check_sees_all(),
    "check_may_query": lambda v, s: v.check_may_query(),
    "record_query": lambda v, s: v.record_query("SELECT 1"),
    "publish": lambda v, s: v.publish("a/t", b"x"),
    "publish_once": lambda v, s: v.publish_once("a/t", b"x", "p", 1),
    "publish_sequence": lambda v, s: v.publish_sequence("a/t", [b"x"], "p", 1),
    "append": lambda v, s: v.append("a/t", BATCH),  # type: ignore[arg-type]
    "check_append": lambda v, s: v.check_append("a/t", "p", 1),
    "next_sequence": lambda v, s: v.next_sequence("a/t", "p"),
    "stage": lambda v, s: v.stage("p", 1, "x", "a/t", [(3, b"x")]),
    "stage_batch": lambda v, s: v.stage_batch("p", 1, "x", "a/t", BATCH),
    "stage_apart": lambda v, s: v.stage_apart("p", 1, "x", [BATCH]),
    "subscribe": lambda v, s: v.subscribe("c", "a/t/#"),
    "check_subscribe": lambda v, s: v.check_subscribe("c", "a/t/#"),
    "check_subscribed": lambda v, s: v.check_subscribed("c", "a/t/#"),
    "unsubscribe": lambda v, s: v.unsubscribe("c", "a/t"),
    "subscription": lambda v, s: v.subscription("c", "a/t"),
    "begun": lambda v, s: v.begun(s),
    "matched_by": lambda v, s: v.matched_by(s),
    "watch": lambda v, s: v.watch(s, lambda topic: None),
    "topic": lambda v, s: v.topic("a/t"),
    "listed": lambda v, s: v.listed("a/t/#"),
    "subscribed_to": lambda v, s: v.subscribed_to(topic_of(v)),
    "fetch": lambda v, s: v.fetch(s, None, 1000),
    "has_pending": lambda v, s: v.has_pending(s, None),
    "unacknowledged": lambda v, s: anext(aiter(v.unacknowledged(s))),
    "read": lambda v, s: v.read(topic_of(v), 1, 1000),
    "scan": lambda v, s: v.scan([(topic_of(v), 1, 2)]),
    "locate": lambda v, s: v.locate(topic_of(v), 0),
    "offset_at": lambda v, s: v.offset_at(topic_of(v), 1, 1),
    "measure": lambda v, s: v.measure(topic_of(v), 1),
    "ack": lambda v, s: v.ack(s, topic_of(v), 1, 2),
    "ack_all": lambda v, s: v.ack_all(s, topic_of(v), [(1, 2)]),
    "check_offset": lambda v, s: v.check_offset(topic_of(v), 1),
    "rewind": lambda v, s: v.rewind(s, topic_of(v), 1),
    "skip": lambda v, s: v.skip("a/t", 1, 2),
    "move": lambda v, s: v.move(s, topic_of(v), 1),
    "make_topic": lambda v, s: v.make_topic("a/t"),
    "empty_topic": lambda v, s: v.empty_topic("a/t"),
    "next_offset": lambda v, s: v.next_offset("a/t"),
    "end_subscription": lambda v, s: v.end_subscription(s),
}
# What concerns only names of one's own, or nothing that anybody has: each works, and says nothing of others.
OWN: dict[str, Doing] = {
    "publish_all": lambda v, s: _same(v.publish_all([("a/t", 3, b"x", "")]), 1),
    "may_publish": lambda v, s: _same(v.may_publish("a/t"), False),
    "sees_all": lambda v, s: _same(v.sees_all(), False),
    "may_query": lambda v, s: _same(v.may_query(), False),
    "begin_transaction": lambda v, s: _same(v.begin_transaction("flight/p")[0], 0),
    "prepare_transaction": lambda v, s: v.prepare_transaction("flight/p", 0),
    "commit_transaction": lambda v, s: v.commit_transaction("flight/p", 5),
    "abort_transaction": lambda v, s: v.abort_transaction("flight/p", 5),
    "is_committed": lambda v, s: _same(v.is_committed("flight/p", 0), False),
    "last_transaction": lambda v, s: _same(v.last_transaction("flight/p"), -1),
    "transaction_label": lambda v, s: _same(v.transaction_label("flight/p", 0), None),
    "new_client": lambda v, s: v.new_client(),
    "open_session": lambda v, s: v.open_session("devices/x", object()),
    "session_holder": lambda v, s: _same(v.session_holder("devices/y"), None),
    "close_session": lambda v, s: _same(v.close_session("devices/y", object()), False),
    "consumer": lambda v, s: v.consumer("c").resume(),
    "stats": lambda v, s: _same(set(v.stats()), {"position", "uptime"}),
    "client_lines": lambda v, s: _empty(v.client_lines("", 100)),
    "subscription_lines": lambda v, s: _empty(v.subscription_lines(("", ""), 100)),
    "lagging_lines": lambda v, s: _empty(v.lagging_lines(100)),
    "subscription_named": lambda v, s: _unknown(v.subscription_named, "users/owner/c", "a/t"),
    "durable_subscriptions": lambda v, s: _same(v.durable_subscriptions(), []),
}
# What a door needs to go on with what it has, or of which nothing can be hidden.
PLAIN = {
    "check_alive",
    "check_lengths",
    "check_longest",
    "check_mark",
    "answer",
    "commit",
    "group",
    "leave",
    "mark",
    "next_position",
    "pace",
    "principal",
    "unwatch",
    "visible_position",
}


def _same(found: object, expected: object) -> None:
    assert found == expected


def _unknown(find: Callable[..., object], *names: str) -> None:
    with pytest.raises(NotSubscribed):
        find(*names)


async def _empty(lines: Awaitable[list[Any]]) -> None:
    assert await lines == []


def topic_of(of: GuardedBroker) -> Any:
    return of._broker.topic("a/t")


def test_every_verb_is_in_these_tables() -> None:
    public = {name for name in dir(GuardedBroker) if not name.startswith("_")}
    assert public == {*REFUSED, *OWN, *PLAIN}


async def _prepared(users: Users = USERS) -> tuple[Broker, Any]:
    broker = await opened(users)
    ann = verbs(broker, "ann")
    ann.open_session("devices/y", object())
    subscription = ann.subscribe("flight/c", "a/t")
    ann.publish("a/t", b"secret")
    ann.begin_transaction("flight/p")
    ann.stage("flight/p", 0, "x", "a/t", [(3, b"staged")])
    ann.commit_transaction("flight/p", 0, label="written by ann")
    await broker.commit()
    return broker, subscription


async def _do(doing: Doing, of: GuardedBroker, subscription: Any) -> None:
    done = doing(of, subscription)
    if isinstance(done, Awaitable):
        await done


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_verb_is_refused_to_those_who_may_not(name: str) -> None:
    async def work() -> None:
        broker, subscription = await _prepared()
        for who in ("nobody", "bob"):
            with pytest.raises(NotPermitted):
                await _do(REFUSED[name], verbs(broker, who), subscription)
        assert broker.topic("a/t").next == 3
        await broker.close()

    run(work())


@pytest.mark.parametrize("name", sorted(OWN))
def test_what_is_ones_own_shows_nothing_of_others(name: str) -> None:
    async def work() -> None:
        broker, subscription = await _prepared()
        await _do(OWN[name], verbs(broker, "nobody"), subscription)
        await broker.close()

    run(work())


@pytest.mark.parametrize("name", sorted({**REFUSED, **OWN}.keys() - {"session_holder", "close_session"}))
def test_nobody_does_anything_who_is_no_user_any_more(name: str) -> None:
    async def work() -> None:
        broker, subscription = await _prepared()
        ann = verbs(broker, "ann")
        broker.security.replace(USERS.with_user("ann", None))
        with pytest.raises(NotAuthenticated):
            await _do({**REFUSED, **OWN}[name], ann, subscription)
        await broker.close()

    run(work())


def test_who_publishes_does_not_say_how_long_messages_stay() -> None:
    async def work() -> None:
        broker = await opened(
            USERS.with_user("poet", user("publish a/#")).with_user("keeper", user("administer a/#"))
        )
        assert verbs(broker, "poet").make_topic("a/new")
        with pytest.raises(NotPermitted):
            verbs(broker, "poet").make_topic("a/new", keep=Retention(messages=0))
        with pytest.raises(NotPermitted):
            verbs(broker, "keeper").make_topic("a/other", keep=Retention(messages=5))
        assert not verbs(broker, "keeper").make_topic("a/new", keep=Retention(messages=5))
        assert broker.topic("a/new").retention == Retention(messages=5)
        await broker.close()

    run(work())


# --- what is seen


@pytest.mark.parametrize("filter_", ["#", "+/+", "a/#", "#/t", "*", "a/+", "#/#"])
def test_a_filter_is_cut_down_to_what_is_allowed(filter_: str) -> None:
    async def work() -> None:
        broker = await opened()
        admin, bob = verbs(broker, "admin"), verbs(broker, "bob")
        admin.subscribe("keeps", "#")
        admin.publish("a/shared", b"held before", create=True)
        admin.publish("a/t", b"secret before", create=True)
        await broker.commit()
        subscription = bob.subscribe("flight/c", filter_, earliest=True)
        await bob.begun(subscription)
        consumer = bob.consumer("watch/w")
        consumer.subscribe(filter_, durable=False, last_of="a/t")
        for name in ("a/t", "a/new", "a/shared", "b/t"):
            admin.publish(name, name.encode(), create=True)
        await broker.commit()
        allowed = [name.encode() for name in ("a/shared", "b/t") if subscription.covers(name)]
        held = [b"held before"] if subscription.covers("a/shared") else []
        assert texts(await bob.fetch(subscription, None, 1 << 20)) == [*held, *allowed]
        assert await taken(consumer) == allowed
        assert {topic.name for topic in await bob.matched_by(subscription)} <= {"a/shared", "b/t"}
        assert {topic.name for topic in await bob.listed(filter_)} <= {"a/shared", "b/t"}
        line = (await bob.subscription_lines(("", ""), 10))[0]
        assert line.topics == len(await bob.matched_by(subscription))
        await broker.close()

    run(work())


def test_a_filter_that_reaches_further_is_refused_where_that_is_configured() -> None:
    async def work() -> None:
        broker = await opened(filters="refuse")
        bob = verbs(broker, "bob")
        for filter_ in ("#", "a/#", "+/shared", "#/b"):
            with pytest.raises(NotPermitted):
                bob.subscribe("c", filter_)
            with pytest.raises(NotPermitted):
                await bob.listed(filter_)
        bob.subscribe("c", "b/#")
        bob.subscribe("c", "b/+/x/#")
        bob.subscribe("c", "a/shared")
        await broker.close()

    run(work())


def test_whether_a_topic_exists_is_not_said_to_those_who_may_do_nothing_with_it() -> None:
    async def work() -> None:
        broker, _ = await _prepared()
        said = []
        for name in ("a/t", "a/none"):
            doings: list[Callable[[GuardedBroker], object]] = [
                methodcaller("topic", name),
                methodcaller("publish", name, b""),
                methodcaller("subscription", "c", name),
                methodcaller("unsubscribe", "c", name),
                methodcaller("subscribe", "c", name),
            ]
            for doing in doings:
                with pytest.raises(NotPermitted) as caught:
                    doing(verbs(broker, "bob"))
                said.append(str(caught.value).replace(name, "it"))
        assert said[:5] == said[5:]
        with pytest.raises(NoSuchTopic):
            verbs(broker, "ann").topic("a/none")
        await broker.close()

    run(work())


@pytest.mark.parametrize("name", ["rollup/1m/b/t", "alerts/hot/b/t", "dead/b/t", "rollup/1m/rollup/1h/b/t"])
def test_what_jobs_make_of_a_topic_is_seen_only_with_the_topic(name: str) -> None:
    async def work() -> None:
        broker = await opened()
        admin, ann = verbs(broker, "admin"), verbs(broker, "ann")
        admin.subscribe("keeps", "#")
        admin.publish(name, b"of b", create=True)
        admin.publish(name.replace("/b/", "/a/"), b"of a", create=True)
        await broker.commit()
        first = name.partition("/")[0]
        assert [topic.name for topic in await ann.listed(f"{first}/#")] == [name.replace("/b/", "/a/")]
        with pytest.raises(NotPermitted):
            ann.subscribe("c", name)
        with pytest.raises(NotPermitted):
            ann.topic(name)
        await broker.close()

    run(work())


def test_only_the_pipeline_publishes_to_the_topics_of_its_jobs() -> None:
    async def work() -> None:
        users = USERS.with_user("writer", user("publish #", "publish $sys/#"))
        broker = await opened(users)
        for name in ("rollup/1m/a", "alerts/hot/a", "dead/a", "$sys/pipeline/x", "$sys/audit"):
            with pytest.raises(NotPermitted):
                verbs(broker, "writer").publish(name, b"forged", create=True)
            assert not verbs(broker, "writer").may_publish(name)
        assert verbs(broker, "admin").publish("rollup/1m/a", b"x", create=True) == 1
        await broker.close()

    run(work())


def test_the_clients_own_level_is_compared_and_never_a_pattern() -> None:
    async def work() -> None:
        broker = await opened()
        home = verbs(broker, "home")
        home.subscribe("keeps", "home/home/#")
        assert home.publish("home/home/lamp", b"on", producer="lamp") == 1
        for client in ("#", "+", "*", "a/b", "%c", "%u", "lamp/..", ""):
            for name in ("home/home/lamp", "home/home/x", "home/other/lamp", "home/home/a/b", "home/home/"):
                with pytest.raises(NotPermitted):
                    home.publish(name, b"forged", producer=client)
        for filter_ in ("home/%u/#", "home/+/#", "home/#"):
            subscription = home.subscribe("c", filter_) if filter_ != "home/%u/#" else None
            assert subscription is None or not subscription.covers("home/other/lamp")
        with pytest.raises(NotPermitted):
            home.subscribe("c", "home/%u/#")
        await broker.close()

    run(work())


# --- whose names are


def test_names_are_their_users_own() -> None:
    async def work() -> None:
        broker = await opened(USERS.with_user("cat", user("all a/#")))
        ann, cat = verbs(broker, "ann"), verbs(broker, "cat")
        ann.subscribe("flight/archive", "a/t")
        with pytest.raises(NotSubscribed):
            cat.subscription("flight/archive", "a/t")
        assert cat.subscribe("flight/archive", "a/t") is not ann.subscription("flight/archive", "a/t")
        cat.unsubscribe("flight/archive", "a/t")
        assert ann.subscription("flight/archive", "a/t").filter == "a/t"
        # Nobody says another's name by writing its prefix.
        for name in ("users/ann/flight/archive", "users/", "users/cat/x", "counter/users/ann/flight/p"):
            doings: list[Callable[[GuardedBroker], object]] = [
                methodcaller("subscription", name, "a/t"),
                methodcaller("subscribe", name, "a/t"),
                methodcaller("publish", "a/t", b"", producer=name),
                methodcaller("consumer", name),
                methodcaller("begin_transaction", name),
                methodcaller("session_holder", name),
            ]
            for doing in doings:
                with pytest.raises(InvalidClient):
                    doing(cat)
        # A producer's numbers, and its transactions.
        assert ann.publish_sequence("a/t", [b"x"], "flight/p", 1) == (1, 1)
        assert cat.next_sequence("a/t", "flight/p") == 1
        assert cat.publish_sequence("a/t", [b"y"], "flight/p", 1) == (2, 2)
        counter, attempt = ann.begin_transaction("flight/p")
        cat.begin_transaction("flight/p")
        cat.abort_transaction("flight/p", counter)
        ann.stage_batch("flight/p", counter, "x", "a/t", BATCH, attempt=attempt)
        assert not cat.is_committed("flight/p", counter)
        ann.commit_transaction("flight/p", counter, attempt=attempt)
        await broker.commit()
        # A session, which two users may have by the same id.
        one, two = object(), object()
        ann.open_session("devices/d", one)
        cat.open_session("devices/d", two)
        assert not cat.close_session("devices/d", one)
        assert ann.session_holder("devices/d") is one
        await broker.close()

    run(work())


def test_names_are_their_users_after_a_restart_and_those_from_before_one_users() -> None:
    async def work() -> None:
        store = MemoryStore()
        before = await Broker.open(store)
        before.subscribe("flight/old", "a/t")
        before.publish("a/t", b"1")
        await before.close()
        broker = await opened(store=store)
        with pytest.raises(NotSubscribed):
            verbs(broker, "ann").subscription("flight/old", "a/t")
        verbs(broker, "ann").subscribe("flight/new", "a/t", earliest=True)
        await broker.close()
        users = USERS.with_user("admin", None).with_user("heir", user("all a/#", plain_names=True))
        broker = await opened(users, store=store)
        heir, ann = verbs(broker, "heir"), verbs(broker, "ann")
        assert texts(await heir.fetch(heir.subscription("flight/old", "a/t"), None, 1000)) == [b"1"]
        assert texts(await ann.fetch(ann.subscription("flight/new", "a/t"), None, 1000)) == [b"1"]
        with pytest.raises(NotSubscribed):
            heir.subscription("flight/new", "a/t")
        with pytest.raises(InvalidClient):
            heir.subscription("users/ann/flight/new", "a/t")
        assert [line.client for line in await heir.client_lines("", 10)] == ["flight/old"]
        assert [line.client for line in await ann.client_lines("", 10)] == ["flight/new"]
        await broker.close()

    run(work())
