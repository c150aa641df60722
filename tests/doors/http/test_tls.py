"""TLS at the HTTP door: requests, streams, WebSockets, certificates that are read again and that name users."""

import json
import shutil
import signal
import ssl
from collections.abc import Iterator
from typing import Any, cast

import pytest
from websockets.sync.client import connect

from stafeta.security import User, Users
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import BrokerProcess
from tests.certificates import Authority, Pair
from tests.doors.http.peers import Peer, messages_of
from tests.waiting import PATIENCE

HOST = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Pair:
    folder = tmp_path_factory.mktemp("served")
    pair = Pair(folder / "served.pem", folder / "served.key")
    serve(authority.pair("first", HOST), pair)
    return pair


def serve(pair: Pair, place: Pair) -> None:
    for new, old in zip(pair, place, strict=True):
        shutil.copy(new, old)


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, served: Pair
) -> Iterator[BrokerProcess]:
    """A broker whose door takes nothing but TLS, from those who are certified."""
    folder = tmp_path_factory.mktemp("tls-http")
    users = folder / "users.toml"
    save(users, Users({"ann": User(allow=(Rule.read("all a/#"),))}))
    settings = {"tls_cert": served.certificate, "tls_key": served.key, "tls_client_ca": authority.roots}
    options = [word for key, value in settings.items() for word in ("--set", f"http.{key}={value}")]
    with BrokerProcess(folder / "data", "--users", str(users), *options, doors=("http",)) as broker:
        yield broker
        assert "Traceback" not in broker.stderr


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=str(authority.roots))
    found.load_cert_chain(*authority.pair("ann"))
    return found


def test_a_certificate_names_the_user(secure: BrokerProcess, context: ssl.SSLContext) -> None:
    with Peer(secure.door("http"), tls=context) as peer:
        assert peer.get("/api/session")["user"] == "ann"
        assert peer.ask("POST", messages_of("a/t"), b"x").status == 201
        answer = peer.ask("POST", messages_of("b/t"), b"x")
        assert answer.status == 403
        assert "max-age" in answer.headers["strict-transport-security"]
        large = b"x" * 300_000  # of many records
        peer.post("/api/subscriptions", {"client": "c", "filter": "a/t"})
        assert peer.ask("POST", messages_of("a/t"), large).status == 201
        (found,) = peer.get("/api/subscriptions/messages", client="c", filter="a/t")["messages"]
        assert len(found["payload"]) == len(large)


def test_a_websocket_goes_through_tls(secure: BrokerProcess, context: ssl.SSLContext) -> None:
    host, port = secure.door("http")
    with connect(
        f"wss://{host}:{port}/api/socket?filter=a/ws", ssl=context, open_timeout=PATIENCE
    ) as connection:
        with Peer((host, port), tls=context) as peer:
            peer.publish("a/ws", "x" * 100_000)
        assert len(json.loads(connection.recv(PATIENCE))["payload"]) == 100_000


def test_whoever_is_not_certified_is_turned_away(secure: BrokerProcess, authority: Authority) -> None:
    nobody = ssl.create_default_context(cafile=str(authority.roots))
    with pytest.raises((ssl.SSLError, ConnectionError)), Peer(secure.door("http"), tls=nobody) as peer:
        peer.get("/healthz")
    secure.wait_for_line("http: a connection is closed: it has shown no certificate")


def test_certificates_are_read_again(
    secure: BrokerProcess, authority: Authority, served: Pair, context: ssl.SSLContext
) -> None:
    def shown(peer: Peer) -> str:
        peer.get("/healthz")
        found = cast("ssl.SSLSocket", peer.connection.sock).getpeercert() or {}
        subject: Any = found["subject"]
        return str(dict(part[0] for part in subject)["commonName"])

    with Peer(secure.door("http"), tls=context) as kept:
        assert shown(kept) == "first"
        serve(authority.pair("second", HOST), served)
        secure.send_signal(signal.SIGHUP)
        secure.wait_for_line("the http door has read its certificate again")
        with Peer(secure.door("http"), tls=context) as new:
            assert shown(new) == "second"
        assert shown(kept) == "first"
