"""SQL where no Spark is at hand, or somebody asks who may not. With a Spark: tests/pipeline/test_sql_page."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stafeta.doors.http import sql
from stafeta.errors import NotPermitted
from stafeta.security import User, Users
from stafeta.security.passwords import hash_password
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Peer
from tests.waiting import wait_until

PASSWORD = "a long enough horse"
RULES = {
    "ann": ("all #", "all $sys/#"),
    "operator": ("administer $sys/broker", "list #"),
    "reader": ("consume #", "read $sys/#"),
    "most": ("all #", "all $sys/#"),  # but for what is denied below
}


def test_without_a_spark_one_is_told_what_starts_it(peer: Peer) -> None:
    assert peer.get("/api/sql") == {"available": False}
    answer = peer.ask("POST", "/api/sql", {"statement": "SELECT 1"})
    assert answer.status == 503
    assert "'stafeta pipeline run archive' starts one" in answer.json["detail"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "'statement' is missing"),
        ({"statement": ""}, "'statement' is empty"),
        ({"statement": 1}, "must be text"),
        ({"statement": "x" * (sql.LONGEST + 1)}, "longer than 16,384 characters"),
        ({"statement": "SELECT 1", "limit": 0}, "'limit' must be a whole number from 1 to 10000"),
        ({"statement": "SELECT 1", "timeout": 601}, "'timeout' must be a whole number from 1 to 600"),
        ({"statement": "SELECT 1", "own": True}, "no member 'own'"),
    ],
)
def test_what_cannot_be_asked_is_refused(peer: Peer, body: object, detail: str) -> None:
    answer = peer.ask("POST", "/api/sql", body)
    assert answer.status == 400
    assert detail in answer.json["detail"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("sql")
    password = hash_password(PASSWORD)
    users = {name: User(password, allow=tuple(map(Rule.read, rules))) for name, rules in RULES.items()}
    users["most"] = User(password, allow=users["most"].allow, deny=(Rule.read("read secret/#"),))
    save(folder / "users.toml", Users(users=users))
    with BrokerProcess(
        folder / "data", "--set", f"security.users={folder / 'users.toml'}", doors=("http",)
    ) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("user", "may"), [("ann", True), ("operator", False), ("reader", False), ("most", False)]
)
def test_it_is_for_who_administers_the_broker_and_may_read_every_topic(
    guarded: BrokerProcess, user: str, may: bool
) -> None:
    with Peer(guarded.door("http")) as peer:
        site = {"Sec-Fetch-Site": "same-origin"}
        login = peer.ask("POST", "/api/login", {"user": user, "password": PASSWORD}, site)
        peer.headers = {"Cookie": login.headers["set-cookie"].partition(";")[0]}
        assert peer.get("/api/session")["sql"] is may
        for method, body in (("GET", None), ("POST", {"statement": "SELECT 1"})):
            status = peer.ask(method, "/api/sql", body, site).status
            assert status == ({"GET": 200, "POST": 503}[method] if may else 403)
        forged = peer.ask("POST", "/api/sql", {"statement": "SELECT 1"}, {"Sec-Fetch-Site": "cross-site"})
        assert (forged.status, "another site" in forged.json["detail"]) == (403, True)
        assert peer.ask("POST", "/api/sql", {"statement": "SELECT 1"}).status == 403, "nobody says from where"


def test_each_statement_is_in_the_log_of_who_did_what(guarded: BrokerProcess) -> None:
    """Also one that no Spark answers; of a long one the beginning. Who is refused has asked nothing."""
    site = {"Sec-Fetch-Site": "same-origin"}
    long = "SELECT " + "x" * 5000
    with Peer(guarded.door("http")) as peer:
        for user, statement in (("reader", "SELECT 'refused'"), ("ann", "SELECT 'é\n'"), ("ann", long)):
            login = peer.ask("POST", "/api/login", {"user": user, "password": PASSWORD}, site)
            peer.headers = {"Cookie": login.headers["set-cookie"].partition(";")[0], **site}
            peer.ask("POST", "/api/sql", {"statement": statement})

        def noted() -> list[dict[str, str]]:
            events = [json.loads(text) for text in peer.texts("$sys/audit", last=1000)]
            return [one for one in events if one["event"] == "sql" and one["what"] != "SELECT 1"]

        wait_until(lambda: len(noted()) == 2)
        short, cut = noted()
    assert (short["user"], short["door"], short["what"]) == ("ann", "http", "SELECT 'é\n'")
    assert short["address"].startswith("127.0.0.1:")
    assert cut["what"] == f"{long[:1000]}… (5,007 characters)"


@pytest.mark.parametrize(
    ("peer", "may"),
    [
        ("127.0.0.1:5", True),
        ("[::1]:5", True),
        ("[::ffff:127.0.0.1]:5", True),
        ("192.0.2.7:5", False),
        ("", False),
    ],
)
def test_without_users_it_is_for_this_machine(peer: str, may: bool) -> None:
    """A machine need not have an address that others reach it by."""
    call: Any = SimpleNamespace(
        visit=SimpleNamespace(peer=peer),
        door=SimpleNamespace(broker=SimpleNamespace(security=SimpleNamespace(configured=False))),
    )
    assert sql.may(call) is may
    if not may:
        with pytest.raises(NotPermitted, match="for this machine alone"):
            sql.check(call)
