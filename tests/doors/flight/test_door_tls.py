"""TLS at the Flight door."""

import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from stafeta import Tls
from stafeta.addresses import Address
from stafeta.errors import NoReply, Untrusted
from tests.brokers import BrokerProcess
from tests.certificates import Authority, Pair
from tests.waiting import PATIENCE, wait_until

HOST = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("broker", HOST)


@pytest.fixture
def tls(authority: Authority) -> Tls:
    return Tls(authority.roots)


def broker_of(folder: Path, pair: Pair, *more: str) -> BrokerProcess:
    settings = [f"flight.tls_cert={pair.certificate}", f"flight.tls_key={pair.key}", *more]
    words = [word for one in settings for word in ("--set", one)]
    return BrokerProcess(folder / "data", *words, doors=("flight",))


def place(broker: BrokerProcess) -> str:
    return f"grpc+tls://{Address(*broker.door('flight'))}"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[BrokerProcess]:
    with broker_of(tmp_path_factory.mktemp("tls"), pair) as broker:
        yield broker


def test_messages_go_and_come_through_tls(secure: BrokerProcess, tls: Tls) -> None:
    with stafeta.connect(place(secure), tls=tls) as connection:
        connection.publish("hall", [f"text {number}" for number in range(1000)])
        assert connection.read("hall")["payload"].to_pylist()[-1] == b"text 999"


def test_a_plain_client_and_one_that_trusts_others_are_not_let_in(
    secure: BrokerProcess, tls: Tls, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    with pytest.raises(Untrusted, match="its certificate is not accepted"):
        stafeta.connect(place(secure), tls=Tls(stranger.roots))
    with pytest.raises(NoReply):
        stafeta.connect(f"grpc://{Address(*secure.door('flight'))}", timeout=1.0)
    with stafeta.connect(place(secure), tls=tls) as connection:
        connection.publish("others", ["are served"])


def test_tls_at_a_plain_door_is_not_trusted(tmp_path: Path, tls: Tls) -> None:
    with BrokerProcess(tmp_path / "data", doors=("flight",)) as broker, pytest.raises((Untrusted, NoReply)):
        stafeta.connect(place(broker), tls=tls, timeout=2.0)


def test_certificates_are_read_again_and_streams_go_on(
    tmp_path: Path, authority: Authority, tls: Tls
) -> None:
    served = Pair(tmp_path / "served.pem", tmp_path / "served.key")

    def serve(pair: Pair) -> None:
        for new, old in zip(pair, served, strict=True):
            shutil.copy(new, old)

    def shown() -> str:
        """Whose certificate a new connection is shown; nobody's for the moment in which a server takes over."""
        context = tls.context()
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection(broker.door("flight"), PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                found = secured.getpeercert() or {}
        except (ConnectionError, ssl.SSLEOFError):
            return ""
        return str(dict(part[0] for part in found["subject"])["commonName"])  # type: ignore[misc]

    serve(authority.pair("first", HOST))
    with broker_of(tmp_path, served) as broker, stafeta.connect(place(broker), tls=tls) as connection:
        assert shown() == "first"
        connection.publish("hall", ["before"])
        with connection.subscribe("hall", start="earliest") as subscription:
            batches = iter(subscription)
            assert next(batches).data["payload"].to_pylist() == [b"before"]
            broker.send_signal(signal.SIGHUP)  # nothing has changed: nobody notices
            broker.wait_for_line("the flight door has read its certificate again")
            serve(authority.pair("second", HOST))
            broker.send_signal(signal.SIGHUP)
            wait_until(lambda: shown() == "second")
            connection.publish("hall", ["after"])
            assert next(batches).data["payload"].to_pylist() == [b"after"]
            served.key.write_text("no key")
            broker.send_signal(signal.SIGHUP)
            broker.wait_for_line("the flight door keeps the certificate that it has")
            assert shown() == "second"
        assert broker.stop() == 0
        assert "listen on" not in broker.stderr.partition("the flight door has read")[2]


def test_mutual_tls_takes_those_who_are_certified(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    mine, other = authority.pair("alice"), Authority(tmp_path, "other").pair("mallory")
    with broker_of(tmp_path, pair, f"flight.tls_client_ca={authority.roots}") as broker:
        with stafeta.connect(place(broker), tls=Tls(authority.roots, *mine)) as connection:
            connection.publish("hall", ["mine"])
        for tls in (Tls(authority.roots), Tls(authority.roots, *other)):
            with pytest.raises(NoReply):
                stafeta.connect(place(broker), tls=tls, timeout=1.0)
