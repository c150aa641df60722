"""The table of attacks of docs/security.md, at the doors of a real broker: nothing is let in, and nothing is seen."""

import json
import os
import signal
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zmq
from pyarrow import flight

from stafeta.addresses import Address
from stafeta.security import Token, User, Users
from stafeta.security.passwords import hash_password
from stafeta.security.users import hash_token, now
from tests.brokers import BrokerProcess
from tests.fork_server import run_stafeta
from tests.guarded import Guarded, rules
from tests.waiting import PATIENCE, wait_until

PASSWORD = "correct horse"


USERS = Users(
    {
        "admin": User(allow=rules("all #", "all $sys/#"), pipeline=True),
        "ann": User(hash_password(PASSWORD), allow=rules("all open/#")),
        "guest": User(allow=rules("publish,consume open/#")),
    },
    tokens={
        "admin": Token("admin", hash_token("admin"), now()),
        "ann": Token("ann", hash_token("ann"), now()),
        "old": Token("ann", hash_token("old"), now(), now() - timedelta(seconds=1)),
    },
    doors=dict.fromkeys(("zeromq", "devices", "frames"), "guest"),
)


class GuardedDoors(Guarded):
    def __init__(self, folder: Path) -> None:
        self.audit = folder / "audit.log"
        audit = ("--set", f"security.audit={self.audit}")
        super().__init__(folder, USERS, *audit, doors=("devices", "frames", "flight"))

    def flight(self, authorization: str = "Bearer admin") -> "Caller":
        return Caller(self.process, authorization)


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDoors]:
    guarded = GuardedDoors(tmp_path_factory.mktemp("guarded"))
    with guarded.process:
        yield guarded
        assert "Traceback" not in guarded.process.stderr


@pytest.fixture
def broker(module_broker: GuardedDoors) -> GuardedDoors:
    module_broker.change_back()
    return module_broker


class Caller:
    """A Flight client with a header of its own."""

    def __init__(self, process: BrokerProcess, authorization: str) -> None:
        self._client = flight.FlightClient(f"grpc://{Address(*process.door('flight'))}")
        headers: Any = [(b"authorization", authorization.encode())] if authorization else []
        self.options = flight.FlightCallOptions(headers=headers, timeout=PATIENCE)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def act(self, action: str, **body: object) -> list[dict[str, Any]]:
        asked = flight.Action(action, json.dumps(body).encode())
        return [json.loads(one.body.to_pybytes()) for one in self._client.do_action(asked, self.options)]

    def put(self, topic: str, *texts: str) -> None:
        table = pa.table({"payload": pa.array([text.encode() for text in texts], pa.binary())})
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path(topic), table.schema, self.options)
        writer.write_table(table)
        writer.close()

    def get(self, **ticket: object) -> Any:
        return self._client.do_get(flight.Ticket(json.dumps(ticket).encode()), self.options)

    def texts(self, **ticket: object) -> list[str]:
        return [payload.decode() for payload in self.get(**ticket).read_all()["payload"].to_pylist()]

    def names(self, filter_: str = "#") -> set[str]:
        return {topic["topic"] for topic in self.act("topics", filter=filter_)}


class Asking:
    """A ZeroMQ client of the JSON dialect."""

    def __init__(self, process: BrokerProcess) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.REQ)
        self._socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(process.address)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, type_: str, topic: str = "", client: str = "c", **body: object) -> dict[str, Any]:
        self._socket.send_json({"type": type_, "client_id": client, "topic": topic, "body": body})
        answer: Any = self._socket.recv_json()
        return {**answer.get("body", {}), "refused": answer["type"] == "NAK"}


# --- credentials


