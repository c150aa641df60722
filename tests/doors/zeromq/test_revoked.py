"""What becomes of those who wait at the ZeroMQ door, and of their connections, when they may no longer."""

import asyncio
import ctypes
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import zmq
import zmq.asyncio

from stafeta.broker import Broker
from stafeta.curve import KeyPair
from stafeta.doors.zeromq.server import ZeroMQDoor
from stafeta.security import Security, User, Users
from stafeta.security.rules import Rule
from stafeta.testing import MemoryStore
from tests.waiting import PATIENCE, comes_true


def user(*allow: str, keys: tuple[str, ...] = ()) -> User:
    return User(allow=tuple(map(Rule.read, allow)), curve_keys=keys)


USERS = Users({"guest": user("all a/#"), "other": user("all b/#")}, doors={"zeromq": "guest"})
Doing = Callable[[Broker, ZeroMQDoor, str], Awaitable[None]]


def pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def work(users: Users, doing: Doing, keys: KeyPair | None = None) -> None:
    async def life() -> None:
        broker = await Broker.open(MemoryStore(), security=Security(users))
        door = ZeroMQDoor(
            broker,
            max_frame=1 << 20,
            get_reply=1 << 16,
            max_backlog=1 << 20,
            max_connections=100,
            peer_timeout=PATIENCE,
            keys=keys,
        )
        address = door.listen("127.0.0.1", 0)
        door.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await doing(broker, door, address)
        finally:
            await door.close()
            await broker.close()

    asyncio.run(life())


class Peer:
    def __init__(
        self, address: str, name: bytes = b"", server: KeyPair | None = None, own: KeyPair | None = None
    ) -> None:
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        if name:
            self.socket.identity = name
        if server is not None and own is not None:
            self.socket.curve_serverkey = server.public.encode()
            self.socket.curve_publickey = own.public.encode()
            self.socket.curve_secretkey = own.secret.encode()
        self.socket.connect(address)

    async def send(self, type_: str, topic: str = "", **body: object) -> None:
        asked = {"type": type_, "client_id": "c", "topic": topic, "body": body}
        await self.socket.send_multipart([b"", orjson.dumps(asked)])

    async def ask(self, type_: str, topic: str = "", **body: object) -> dict[str, Any]:
        await self.send(type_, topic, **body)
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        _, answer = await self.socket.recv_multipart()
        found: dict[str, Any] = orjson.loads(answer)
        return found


WAITING: dict[str, tuple[str, str, dict[str, object]]] = {
    "get": ("GET", "a/t", {"limit": 10, "wait": 30, "last_publication_id": 0}),
    "get of a filter": ("GET", "a/#", {"limit": 10, "wait": 30, "last_publication_id": 0}),
    "wait": ("WAIT", "", {"topics": ["a/#"], "wait": 30}),
    "watch": ("WATCH", "", {"filters": ["a/#"], "wait": 30}),
}


@pytest.mark.parametrize("what", sorted(WAITING))
@pytest.mark.parametrize("gone", ["the permission", "the user"])
def test_who_waits_is_told_at_once_that_he_may_no_longer(what: str, gone: str) -> None:
    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        peer = Peer(address)
        for filter_ in ("a/t", "a/#"):
            assert (await peer.ask("SUB", filter_))["type"] == "ACK"
        type_, topic, body = WAITING[what]
        await peer.send(type_, topic, **body)
        await comes_true(lambda: any(one.watchers for one in _subscriptions(broker)))
        began = asyncio.get_running_loop().time()
        users = Users({**USERS.users, "guest": user("all c/#")}, doors=USERS.doors)
        broker.security.replace(users if gone == "the permission" else Users({"other": User()}))
        answer = await peer.answer()
        assert answer["type"] == "NAK"
        assert asyncio.get_running_loop().time() - began < 25, "it has waited for its time"
        peer.socket.close()

    work(USERS, doing)


def _subscriptions(broker: Broker) -> list[Any]:
    return [one for filters in broker.clients.values() for one in filters.values()]


