"""A broker that comes back with an older log: who has read more of it notices, says so, and goes on when told to."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stafeta
from stafeta import Client
from stafeta.clients.flight.subscription import Subscription
from stafeta.errors import DataLoss, Refused
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, numbered
from tests.doors.zeromq.blocking import KINDS_OF_CLIENT
from tests.waiting import PATIENCE

KEEP = ("--set", 'topics."#".keep=1000000000 messages')
BACKED_UP, READ = 80, 100


class Losing:
    """A broker of which a backup was made, and that is set back to it."""

    def __init__(self, folder: Path) -> None:
        self.process = BrokerProcess(folder / "data", *KEEP, doors=("flight",))
        self._backup = folder / "backup"

    @property
    def address(self) -> str:
        return self.process.flight

    def publish(self, texts: list[str], topic: str = "t/a") -> None:
        with Peer(self.process.door("flight")) as peer:
            peer.put_texts(topic, texts)

    def back_up(self) -> None:
        self.process.kill()
        shutil.copytree(self.process.data, self._backup)
        self.process.start()

    def set_back(self, *, cut: bool = False) -> None:
        self.process.kill()
        shutil.rmtree(self.process.data)
        if not cut:
            shutil.copytree(self._backup, self.process.data)
        self.process.start()


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[Losing]:
    one = Losing(tmp_path)
    with one.process:
        yield one


def texts(subscription: Subscription, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        batch = next(subscription)
        found += [payload.decode() for payload in batch.payloads()]
        batch.ack()
    return found


def settled(subscriptions: list[Subscription]) -> None:
    for one in subscriptions:
        one.flush()


@pytest.mark.parametrize("kind", KINDS_OF_CLIENT)
def test_clients_with_a_folder_notice(losing: Losing, tmp_path: Path, kind: str) -> None:
    def client(name: str) -> Client:
        return KINDS_OF_CLIENT[kind](losing.process.address, tmp_path / name)

    with client("filter") as one, client("topic") as other:
        one.subscribe("t/#")
        other.subscribe("t/a")
        losing.publish(numbered(5))
        losing.back_up()
        losing.publish(numbered(5, 6))
        assert [got(one, "t/#", 10), got(other, "t/a", 10)] == [numbered(10)] * 2
    losing.process.restart()
    with client("filter") as one, client("topic") as other:
        one.subscribe("t/#")
        other.subscribe("t/a")
        losing.publish(["after a restart"])
        assert [got(one, "t/#", 1), got(other, "t/a", 1)] == [["after a restart"]] * 2
        held = one.get("t/#", wait=0.0)
        assert held is None
        losing.publish(["not acknowledged"])
        held = other.get("t/a", wait=PATIENCE)
        assert held is not None
        losing.set_back()
        new = [f"new {number}" for number in range(20)]
        losing.publish(new)
        with pytest.raises(DataLoss, match=r"The broker has lost messages .* accept_loss\(topic\) goes on"):
            one.get("t/#", wait=PATIENCE)
        with pytest.raises(DataLoss):
            other.ack(held)
    with client("filter") as one, client("topic") as other:
        for _ in range(2):
            with pytest.raises(DataLoss):
                one.subscribe("t/#")
        with pytest.raises(DataLoss):
            other.get("t/a")
        assert one.accept_loss("t/#") == other.accept_loss("t/a") == 0
        # What was acknowledged after the backup comes again.
        assert [got(one, "t/#", 25), got(other, "t/a", 25)] == [[*numbered(5), *new]] * 2


def test_a_client_that_begins_anew_need_not_accept_it(losing: Losing, tmp_path: Path) -> None:
    with Client(losing.process.address, tmp_path / "client") as client:
        client.subscribe("t/a")
        losing.publish(numbered(3))
        assert got(client, "t/a", 3) == numbered(3)
        losing.set_back(cut=True)
        with pytest.raises(DataLoss):
            client.subscribe("t/a")
        with pytest.raises(Refused):
            client.unsubscribe("t/a")  # of which the broker knows nothing
        assert client.subscribe("t/a") == 0
        losing.publish(["new"])
        assert got(client, "t/a", 1) == ["new"]


def got(client: Client, topic: str, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        messages = client.get_many(topic, wait=PATIENCE)
        found += [message.text for message in messages]
        client.ack(messages)
    return found


@pytest.mark.parametrize("since", [5, 40], ids=["shorter", "longer"])
def test_flight_subscriptions_notice(losing: Losing, since: int) -> None:
    losing.publish(numbered(BACKED_UP))
    with ExitStack() as stack:
        broker = stack.enter_context(stafeta.connect(losing.address, timeout=PATIENCE))
        broker.hold("t/#", name="filter", start="earliest")
        losing.back_up()
        named = [
            stack.enter_context(broker.subscribe("t/#", name="filter", start="earliest")),
            # Of this one the backup knows nothing.
            stack.enter_context(broker.subscribe("t/a", name="topic", start="earliest")),
        ]
        live = [stack.enter_context(broker.subscribe(what, start="earliest")) for what in ("t/#", "t/a")]
        losing.publish(numbered(READ - BACKED_UP, BACKED_UP + 1))
        before = [texts(one, READ) for one in (*named, *live)]
        assert before == [numbered(READ)] * 4
        settled(named)
        losing.process.restart()
        losing.publish(["after a restart"])
        assert [texts(one, 1) for one in (*named, *live)] == [["after a restart"]] * 4
        losing.publish(["acknowledged late"])
        late = next(named[0])
        assert [texts(one, 1) for one in (*named[1:], *live)] == [["acknowledged late"]] * 3
        losing.set_back()
        new = [f"new {number}" for number in range(since)]
        losing.publish(new)
        for one in (*named, *live):
            for _ in range(2):
                with pytest.raises(
                    DataLoss, match=r"The broker has lost messages .* accept_loss\(\) goes on"
                ):
                    next(one)
            one.accept_loss()
            assert texts(one, BACKED_UP + since)[-since:] == new
        late.ack()  # it is not there any more; others must not be acknowledged in its place
        settled(named)
        cursors = [
            broker.cursors(one.filter, name=name)
            for one, name in zip(named, ("filter", "topic"), strict=True)
        ]
        assert cursors == [{"t/a": BACKED_UP + since + 1}] * 2


def test_asyncio_subscriptions_notice(losing: Losing) -> None:
    async def main() -> None:
        async with (
            stafeta.connect_async(losing.address, timeout=PATIENCE) as broker,
            broker.subscribe("t/#", name="n", start="earliest") as subscription,
        ):
            await asyncio.to_thread(losing.publish, ["old"])
            (await anext(subscription)).ack()
            await subscription.flush()
            await asyncio.to_thread(losing.set_back, cut=True)
            await asyncio.to_thread(losing.publish, ["new", "newer"])
            with pytest.raises(DataLoss):
                await anext(subscription)
            await subscription.accept_loss()
            assert (await anext(subscription)).payloads() == [b"new", b"newer"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS_OF_CLIENT)
def test_a_client_that_has_only_subscribed_is_told_of_the_loss_too(
    losing: Losing, kind: str, tmp_path: Path
) -> None:
    losing.publish(["before"])
    losing.back_up()
    losing.publish(["lost"] * 10)
    with KINDS_OF_CLIENT[kind](losing.process.address, tmp_path / "client") as client:
        assert client.subscribe("t/a") == 11
        losing.set_back()
        losing.publish(["other"] * 5)
        with pytest.raises(DataLoss):
            client.subscribe("t/a")
        assert client.accept_loss("t/a") == 6
