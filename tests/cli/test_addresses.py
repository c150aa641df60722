"""Commands and clients reach a broker by IPv6, and say of one that they do not where they have looked for it."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta as package
from stafeta.addresses import Address
from stafeta.cli import exits
from stafeta.clients.devices import Publisher, Subscriber
from stafeta.errors import NoReply, StafetaError
from stafeta.frames import JSONQueue
from stafeta.message import Kind
from tests.brokers import BrokerProcess, needs_ipv6
from tests.cli.conftest import Stafeta
from tests.cli.programs import DevicesServer, Program

pytestmark = [pytest.mark.slow, needs_ipv6]

DOORS = ("devices", "flight", "frames")


@pytest.fixture(scope="module")
def on_ipv6(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("ipv6") / "data"
    with BrokerProcess(data, "--set", "durability=os", doors=DOORS, hosts=("::1",)) as process:
        yield process


def test_both_clients_of_the_zeromq_door(on_ipv6: BrokerProcess) -> None:
    async def meet() -> str | None:
        async with package.AsyncClient(on_ipv6.address) as client:
            await client.subscribe("both")
            await client.put("both", "from the other")
            found = await client.get("both")
            return found and found.text

    assert asyncio.run(meet()) == "from the other"
    with package.Client(on_ipv6.address.removeprefix("tcp://")) as client:
        assert client.put("both", "and this one") == 2


def test_a_name_is_tried_with_both(on_ipv6: BrokerProcess) -> None:
    name = next((name for name in ("localhost", "ip6-localhost") if _has_ipv6(name)), None)
    if name is None:
        pytest.skip("no name is ::1 on this machine")
    with package.Client(f"{name}:{on_ipv6.door('zeromq')[1]}") as client:
        assert client.subscribe("named") == 0


def _has_ipv6(name: str) -> bool:
    try:
        return socket.getaddrinfo(name, None, socket.AF_INET6)[0][4][0] == "::1"
    except OSError:
        return False


def test_a_command_of_the_zeromq_door(stafeta: Stafeta, on_ipv6: BrokerProcess, tmp_path: Path) -> None:
    broker = ("--broker", on_ipv6.address)
    assert stafeta("sub", "commands", *broker).returncode == exits.OK
    assert stafeta("put", "commands", "21.5", *broker).returncode == exits.OK
    assert stafeta("get", "commands", *broker).stdout == "21.5\n"


def test_a_device_may_be_told_the_host_with_brackets_or_without(
    stafeta: Stafeta, on_ipv6: BrokerProcess
) -> None:
    host, port = on_ipv6.door("devices")
    for client, place in (("C1", host), ("C2", f"[{host}]")):
        with Program("devices", "subscriber", client, place, str(port)) as subscriber:
            subscriber.enter(f"subscribe {client}")
            subscriber.line()
            on_ipv6.wait_for_line(f"New client {client} connected from [::1]:")
            done = stafeta("devices", "publish", place, str(port), client, "int", "7")
            assert done.returncode == exits.OK
            assert subscriber.line() == f"0.0.0.0:0 - {client} - INT - 7"


def test_a_devices_server(stafeta: Stafeta) -> None:
    with DevicesServer("--host", "[::1]", host="::1") as server:
        assert stafeta("devices", "publish", "::1", str(server.port), "t", "int", "7").returncode == exits.OK


@pytest.mark.parametrize("door", ["zeromq", "devices", "frames", "flight"])
def test_a_benchmark(stafeta: Stafeta, on_ipv6: BrokerProcess, door: str) -> None:
    place = Address(*on_ipv6.door(door))
    done = stafeta("bench", "--door", door, "--address", str(place), "--messages", "20", "--json")
    assert json.loads(done.stdout)["delivered"]["messages"] == 20, done.stderr


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_where_nobody_answers_is_said_with_brackets(host: str) -> None:
    with pytest.raises(NoReply, match=r"No broker answers at \[::1\]:1: "):
        JSONQueue("/a", "consumer", host, 1)
    with pytest.raises(NoReply, match=r"\[::1\]:1 cannot be reached: "):
        Subscriber("C1", host, 1)
    with Publisher(host, 1) as publisher:
        publisher.publish("t", Kind.INT, b"1")
    with (
        package.Client("tcp://[::1]:1", timeout=0.01, retries=1) as client,
        pytest.raises(NoReply, match=r"the broker at tcp://\[::1\]:1: "),
    ):
        client.topics()


def test_a_benchmark_of_nobody(stafeta: Stafeta) -> None:
    done = stafeta("bench", "--address", "[::1]:1")
    assert "No broker answers at [::1]:1: Connection refused." in done.stderr


@pytest.mark.parametrize("address", ["::1:9001", "tcp://::1:9001", "[::1]", "[localhost]:9001", "[::1"])
def test_what_is_not_clear_is_refused(stafeta: Stafeta, address: str) -> None:
    with pytest.raises(StafetaError, match=r"is not an address of a broker; .* tcp://\[::1\]:9001"):
        package.Client(address)
    done = stafeta("topics", "--broker", address)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert done.stderr.count("\n") == 1