@pytest.mark.parametrize(
    "authorization", ["Bearer ann", "Basic " + b64encode(f"ann:{PASSWORD}".encode()).decode()]
)
def test_somebody_comes_in_by_flight_with_it(broker: GuardedDoors, authorization: str) -> None:
    with broker.flight(authorization) as ann:
        ann.act("subscribe", client="reader", filter="open/ann")
        ann.put("open/ann", "hers")
        assert ann.texts(topic="open/ann")[-1] == "hers"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer old",
        "Bearer " + "x" * 7000,
        "Basic",
        "Basic ???",
        "Basic " + b64encode(b"ann").decode(),
        "Basic " + b64encode(b"ann:wrong horse").decode(),
        "Basic " + b64encode(b"guest:").decode(),
        "Basic " + b64encode(b"nobody:correct horse").decode(),
        "Digest ann",
    ],
)
def test_nobody_comes_in_by_flight_without_what_is_right(broker: GuardedDoors, authorization: str) -> None:
    with broker.flight(authorization) as stranger:
        for attempt in (
            lambda: stranger.act("topics"),
            lambda: stranger.act("stats"),
            lambda: stranger.texts(topic="open/t"),
            lambda: stranger.put("open/forged", "x"),
            lambda: list(stranger._client.list_flights(options=stranger.options)),
            lambda: list(stranger._client.list_actions(stranger.options)),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                attempt()
    with broker.flight() as admin:
        assert "open/forged" not in admin.names()


def test_a_door_without_a_user_of_its_own_lets_nobody_in(broker: GuardedDoors) -> None:
    broker.change(replace(USERS, doors={}))
    with Asking(broker.process) as stranger:
        assert stranger.ask("SUB", "open/t")["refused"]
        assert stranger.ask("PUT", "open/t", publication="x")["refused"]
        assert stranger.ask("TOPICS")["refused"]
        assert stranger.ask("REQUEST_ID")["refused"]
    for door, bytes_ in (
        ("devices", b"id2C1"),
        ("frames", bytes([0]) + (27).to_bytes(2, "big") + b'{"command": "listTopics"}  '),
    ):
        with socket.create_connection(broker.process.door(door), PATIENCE) as peer:
            peer.sendall(bytes_)
            assert peer.recv(100) == b""
    with broker.flight() as admin:
        assert "open/t" not in admin.names()


# --- the right ones for the wrong topic


@pytest.mark.parametrize(
    "filter_", ["#", "*", "+/+", "secret/#", "#/plans", "open/#", "$sys/#", "$sys/audit"]
)
def test_no_filter_reaches_further_than_it_may(broker: GuardedDoors, filter_: str) -> None:
    allowed = filter_ not in ("secret/#", "$sys/#", "$sys/audit")
    with broker.flight() as admin, broker.flight("Bearer ann") as ann, Asking(broker.process) as guest:
        admin.act("subscribe", client="keeps", filter="#")
        for name in ("secret/plans", "open/plans", "rollup/1m/secret/plans", "alerts/hot/secret/plans"):
            admin.put(name, name)
        name = f"further{filter_}"
        if not allowed:
            with pytest.raises(flight.FlightUnauthorizedError):
                ann.act("subscribe", client=name, filter=filter_, **{"from": "earliest"})
            assert guest.ask("SUB", filter_, client=name)["refused"]
            with pytest.raises(flight.FlightUnauthorizedError):
                ann.names(filter_)
            return
        ann.act("subscribe", client=name, filter=filter_, **{"from": "earliest"})
        assert not guest.ask("SUB", filter_, client=name)["refused"]
        admin.put("secret/plans", "secret/plans")
        admin.put("open/plans", "open/plans")
        assert set(ann.texts(client=name, filter=filter_)) <= {"open/plans", "hers"}
        got = guest.ask("GET", filter_, client=name, limit=100, last_publication_id=0)
        assert {one["text"] for one in got["publications"]} == {"open/plans"}
        assert all(one.startswith("open/") for one in ann.names(filter_))
        listed = guest.ask("TOPICS", filter=filter_)["topics"]
        assert all(line["name"].startswith("open/") for line in listed)
        cursors = ann.act("cursors", client=name, filter=filter_)
        assert all(cursor["topic"].startswith("open/") for cursor in cursors)
        assert {one["client"] for one in ann.act("subscriptions")} <= {"flight/reader", f"flight/{name}"} | {
            f"flight/further{other}" for other in ("#", "*", "+/+", "#/plans", "open/#")
        }
        ann.act("unsubscribe", client=name, filter=filter_)
        guest.ask("UNSUB", filter_, client=name)


def test_nothing_of_a_topic_is_said_to_who_may_not(broker: GuardedDoors) -> None:
    with broker.flight() as admin, broker.flight("Bearer ann") as ann, Asking(broker.process) as guest:
        admin.act("subscribe", client="keeps", filter="#")
        admin.put("secret/plans", "x")
        for name in ("secret/plans", "secret/none", "$sys/audit", "rollup/1m/secret/plans"):
            for attempt in (
                lambda name=name: ann.texts(topic=name),
                lambda name=name: ann.texts(topic=name, follow=True),
                lambda name=name: ann._client.get_flight_info(
                    flight.FlightDescriptor.for_path(name), ann.options
                ),
                lambda name=name: ann.put(name, "forged"),
                lambda name=name: ann.act("sequence", producer="p", topic=name),
                lambda name=name: ann.act("subscribe", client="c", filter=name),
            ):
                with pytest.raises(flight.FlightUnauthorizedError):
                    attempt()
            for type_, body in (
                ("PUT", {"publication": "forged"}),
                ("SUB", {}),
                ("GET", {"last_publication_id": 0}),
                ("READ", {"last": 5}),
                ("ACK", {"ids": [1]}),
                ("UNSUB", {}),
                ("SKIP", {"first": 1, "last": 1}),
            ):
                answer = guest.ask(type_, name, **body)
                assert answer["refused"], type_
                assert "may not" in answer["error_message"]
        assert "clients" not in guest.ask("STATS")
        assert set(ann.act("stats")[0]) == {"version", "position", "uptime"}
        assert "streams" in admin.act("stats")[0]
        assert {one["client"].startswith("users/") for one in guest.ask("CLIENTS")["clients"]} <= {False}
        # The second of two in one request, and the first one that is allowed does not help it.
        assert guest.ask("WATCH", filters=["open/#", "secret/#"], wait=0)["refused"]
        assert admin.texts(topic="secret/plans")[-1] != "forged"


def test_stats_say_less_to_who_does_not_administer(broker: GuardedDoors) -> None:
    words = ["--broker", broker.process.address, "stats"]
    done = run_stafeta(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "messages ever" in done.stdout
    assert "clients" not in done.stdout


def test_anothers_names_are_not_reached(broker: GuardedDoors) -> None:
    broker.change(USERS.with_user("cat", User(allow=rules("all open/#"))))
    users = broker.users
    broker.change(replace(users, tokens={**users.tokens, "cat": Token("cat", hash_token("cat"), now())}))
    with broker.flight("Bearer ann") as ann, broker.flight("Bearer cat") as cat:
        ann.act("subscribe", client="archive", filter="open/names")
        ann.put("open/names", "for ann")
        transaction = ann.act("begin", producer="robot")[0]
        for client in ("archive", "users/ann/flight/archive", "../ann/flight/archive"):
            with pytest.raises(flight.FlightError):
                cat.texts(client=client, filter="open/names")
            with pytest.raises(flight.FlightError):
                cat.act("ack", client=client, filter="open/names", ranges=[["open/names", None, 2]])
            with pytest.raises(flight.FlightError):
                cat.act("unsubscribe", client=client, filter="open/names")
        cat.act("begin", producer="robot")
        cat.act("abort", producer="robot", counter=transaction["counter"])
        assert ann.act("commit", producer="robot", **transaction) == [{"committed": True}]
        assert ann.texts(client="archive", filter="open/names") == ["for ann"]
        assert cat.act("committed", producer="robot")[0]["counter"] is None


# --- doors that cannot say no


def frame(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    return bytes([0]) + len(data).to_bytes(2, "big") + data


def test_a_last_value_is_shown_only_to_who_may_see_it(broker: GuardedDoors) -> None:
    with broker.flight() as admin, socket.create_connection(broker.process.door("frames"), PATIENCE) as peer:
        admin.act("subscribe", client="keeps", filter="#")
        admin.put("secret/last", "the last value")
        peer.sendall(
            frame({"command": "publish", "topic": "secret/last", "message": "forged"})
            + frame({"command": "subscribe", "topic": "secret/last"})
            + frame({"command": "subscribe", "topic": "#"})
            + frame({"command": "publish", "topic": "open/end", "message": "the end"})
        )
        got = b""
        while b"the end" not in got:
            more = peer.recv(65536)
            assert more
            got += more
        assert b"secret" not in got
        assert b"last value" not in got
        assert "forged" not in admin.texts(topic="secret/last")
        peer.sendall(frame({"command": "listTopics"}))
        got = b""
        while b"open/end" not in got:
            got += peer.recv(65536)
        assert b"secret" not in got


def datagram(topic: str, text: str) -> bytes:
    return topic.encode().ljust(50, b"\0") + b"\3" + text.encode()


def test_a_devices_backlog_is_gone_with_the_permission(broker: GuardedDoors) -> None:
    address = broker.process.door("devices")
    device = f"D{time.monotonic_ns() % 10**7}"
    with broker.flight() as admin, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sensor:
        admin.act("subscribe", client="keeps", filter="#")
        with socket.create_connection(address, PATIENCE) as peer:
            peer.sendall(f"id{len(device)}{device}ss9!1open/doorss1!1#".encode())
            name = f"users/guest/devices/{device}"
            wait_until(lambda: name in {one["client"] for one in admin.act("subscriptions")})
        sensor.sendto(datagram("secret/door", "forged"), address)
        sensor.sendto(datagram("open/door", "while away"), address)
        wait_until(
            lambda: "open/door" in admin.names() and admin.texts(topic="open/door")[-1:] == ["while away"]
        )
        assert "secret/door" not in admin.names()
        broker.change(USERS.with_user("guest", User(allow=rules("consume open/other"))))
        broker.change(replace(broker.users, doors=USERS.doors))
        admin.put("open/other", "allowed still")
        with socket.create_connection(address, PATIENCE) as peer:
            peer.sendall(f"id{len(device)}{device}".encode())
            got = b""
            while b"allowed still" not in got:
                more = peer.recv(65536)
                assert more, got
                got += more
            assert b"while away" not in got
            admin.put("open/door", "after")
            admin.put("open/other", "the end")
            while b"the end" not in got:
                got += peer.recv(65536)
            assert b"after" not in got


# --- taken away while connected


def test_who_is_connected_is_ended_with_his_user_or_token(broker: GuardedDoors) -> None:
    with broker.flight("Bearer ann") as ann, broker.flight() as admin:
        ann.act("subscribe", client="live", filter="open/live")
        stream = ann.get(client="live", filter="open/live", follow=True)
        ann.put("open/live", "before")
        assert stream.read_chunk().data["payload"].to_pylist() == [b"before"]
        peers = [
            socket.create_connection(broker.process.door(door), PATIENCE) for door in ("devices", "frames")
        ]
        device = f"E{time.monotonic_ns() % 10**7}"
        peers[0].sendall(f"id{len(device)}{device}ss9!1open/live".encode())
        peers[1].sendall(frame({"command": "publish", "topic": "open/frames", "message": "here"}))
        wait_until(lambda: "open/frames" in admin.names())
        name = f"users/guest/devices/{device}"
        wait_until(lambda: name in {one["client"] for one in admin.act("subscriptions")})
        tokens = {name: token for name, token in USERS.tokens.items() if name != "ann"}
        broker.change(replace(USERS, tokens=tokens, doors={}))
        with pytest.raises(flight.FlightUnauthenticatedError):
            stream.read_chunk()
        for peer in peers:
            with peer:
                _read_to_the_end(peer)
        with pytest.raises(flight.FlightUnauthenticatedError):
            ann.act("topics")


def _read_to_the_end(peer: socket.socket) -> None:
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        pass


def test_a_file_that_is_wrong_changes_nothing(broker: GuardedDoors) -> None:
    for text, mode in (("", 0o600), ("[users.ann", 0o600), ("[users.ann]\n", 0o644)):
        before = broker.process.stderr.count("was not reloaded")
        broker.path.write_text(text)
        broker.path.chmod(mode)
        os.kill(broker.process.pid, signal.SIGHUP)
        broker.wait_for_more("was not reloaded", before)
        with broker.flight("Bearer ann") as ann, broker.flight("") as stranger:
            ann.act("topics")
            with pytest.raises(flight.FlightUnauthenticatedError):
                stranger.act("topics")
    assert "line 1" in broker.process.stderr
    broker.change(USERS)


# --- who did what


def test_what_was_refused_is_in_the_log_of_who_did_what(broker: GuardedDoors) -> None:
    with (
        broker.flight() as admin,
        broker.flight("Bearer nothing") as stranger,
        broker.flight("Bearer ann") as ann,
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            stranger.act("topics")
        with pytest.raises(flight.FlightUnauthorizedError):
            ann.texts(topic="secret/audited")
        ann.act("topics")

        def events() -> list[dict[str, Any]]:
            return [json.loads(text) for text in admin.texts(topic="$sys/audit")]

        wait_until(lambda: any(one.get("topic") == "secret/audited" for one in events()))
        found = events()
        assert {"login", "refused login", "refused"} <= {one["event"] for one in found}
        (refused,) = [one for one in found if one.get("topic") == "secret/audited"]
        assert (refused["user"], refused["door"], refused["operation"]) == ("ann", "flight", "read")
        assert [json.loads(line) for line in broker.audit.read_text().splitlines()][: len(found)] == found
        assert "nothing" not in broker.audit.read_text()


def test_a_broker_with_a_file_that_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    from stafeta.testing.broker import BrokerFailed

    path = tmp_path / "users.toml"
    path.write_text("")
    path.chmod(0o600)
    process = BrokerProcess(tmp_path / "data", "--users", str(path))
    with pytest.raises(BrokerFailed, match="there is no user in it"):
        process.start()
