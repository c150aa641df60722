"""`GET /metrics` of a real broker, of all its doors, and who may ask for it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from stafeta.security import Users
from stafeta.security.rules import Rule
from stafeta.security.security import new_token
from stafeta.security.users import Token, User, hash_token, now, save
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Answer, Peer
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.metrics.scrapes import values
from tests.waiting import wait_until

DOORS = ("devices", "frames", "flight", "http")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("metrics") / "data"
    with BrokerProcess(data, "--durability", "os", doors=DOORS) as one:
        yield one


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[Peer]:
    with Peer(broker.door("http")) as one:
        yield one


def scraped(peer: Peer, **parameters: object) -> dict[tuple[str, ...], float]:
    answer = peer.ask("GET", "/metrics", None, None, **parameters)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return values(answer.body.decode())


def test_a_scrape_tells_of_every_door(broker: BrokerProcess, peer: Peer) -> None:
    with ZeroMQPeer(broker.address) as client:
        assert client.ask("SUB waits metrics/t") == "ACK"
        assert client.ask("PUT metrics/t hello") == "ACK"
        key = ("stafeta_subscription_lag_messages", "waits", "metrics/t")
        wait_until(lambda: scraped(peer).get(key) == 1)
        found = scraped(peer, topics="metrics/#")
        assert {key[1] for key in found if key[0] == "stafeta_connections"} == {"zeromq", *DOORS}
        assert found["stafeta_connections", "http"] >= 1
        assert found["stafeta_connections", "zeromq"] >= 1
        assert found["stafeta_published_messages_total",] >= 1
        assert found["stafeta_topic_stored_messages", "metrics/t"] == 1
        assert found["stafeta_store_bytes", "database"] > 0
        assert found["stafeta_disk_free_bytes",] > 0
        assert (
            found["stafeta_commit_sync_seconds_count",] == found["stafeta_commit_duration_seconds_count",] > 0
        )
        assert client.ask("UNSUB waits metrics/t") == "ACK"


def test_what_doors_reject_is_counted_by_reason(broker: BrokerProcess, peer: Peer) -> None:
    rubbish = {"frames": b"\xff" * 100, "devices": b"no command", "zeromq": b"half a greeting"}
    reasons = {"frames": "invalid", "devices": "invalid", "zeromq": "handshake"}
    for door, said in rubbish.items():
        key = ("stafeta_connections_rejected_total", door, reasons[door])
        with socket.create_connection(broker.door(door)) as stranger:
            stranger.sendall(said)
        wait_until(lambda key=key: scraped(peer).get(key, 0) >= 1)  # type: ignore[misc]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        device.sendto(b"short", broker.door("devices"))
        wait_until(lambda: scraped(peer)["stafeta_dropped_messages_total", "devices", "invalid"] == 1)
    assert scraped(peer)["stafeta_connections_accepted_total", "frames"] >= 1


def test_deliveries_of_a_stream_are_counted(broker: BrokerProcess, peer: Peer) -> None:
    before = scraped(peer)
    with stafeta.connect(broker.flight) as connection:
        subscription = connection.subscribe("metrics/stream", name="reader")
        connection.publish("metrics/stream", ["a", "b", "c"])
        with subscription:
            batch = next(iter(subscription))
            assert len(batch) == 3
            assert scraped(peer)["stafeta_connections", "flight"] >= 1
            batch.ack()
        after = scraped(peer)
        for name in ("published", "delivered", "acknowledged"):
            key = (f"stafeta_{name}_messages_total",)
            assert after[key] - before[key] == 3, name
        assert after["stafeta_redelivered_messages_total",] == before["stafeta_redelivered_messages_total",]


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"topics": "a/b#"}, 400),
        ({"topics": "#", "limit": "many"}, 400),
        ({"topics": "#", "limit": 1001}, 400),
        ({"nothing": "1"}, 400),
    ],
)
def test_what_cannot_be_answered_is_said(peer: Peer, parameters: dict[str, object], status: int) -> None:
    answer = peer.ask("GET", "/metrics", None, None, **parameters)
    assert answer.status == status
    assert answer.json["detail"]


def test_several_scrapes_at_once_are_answered(broker: BrokerProcess) -> None:
    answers: list[Answer] = []

    def scrape() -> None:
        with Peer(broker.door("http")) as one:
            answers.append(one.ask("GET", "/metrics"))

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 8


def test_only_who_sees_everything_anyway_may_scrape(tmp_path: Path) -> None:
    rules = {
        "admin": (["all #", "all $sys/#"], []),
        "lister": (["list #"], []),
        "ann": (["all a/#"], []),
        "most": (["list #"], ["list secret/#"]),
    }
    secrets = {user: new_token() for user in rules}
    known = Users(
        {
            user: User(allow=tuple(map(Rule.read, allow)), deny=tuple(map(Rule.read, deny)))
            for user, (allow, deny) in rules.items()
        },
        tokens={user: Token(user, hash_token(secret), now()) for user, secret in secrets.items()},
    )
    save(tmp_path / "users.toml", known)
    with BrokerProcess(tmp_path / "data", "--users", str(tmp_path / "users.toml"), doors=("http",)) as broker:
        statuses = {}
        for user, secret in secrets.items():
            with Peer(broker.door("http"), {"Authorization": f"Bearer {secret}"}) as peer:
                statuses[user] = peer.ask("GET", "/metrics").status
        with Peer(broker.door("http")) as nobody:
            statuses["nobody"] = nobody.ask("GET", "/metrics").status
        assert statuses == {"admin": 200, "lister": 200, "ann": 403, "most": 403, "nobody": 401}
        with Peer(broker.door("http"), {"Authorization": f"Bearer {secrets['admin']}"}) as peer:
            found = scraped(peer)
            assert found["stafeta_authentication_failures_total", "http"] == 1
            assert found["stafeta_permission_refusals_total", "http"] == 2
