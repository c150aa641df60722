"""An address means the same at every door: `::` is every address of the machine, `0.0.0.0` every one of IPv4."""

import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import stafeta
from stafeta.addresses import Address
from stafeta.cli import exits
from tests.brokers import BrokerProcess, needs_ipv6
from tests.conformance import devices
from tests.conformance.dialects import Connect, Dialect
from tests.conformance.every import DOORS, each
from tests.fork_server import FORKS
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.slow, needs_ipv6]

IPV4, IPV6 = "127.0.0.1", "::1"
# The host that is listened on, and those through which it is reached.
REACHED = [(IPV4, IPV4), (IPV6, IPV6), ("0.0.0.0", IPV4), ("::", IPV4), ("::", IPV6), ("localhost", IPV4)]
NOT_REACHED = [(IPV4, IPV6), (IPV6, IPV4), ("0.0.0.0", IPV6)]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("addresses") / "data"
    options = ("--allow-anyone", "--set", "durability=os", "--set", 'topics."#".keep=1d')
    hosts = tuple(dict.fromkeys(host for host, _ in REACHED))
    with BrokerProcess(data, *options, doors=DOORS, hosts=hosts) as process:
        yield process
        assert "::ffff:" not in process.stderr  # what the system calls those who come by IPv4 to both


@each("dialect")
@pytest.mark.parametrize(("host", "through"), REACHED)
def test_a_message_says_through_which_address_it_came(
    everywhere: BrokerProcess, connect: Connect, topic: str, dialect: Dialect, host: str, through: str
) -> None:
    stranger = connect(dialect, everywhere.at(host, through))
    stranger.subscribe(topic)
    stranger.publish(topic, "here")
    assert stranger.texts(1) == ["here"]
    with stafeta.connect(f"grpc://{Address(*everywhere.at(host, through).door('flight'))}") as broker:
        (row,) = broker.read(topic, columns=["source"]).to_pylist()
    source = str(row["source"])
    assert source == through or source.startswith(f"{Address(through, 1)}"[:-1])
    assert (source == through) == (dialect.door == "zeromq")  # which tells no port


@pytest.mark.parametrize(("host", "through"), REACHED)
def test_a_device_is_told_who_has_sent_a_reading(
    everywhere: BrokerProcess, connect: Connect, topic: str, host: str, through: str
) -> None:
    doors = everywhere.at(host, through)
    in_text, in_struct, publisher = (
        connect(dialect, doors) for dialect in (devices.TEXT, devices.STRUCT, devices.TEXT)
    )
    assert isinstance(publisher, devices.Device)
    for receiver in (in_text, in_struct):
        receiver.subscribe(topic)
    publisher.publish(topic, "here")
    told = []
    for receiver in (in_text, in_struct):
        ((_, _, raw),) = receiver.receive(1)
        assert isinstance(raw, devices.Reading)
        told.append(raw.source)
    room = publisher.source if through == IPV4 else "0.0.0.0:0"
    assert told == [room, publisher.source]


@pytest.mark.parametrize("door", ["zeromq", *DOORS])
@pytest.mark.parametrize(("host", "through"), NOT_REACHED)
def test_an_address_is_not_more_than_it_says(
    everywhere: BrokerProcess, door: str, host: str, through: str
) -> None:
    place = everywhere.at(host, through).door(door)
    try:
        socket.create_connection(place, PATIENCE).close()
    except ConnectionRefusedError:
        pass
    else:  # a test beside this one may have that port of the other family
        mine = psutil.Process(everywhere.pid).net_connections("tcp")
        listening = [one.laddr for one in mine if one.status == psutil.CONN_LISTEN]
        ours = {  # or this broker itself, at another address
            one
            for one, way in REACHED
            if any(everywhere.at(one, way).door(other)[1] == place[1] for other in ("zeromq", *DOORS))
        }
        assert {one.ip.removeprefix("::ffff:") for one in listening if one.port == place[1]} == ours
        pytest.skip("somebody else listens there")
    if door == "devices":
        family = socket.AF_INET6 if ":" in through else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE)
            sender.connect(place)
            sender.send(devices.datagram("t", 3, b"x"))
            with pytest.raises(ConnectionRefusedError):
                sender.recv(1)


@each("dialect")
def test_the_log_has_brackets_around_an_address_of_ipv6(
    everywhere: BrokerProcess, connect: Connect, dialect: Dialect, topic: str
) -> None:
    doors = everywhere.at(IPV6)
    everywhere.wait_for_line(f"[{IPV6}]:{doors.door(dialect.door)[1]}\n")
    connect(dialect, doors).subscribe(topic)
    if dialect.door in ("zeromq", "devices"):  # the others do not tell who comes
        everywhere.wait_for_line(
            {"zeromq": "connected peer=[::1]:", "devices": "connected from [::1]:"}[dialect.door]
        )


@pytest.mark.parametrize("door", ["zeromq", *DOORS])
def test_what_cannot_be_listened_on_is_said_with_brackets(
    everywhere: BrokerProcess, tmp_path: Path, door: str
) -> None:
    place = Address(*everywhere.at(IPV6).door(door))
    taken = [f"--{other}={place if other == door else 'off'}" for other in ("zeromq", *DOORS)]
    words = ["-m", "stafeta", "serve", "--data", str(tmp_path / "data"), *taken]
    program = FORKS.start(words, {}, read_errors=True)
    assert program.stderr is not None
    with program.stderr as errors:
        assert f"door cannot listen on {place}: " in errors.read()
    assert program.wait(PATIENCE) == exits.USAGE
