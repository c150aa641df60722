"""TLS at the doors that are made of sockets, frames and devices: who gets in, who does not, and what others notice."""

import json
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta import Tls
from stafeta.clients.devices import Publisher, Subscriber
from stafeta.config.sources import build, from_assignment
from stafeta.errors import ConfigError, Disconnected, NoReply, Untrusted
from stafeta.frames import JSONQueue
from stafeta.message import Kind
from stafeta.testing.broker import BrokerFailed
from tests.brokers import BrokerProcess
from tests.certificates import Authority, Pair
from tests.waiting import PATIENCE, wait_until

DOORS = ("frames", "devices")
HOST = "IP:127.0.0.1"
STRUCT = 1585  # bytes of a message in the struct dialect


def options(pair: Pair, *more: str, doors: tuple[str, ...] = DOORS) -> list[str]:
    files = [
        f"{door}.tls_{kind}={path}"
        for door in doors
        for kind, path in zip(("cert", "key"), pair, strict=True)
    ]
    return [word for one in (*files, *more) for word in ("--set", one)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("broker", HOST)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[BrokerProcess]:
    """A broker whose doors take nothing but TLS."""
    with BrokerProcess(tmp_path_factory.mktemp("tls") / "data", *options(pair), doors=DOORS) as broker:
        yield broker
        assert "Traceback" not in broker.stderr


@pytest.fixture
def tls(authority: Authority) -> Tls:
    return Tls(authority.roots)


def opened(door: str, broker: BrokerProcess, tls: Tls) -> JSONQueue | Subscriber:
    """A client of the door."""
    place = broker.door(door)
    return (
        JSONQueue("/hall", "producer", *place, tls=tls)
        if door == "frames"
        else Subscriber("C3", *place, tls=tls)
    )


def shake_hands(place: tuple[str, int], tls: Tls) -> ssl.SSLSocket:
    return tls.secured(socket.create_connection(place, PATIENCE), place[0])


def test_queues_push_and_pull_through_tls(secure: BrokerProcess, tls: Tls) -> None:
    place = secure.door("frames")
    with JSONQueue("/hall", "producer", *place, tls=tls) as producer:
        for number in range(200):
            producer.push({"number": number, "text": "x" * 300})
        listed: list[list[str]] = []
        producer.list_topics(listed.append)
        assert "/hall" in listed[0]
        with JSONQueue("/hall", "consumer", *place, tls=tls) as consumer:
            assert consumer.pull() == ("/hall", {"number": 199, "text": "x" * 300})
            for number in range(1000):
                producer.push(number)
            assert [consumer.pull()[1] for _ in range(1000)] == list(range(1000))


def test_subscribers_of_devices_get_readings_through_tls(secure: BrokerProcess, tls: Tls) -> None:
    place = secure.door("devices")
    with Subscriber("C1", *place, tls=tls) as subscriber, Publisher(*place) as publisher:
        subscriber.subscribe("hall/#", sf=True)

        def heard() -> bool:
            publisher.publish("hall/t", Kind.INT, b"21")
            return bool(subscriber.receive(0.05))

        wait_until(heard)
        subscriber.finish()
        while subscriber.receive(PATIENCE) is not None:
            pass


def test_what_was_sent_while_a_device_was_away_comes_once_through_tls(
    secure: BrokerProcess, tls: Tls
) -> None:
    """A durable subscription is acknowledged by what the peer's kernel has, which is counted in encrypted bytes."""
    place = secure.door("devices")
    with Subscriber("C2", *place, tls=tls) as subscriber, Publisher(*place) as publisher:
        subscriber.subscribe("away", sf=True)

        def heard() -> bool:
            publisher.publish("away", Kind.STRING, b"probe")
            return bool(subscriber.receive(0.05))

        wait_until(heard)
        subscriber.finish()
        while subscriber.receive(PATIENCE) is not None:
            pass
        sent = [f"{number}-{'y' * 900}" for number in range(300)]
        for text in sent:
            publisher.publish("away", Kind.STRING, text.encode())
    got: list[str] = []
    with Subscriber("C2", *place, tls=tls) as subscriber:
        while not got or got[-1] != sent[-1]:
            got += [message.value for message in subscriber.receive(PATIENCE) or []]
        assert [text for text in got if text != "probe"] == sent
        # Once the broker knows that all has arrived, nothing comes again.
        subscriber.finish()
        while subscriber.receive(PATIENCE) is not None:
            pass
    with Subscriber("C2", *place, tls=tls) as subscriber, Publisher(*place) as publisher:
        publisher.publish("away", Kind.STRING, b"last")
        assert [message.value for message in subscriber.receive() or []][-1:] == ["last"]


def test_a_record_has_whole_messages_of_the_struct_dialect(secure: BrokerProcess, tls: Tls) -> None:
    """Programs read 1585 bytes at a time and take what they get for a message."""
    place = secure.door("devices")
    with shake_hands(place, tls) as device, Publisher(*place) as publisher:
        device.sendall((0).to_bytes(4, "little") + b"S1".ljust(252, b"\0"))
        device.sendall((1).to_bytes(4, "little") + b"S1".ljust(10, b"\0") + b"struct 0\n".ljust(242, b"\0"))
        device.settimeout(0.05)

        def heard() -> bool:
            publisher.publish("struct", Kind.STRING, b"probe")
            try:
                return len(device.recv(STRUCT)) == STRUCT
            except TimeoutError:
                return False

        wait_until(heard)
        device.settimeout(PATIENCE)
        for number in range(100):
            publisher.publish("struct", Kind.INT, b"%d" % number)
        found = 0
        while found < 100:
            message = device.recv(STRUCT)
            assert len(message) == STRUCT
            found += message[84] == 0


@pytest.mark.parametrize("door", DOORS)
def test_a_plain_client_is_turned_away_with_a_sentence(secure: BrokerProcess, door: str, tls: Tls) -> None:
    with socket.create_connection(secure.door(door), PATIENCE) as plain:
        plain.sendall(b"id2C9ss4!0hall")
        answer = plain.recv(100)
        assert not answer or answer[0] == 0x15  # an alert of TLS
    line = secure.wait_for_line(f"{door}: a connection is closed: what came is not TLS")
    assert "peer=127.0.0.1:" in line


@pytest.mark.parametrize("door", DOORS)
def test_a_client_that_trusts_others_says_so_and_so_does_the_log(
    secure: BrokerProcess, door: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    with pytest.raises(Untrusted, match=r"is not trusted: its certificate is not accepted"):
        opened(door, secure, Tls(stranger.roots))
    secure.wait_for_line(f"{door}: a connection is closed: TLS was not agreed on (tlsv1 alert unknown ca)")


def test_many_that_are_turned_away_make_few_lines(secure: BrokerProcess) -> None:
    for _ in range(200):
        with socket.create_connection(secure.door("frames"), PATIENCE) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            plain.recv(100)
    assert secure.stderr.count("frames: a connection is closed: what came is not TLS") < 20


def test_what_is_no_agreement_ends_in_time_and_disturbs_nobody(tmp_path: Path, pair: Pair, tls: Tls) -> None:
    words = options(pair, "limits.handshake_timeout=1s")
    with BrokerProcess(tmp_path / "data", *words, doors=DOORS) as broker:
        place = broker.door("frames")
        with JSONQueue("/others", "producer", *place, tls=tls) as producer:
            silent = [socket.create_connection(place, PATIENCE) for _ in range(20)]
            half = ssl.MemoryBIO()
            hello = tls.context().wrap_bio(ssl.MemoryBIO(), half, server_hostname="127.0.0.1")
            with pytest.raises(ssl.SSLWantReadError):
                hello.do_handshake()
            greeting = half.read()
            for connection in silent[10:]:
                connection.sendall(greeting[: len(greeting) // 2])
            for number in range(100):
                producer.push(number)
            producer.list_topics(lambda topics: None)
            for connection in silent:
                assert connection.recv(1) == b""
                connection.close()
            producer.push("still there")
            producer.list_topics(lambda topics: None)
        line = broker.wait_for_line("connections are closed that have not agreed on TLS")
        assert "limits.handshake_timeout" in line


@pytest.mark.parametrize("door", DOORS)
def test_tls_at_a_plain_door_ends_with_a_hint(tmp_path: Path, door: str, tls: Tls) -> None:
    with BrokerProcess(tmp_path / "data", doors=(door,)) as broker:
        with pytest.raises((Untrusted, NoReply)):
            opened(door, broker, tls)
        broker.wait_for_line("This may be TLS, which the door is not configured for.")


def test_certificates_are_read_again_at_sighup_and_old_connections_stay(
    tmp_path: Path, authority: Authority, tls: Tls
) -> None:
    served = Pair(tmp_path / "served.pem", tmp_path / "served.key")

    def serve(pair: Pair) -> None:
        for new, place in zip(pair, served, strict=True):
            shutil.copy(new, place)

    def shown(door: str) -> str:
        with shake_hands(broker.door(door), tls) as connection:
            found = connection.getpeercert() or {}
            return str(dict(part[0] for part in found["subject"])["commonName"])  # type: ignore[misc]

    serve(authority.pair("first", HOST))
    with (
        BrokerProcess(tmp_path / "data", *options(served), doors=DOORS) as broker,
        JSONQueue("/kept", "producer", *broker.door("frames"), tls=tls) as producer,
    ):
        assert [shown(door) for door in DOORS] == ["first", "first"]
        serve(authority.pair("second", HOST))
        broker.send_signal(signal.SIGHUP)
        broker.wait_for_line("the devices door has read its certificate again")
        broker.wait_for_line("the frames door has read its certificate again")
        assert [shown(door) for door in DOORS] == ["second", "second"]
        served.key.write_text("no key")
        broker.send_signal(signal.SIGHUP)
        line = broker.wait_for_line("the frames door keeps the certificate that it has")
        assert f"{served.certificate} and {served.key} are not a certificate and its key" in line
        served.certificate.unlink()
        broker.send_signal(signal.SIGHUP)
        broker.wait_for_line(f"{served.certificate} cannot be read: No such file or directory")
        assert [shown(door) for door in DOORS] == ["second", "second"]
        producer.push("as before")
        producer.list_topics(lambda topics: None)


def test_mutual_tls_takes_those_who_are_certified(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    mine, other = authority.pair("alice"), Authority(tmp_path, "other").pair("mallory")
    words = options(pair, f"frames.tls_client_ca={authority.roots}", doors=("frames",))
    with BrokerProcess(tmp_path / "data", *words, doors=("frames",)) as broker:
        place = broker.door("frames")
        with JSONQueue("/mine", "producer", *place, tls=Tls(authority.roots, *mine)) as producer:
            producer.push(1)
            producer.list_topics(lambda topics: None)
        # In TLS 1.3 a client has finished before it learns that it is not accepted.
        for tls, sentence in (
            (Tls(authority.roots), "it has shown no certificate"),
            (Tls(authority.roots, *other), "its certificate is not accepted"),
        ):
            with (
                pytest.raises((Disconnected, NoReply)),
                JSONQueue("/other", "producer", *place, tls=tls) as producer,
            ):
                producer.list_topics(lambda topics: None)
            broker.wait_for_line(f"frames: a connection is closed: {sentence}")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("frames.tls_cert=a.pem",), "frames.tls_cert goes with frames.tls_key: set both, or none."),
        (("devices.tls_key=a.key",), "devices.tls_key goes with devices.tls_cert: set both, or none."),
        (("flight.tls_client_ca=a.pem",), "flight.tls_client_ca says whose certificates are taken"),
    ],
)
def test_options_that_do_not_go_together_are_refused(settings: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build([from_assignment(one, "--set") for one in settings])


def test_a_broker_does_not_start_without_its_certificate(tmp_path: Path, pair: Pair) -> None:
    words = options(Pair(tmp_path / "none.pem", pair.key))
    broker = BrokerProcess(tmp_path / "data", *words, doors=DOORS)
    with pytest.raises(BrokerFailed, match=r"none\.pem cannot be read: No such file"):
        broker.start()


def test_json_is_as_it_was_written(secure: BrokerProcess, tls: Tls) -> None:
    """One byte at a time, through TLS."""
    with shake_hands(secure.door("frames"), tls) as peer:
        body = json.dumps({"command": "listTopics"}).encode()
        for byte in b"\0" + len(body).to_bytes(2) + body:
            peer.sendall(bytes([byte]))
        assert peer.recv(1) == b"\0"