def test_who_waits_goes_on_where_nothing_was_taken_from_him() -> None:
    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        peer, publisher = Peer(address), Peer(address)
        await peer.send("WATCH", filters=["a/#"], wait=30)
        await comes_true(lambda: any(one.watchers for one in _subscriptions(broker)))
        broker.security.replace(Users({"guest": user("all a/t")}, doors=USERS.doors))
        assert (await publisher.ask("PUT", "a/t", publication="still"))["type"] == "ACK"
        assert [one["text"] for one in (await peer.answer())["body"]["publications"]] == ["still"]
        peer.socket.close()
        publisher.socket.close()

    work(USERS, doing)


async def _ended(peer: Peer) -> None:
    monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        await monitor.recv_multipart()
    finally:
        peer.socket.disable_monitor()
        monitor.close(0)


def test_the_connections_of_a_user_who_has_gone_are_ended_and_no_others() -> None:
    server, ann, bob = pair(), pair(), pair()
    users = Users({"ann": user("all a/#", keys=(ann.public,)), "bob": user("all a/#", keys=(bob.public,))})

    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        hers, his = Peer(address, server=server, own=ann), Peer(address, server=server, own=bob)
        for peer in (hers, his):
            assert (await peer.ask("TOPICS"))["type"] == "ACK"
        ended = asyncio.ensure_future(_ended(hers))
        others = asyncio.ensure_future(_ended(his))
        await asyncio.sleep(0)
        broker.security.replace(users.with_user("ann", None))
        await ended
        assert (await his.ask("TOPICS"))["type"] == "ACK"
        assert not others.done()
        others.cancel()
        await asyncio.wait([others])
        for peer in (hers, his):
            peer.socket.close()

    work(users, doing, server)


def test_nobody_is_taken_for_another_by_the_name_of_his_connection() -> None:
    """ZeroMQ gives connections names, which begin with a zero; a client may claim such a one."""
    server, ann, bob = pair(), pair(), pair()
    users = Users({"ann": user("all a/#", keys=(ann.public,)), "bob": user("all b/#", keys=(bob.public,))})

    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        hers = Peer(address, server=server, own=ann)
        assert (await hers.ask("SUB", "a/t"))["type"] == "ACK"
        (name,) = door._peers.keys
        # While she is there, it is not his, and what is answered is hers.
        his = Peer(address, name, server, bob)
        await his.send("PUT", "a/t", publication="forged")
        assert (await hers.ask("PUT", "a/t", publication="real"))["type"] == "ACK"
        hers.socket.close()
        his.socket.close()
        # And when she has gone it is, and he is himself.
        answer: dict[str, Any] = {}
        while not answer:
            his = Peer(address, name, server, bob)
            try:
                async with asyncio.timeout(1):
                    answer = await his.ask("PUT", "a/t", publication="forged")
            except TimeoutError:
                pass
            his.socket.close()
        assert answer["type"] == "NAK"
        assert "'bob' may not publish" in answer["body"]["error_message"]
        assert broker.topic("a/t").next == 2

    work(users, doing, server)


def test_the_names_of_connections_cannot_be_foreseen() -> None:
    """ZeroMQ draws the first one by rand(), whose first number is known."""
    names: set[bytes] = set()

    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        peer = Peer(address)
        assert (await peer.ask("TOPICS"))["type"] == "ACK"
        names.update(door._peers.sources)
        peer.socket.close()

    for _ in range(2):
        ctypes.CDLL(None).srand(1)
        work(USERS, doing)
    assert len(names) == 2


def test_a_name_that_comes_next_is_not_claimed_by_whose_key_is_not_known() -> None:
    server, ann, mallory = pair(), pair(), pair()
    users = Users({"ann": user("all a/#", keys=(ann.public,))})

    async def doing(broker: Broker, door: ZeroMQDoor, address: str) -> None:
        first = Peer(address, server=server, own=ann)
        assert (await first.ask("TOPICS"))["type"] == "ACK"
        (name,) = door._peers.keys
        following = b"\0" + (int.from_bytes(name[1:], "big") + 1 & 0xFFFFFFFF).to_bytes(4, "big")
        stranger = Peer(address, following, server, mallory)
        monitor = stranger.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        await monitor.recv_multipart()
        second = Peer(address, server=server, own=ann)
        assert (await second.ask("TOPICS"))["type"] == "ACK"
        assert list(door._peers.keys) == [name, following]
        stranger.socket.disable_monitor()
        monitor.close(0)
        for peer in (first, stranger, second):
            peer.socket.close()

    work(users, doing, server)
