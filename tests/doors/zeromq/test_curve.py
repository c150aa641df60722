"""CURVE at the ZeroMQ door: keys, who is let in, and who is not."""

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth

import stafeta
from stafeta import Client, Curve
from stafeta.broker import Broker
from stafeta.cli.main import main
from stafeta.config import Limits
from stafeta.curve import read_pair, write_pair
from stafeta.doors.zeromq.server import ZeroMQDoor
from stafeta.errors import ConfigError, NoReply, NotAuthenticated
from stafeta.security import Security, User, Users
from stafeta.security.rules import Rule
from stafeta.testing import MemoryStore
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the keys of a broker and of two clients."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("broker", "alice", "mallory"):
        write_pair(folder / name)
    return folder


@pytest.fixture(scope="module")
def secure(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    words = ("--set", f"zeromq.curve_key={folder / 'broker.key'}")
    with BrokerProcess(tmp_path_factory.mktemp("curve") / "data", *words) as broker:
        yield broker
        assert "Traceback" not in broker.stderr


def test_messages_go_and_come_encrypted(secure: BrokerProcess, folder: Path) -> None:
    curve = Curve(folder / "broker.pub", folder / "alice.key")
    with Client(secure.address, curve=curve) as client:
        client.subscribe("hall")
        client.put_many("hall", [f"text {number}" for number in range(2000)])
        got = client.get_many("hall", 2000)
        client.ack(got)
        assert got[0].data == b"text 0"


def test_a_client_without_a_key_of_its_own_is_encrypted_too(secure: BrokerProcess, folder: Path) -> None:
    with Client(secure.address, curve=Curve(read_pair(folder / "broker.key").public)) as client:
        assert client.stats()


def test_the_asyncio_client_has_it(secure: BrokerProcess, folder: Path) -> None:
    async def main() -> None:
        async with stafeta.AsyncClient(secure.address, curve=Curve(folder / "broker.pub")) as client:
            assert await client.stats()

    asyncio.run(main())


def test_who_does_not_come_to_terms_is_told_so(secure: BrokerProcess, tmp_path: Path, folder: Path) -> None:
    """Without CURVE, with it where there is none, and with another key of the broker's."""

    async def refused(address: str, curve: Curve | None) -> None:
        async with stafeta.AsyncClient(address, timeout=5.0, retries=1, curve=curve) as client:
            with pytest.raises(NoReply, match="either side wants CURVE, and not both, or it has another key"):
                await client.stats()

    async def main(plain: BrokerProcess) -> None:
        await asyncio.gather(
            refused(secure.address, None),
            refused(plain.address, Curve(folder / "broker.pub")),
            refused(secure.address, Curve(folder / "mallory.pub", folder / "alice.key")),
        )

    with BrokerProcess(tmp_path / "data") as plain:
        asyncio.run(main(plain))


def test_the_log_says_who_does_not_come_to_terms(secure: BrokerProcess, folder: Path) -> None:
    """ZeroMQ tries until it is closed."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as other:
        Curve(folder / "mallory.pub", folder / "alice.key").secure(other)
        for socket in (plain, other):
            socket.linger = 0
            socket.connect(secure.address)
        secure.wait_for_line("either side wants CURVE, not both")
        secure.wait_for_line("it expects another key of the broker's")


def test_a_connection_may_not_take_the_name_of_another(secure: BrokerProcess, folder: Path) -> None:
    """What is still to be answered under a name would go to whoever has the name then."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.identity = b"alice"
        Curve(folder / "broker.pub", folder / "mallory.key").secure(socket)
        socket.connect(secure.address)
        socket.send_multipart([b"", b"TOPICS"])
        secure.wait_for_line("the connection has a name of its own, which it may not have with CURVE")
        assert not socket.poll(0)


def test_whose_key_is_not_known_is_refused_and_others_are_served(folder: Path) -> None:
    alice = User(curve_keys=(read_pair(folder / "alice.key").public,), allow=(Rule.read("all #"),))

    async def main() -> None:
        security = Security(Users(users={"alice": alice}))
        broker = await Broker.open(MemoryStore(), Limits(), lambda name: None, 1 << 20, security)
        door = ZeroMQDoor(
            broker,
            max_frame=1 << 20,
            get_reply=1 << 16,
            max_backlog=1 << 20,
            max_connections=100,
            peer_timeout=PATIENCE,
            keys=read_pair(folder / "broker.key"),
        )
        address = door.listen("127.0.0.1", 0)
        door.start()

        async def ask(name: str) -> object:
            curve = Curve(folder / "broker.pub", folder / f"{name}.key")
            async with stafeta.AsyncClient(address, curve=curve, timeout=PATIENCE) as client:
                return await client.topics()

        try:
            for _ in range(3):
                answers = await asyncio.gather(
                    *(ask(name) for name in ("alice", "mallory") * 5), return_exceptions=True
                )
                assert all(isinstance(answer, list) for answer in answers[::2])
                assert all(isinstance(answer, NotAuthenticated) for answer in answers[1::2])
        finally:
            await door.close()
            await broker.close()

    asyncio.run(main())


def test_keys_are_written_once_and_for_their_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "alice"]) == 0
    printed = capsys.readouterr().out.strip()
    assert stat.S_IMODE((tmp_path / "alice.key").stat().st_mode) == 0o600
    public, secret = zmq.auth.load_certificate(tmp_path / "alice.key")
    assert (public.decode(), zmq.auth.load_certificate(tmp_path / "alice.pub")) == (printed, (public, None))
    assert secret is not None
    assert secret.decode() not in printed + (tmp_path / "alice.pub").read_text()
    assert secret.decode() not in repr(read_pair("alice.key"))
    before = (tmp_path / "alice.key").read_text()
    assert main(["keys", "alice"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "alice.key").read_text() == before


def test_a_secret_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    write_pair(tmp_path / "open")
    (tmp_path / "open.key").chmod(0o640)
    with pytest.raises(ConfigError, match="open to others than its owner"):
        read_pair(tmp_path / "open.key")
    (tmp_path / "open.pub").chmod(0o600)
    with pytest.raises(ConfigError, match="no secret key of CURVE"):
        read_pair(tmp_path / "open.pub")
