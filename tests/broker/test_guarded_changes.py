"""What users lose while they use it, and how much they may have."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stafeta.broker import Broker, Limits
from stafeta.cli.main import main
from stafeta.errors import LimitReached, NotAuthenticated, NotPermitted, NotSubscribed
from stafeta.message import RowBatch
from stafeta.security import Principal, Security, Token, Users
from stafeta.security.users import hash_token, now
from stafeta.store.sqlite import SqliteStore
from stafeta.testing.memory import MemoryStore
from tests.broker.principals import USERS, opened, taken, texts, user, verbs
from tests.broker.stores import run

BATCH = RowBatch("a/t", 0, [(0, 0, "", "", 3, None, b"x")])


# --- what is taken away

Changed = Callable[[Users], Users]


def without(name: str, *allow: str) -> Changed:
    return lambda users: users.with_user(name, user(*allow))


@pytest.mark.parametrize("filter_", ["a/t", "a/#", "#"])
@pytest.mark.parametrize(
    "change", [without("ann", "all a/other"), lambda users: users.with_user("ann", None)]
)
def test_what_is_taken_away_ends_what_is_running(filter_: str, change: Changed) -> None:
    async def work() -> None:
        store = MemoryStore()
        broker = await opened(store=store)
        admin, ann = verbs(broker, "admin"), verbs(broker, "ann")
        admin.subscribe("keeps", "#")
        durable = ann.subscribe("flight/c", filter_)
        consumer = ann.consumer("devices/d")
        consumer.subscribe(filter_, durable=True, persistent=True)
        admin.publish("a/t", b"before", create=True)
        await broker.commit()
        assert texts(await ann.fetch(durable, None, 1000)) == [b"before"]
        broker.security.replace(change(USERS))
        await broker.commit()
        verbs(broker, "admin").publish("a/t", b"after")
        await broker.commit()
        assert durable.cursors == {}
        assert await taken(consumer) == []
        await broker.close()
        # Nor does it come back with the broker, or with the permission.
        broker = await opened(store=store)
        ann = verbs(broker, "ann")
        try:
            found = await ann.fetch(ann.subscription("flight/c", filter_), None, 1000)
        except NotSubscribed:
            found = []
        assert texts(found) == []
        await broker.close()

    run(work())


def test_nothing_is_handed_out_that_was_taken_away_also_before_its_cursors_are_gone() -> None:
    """There may be very many of them."""

    async def work() -> None:
        broker = await opened()
        admin, ann = verbs(broker, "admin"), verbs(broker, "ann")
        names = [f"a/{number}" for number in range(5000)]
        consumer = ann.consumer("flight/c")
        consumer.subscribe("a/#", durable=False)
        for name in names:
            admin.publish(name, name.encode(), create=True)
        await broker.commit()
        broker.security.replace(without("ann", "consume a/4999")(USERS))
        assert await taken(consumer) == [b"a/4999"]
        admin.publish("a/4998", b"after")
        await broker.commit()
        assert await taken(consumer) == []
        await broker.close()

    run(work())


def test_what_may_be_published_is_forgotten_when_users_change() -> None:
    async def work() -> None:
        token = Token("ann", hash_token("a"), now())
        other = Token("ann", hash_token("b"), now())
        users = replace(USERS, tokens={"one": token, "other": other})
        broker = await opened(users)
        principals = [
            Principal("ann", "", "test", "10.0.0.1:1", f"token {name}") for name in ("one", "other")
        ]
        one, two = map(broker.for_principal, principals)
        for _ in range(3):
            one.publish("a/t", b"", create=True)
            two.publish("a/t", b"", create=True)
        broker.security.replace(replace(users, tokens={"other": other}))
        two.publish("a/t", b"", create=True)  # which remembers it anew, and not for the other
        with pytest.raises(NotAuthenticated):
            one.publish("a/t", b"", create=True)
        broker.security.replace(without("ann", "consume a/#")(broker.security.users))
        with pytest.raises(NotPermitted):
            two.publish("a/t", b"", create=True)
        assert broker.topic("a/t").next == 8
        await broker.close()

    run(work())


def test_a_token_that_expires_takes_what_may_be_published_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        soon = now() + timedelta(days=1)
        tokens = {
            "short": Token("ann", hash_token("a"), now(), soon),
            "long": Token("ann", hash_token("b"), now()),
        }
        broker = await opened(replace(USERS, tokens=tokens))
        security = broker.security
        short = broker.for_principal(security.identify(door="test", address="", token="a"))
        long = broker.for_principal(security.identify(door="test", address="", token="b"))
        short.publish("a/t", b"", create=True)
        monkeypatch.setattr("time.time", lambda: soon.timestamp() + 1)
        security._expired()
        long.publish("a/t", b"", create=True)
        with pytest.raises(NotAuthenticated, match="expired"):
            short.publish("a/t", b"", create=True)
        await broker.close()

    run(work())


def test_what_was_taken_away_while_the_broker_was_down_is_gone_when_it_starts() -> None:
    async def work() -> None:
        store = MemoryStore()
        broker = await opened(store=store)
        verbs(broker, "admin").subscribe("keeps", "#")
        ann = verbs(broker, "ann")
        ann.subscribe("devices/d", "a/#")
        ann.publish("a/t", b"backlog", create=True)
        ann.publish("a/other", b"allowed still", create=True)
        await broker.close()
        broker = await opened(without("ann", "all a/other")(USERS), store=store)
        consumer = verbs(broker, "ann").consumer("devices/d")
        consumer.resume()
        assert await taken(consumer) == [b"allowed still"]
        await broker.close()

    run(work())


def test_what_is_allowed_anew_comes_to_a_filter_that_runs() -> None:
    async def work() -> None:
        broker = await opened()
        bob, admin = verbs(broker, "bob"), verbs(broker, "admin")
        subscription = bob.subscribe("flight/c", "#")
        admin.publish("b/t", b"b", create=True)
        broker.security.replace(USERS.with_user("bob", user("consume c/#")))
        admin.publish("c/t", b"c", create=True)
        await broker.commit()
        assert texts(await bob.fetch(subscription, None, 1000)) == [b"c"]
        await broker.close()

    run(work())


def test_a_transaction_is_not_committed_to_what_is_no_longer_allowed() -> None:
    async def work() -> None:
        broker = await opened()
        verbs(broker, "admin").subscribe("keeps", "a/t")
        ann = verbs(broker, "ann")
        counter, attempt = ann.begin_transaction("flight/p")
        ann.stage_batch("flight/p", counter, "x", "a/t", BATCH, attempt=attempt)
        await broker.commit()
        broker.security.replace(without("ann", "consume a/#")(USERS))
        with pytest.raises(NotPermitted):
            ann.commit_transaction("flight/p", counter, attempt=attempt)
        await broker.commit()
        assert broker.topic("a/t").next == 1
        await broker.close()

    run(work())


# --- how much


def test_who_has_the_plain_names_is_told_of_subscriptions_of_his_own() -> None:
    async def work() -> None:
        broker = await opened(USERS.with_user("heir", user("consume a/#", plain_names=True)))
        heir = verbs(broker, "heir")
        verbs(broker, "ann").subscribe("c", "a/t")
        assert heir.subscribed_to(heir.topic("a/t")) == 0
        heir.subscribe("c", "a/t")
        assert heir.subscribed_to(heir.topic("a/t")) == 1
        await broker.close()

    run(work())


def test_a_user_has_so_many_subscriptions_and_topics() -> None:
    async def work() -> None:
        limits = Limits(max_user_subscriptions=2, max_user_topics=2)
        broker = await opened(limits=limits)
        ann = verbs(broker, "ann")
        ann.subscribe("c", "a/1")
        ann.subscribe("d", "a/2")
        with pytest.raises(LimitReached, match="max_user_subscriptions"):
            ann.subscribe("e", "a/1")
        assert ann.subscribe("c", "a/1").filter == "a/1"
        with pytest.raises(LimitReached, match="max_user_topics"):
            ann.publish("a/3", b"", create=True)
        ann.publish("a/1", b"")
        verbs(broker, "bob").publish("b/1", b"", create=True)
        ann.unsubscribe("d", "a/2")
        await broker.commit()
        ann.subscribe("e", "a/1")
        await broker.close()

    run(work())


def test_a_folder_with_names_of_users_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        broker = await Broker.open(SqliteStore(tmp_path), security=Security(USERS))
        ann = verbs(broker, "ann")
        subscription = ann.subscribe("flight/c", "a/#")
        for number in range(3):
            ann.publish_sequence("a/t", [b"x"], "flight/p", number + 1, create=True)
        await broker.commit()
        ann.ack(subscription, ann.topic("a/t"), 1, 3)
        ann.begin_transaction("flight/p")
        await broker.close()

    asyncio.run(work())
    for words in ([], ["--repair"]):
        assert main(["check", "--data", str(tmp_path), *words]) == 0
        assert "Sound: 3 messages" in capsys.readouterr().out
