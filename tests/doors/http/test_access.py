"""Who comes in over HTTP, and what a browser sends for somebody who does not know of it."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from stafeta.security import User, Users
from stafeta.security.passwords import hash_password
from stafeta.security.users import Token, hash_token
from tests.doors.http.peers import Answer, Events, Peer, Place, messages_of
from tests.guarded import Guarded, rules
from tests.waiting import PATIENCE, wait_until

JSON = {"Content-Type": "application/json"}


USERS = Users(
    {
        "admin": User(allow=rules("all #", "all $sys/#")),
        "ann": User(hash_password("secret"), allow=rules("all a/#")),
        "bob": User(hash_password("hidden"), allow=rules("all b/#")),
    },
    tokens={
        "admin": Token("admin", hash_token("admin-token"), datetime.now(UTC)),
        "ann": Token("ann", hash_token("ann-token"), datetime.now(UTC)),
    },
)
ANN = {"Authorization": "Bearer ann-token"}
ADMIN = {"Authorization": "Bearer admin-token"}


class GuardedDoor(Guarded):
    @property
    def place(self) -> Place:
        return self.process.door("http")


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDoor]:
    guarded = GuardedDoor(tmp_path_factory.mktemp("guarded-http"), USERS, doors=("http",))
    with guarded.process:
        yield guarded
        assert "Traceback" not in guarded.process.stderr


@pytest.fixture
def broker(module_broker: GuardedDoor) -> GuardedDoor:
    module_broker.change_back()
    return module_broker


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def ask(
    place: Place, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    with Peer(place) as peer:
        return peer.ask(method, path, body, headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (basic("ann", "secret"), 200),
        (basic("ann", "wrong"), 401),
        (basic("nobody", "secret"), 401),
        (ANN, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Digest x"}, 401),
        ({"Authorization": "Basic !"}, 401),
        ({"Cookie": "stafeta_session=wrong"}, 401),
    ],
)
def test_who_comes_in(broker: GuardedDoor, headers: dict[str, str], status: int) -> None:
    answer = ask(broker.place, "GET", "/api/topics", headers=headers)
    assert answer.status == status
    if status == 401:
        assert answer.json["type"].endswith("#NotAuthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")  # with which no browser asks by itself


def test_everybody_does_what_he_may(broker: GuardedDoor) -> None:
    with Peer(broker.place, ANN) as ann, Peer(broker.place, basic("bob", "hidden")) as bob:
        assert ann.post("/api/subscriptions", {"client": "c", "filter": "a/#"})["client"] == "c"
        assert ann.publish("a/1", "x")["first"] == 1
        refused = bob.ask("POST", messages_of("a/1"), b"x")
        assert (refused.status, refused.json["type"]) == (403, "/api/docs#NotPermitted")
        assert bob.ask("GET", messages_of("a/1")).status == 403
        assert bob.ask("GET", messages_of("a/none")).status == 403  # as of one that is there
        assert bob.get("/api/topics")["topics"] == []
        assert bob.get("/api/subscriptions")["subscriptions"] == []
        aim = {"client": "c", "filter": "a/#"}
        assert bob.ask("GET", "/api/subscriptions/messages", **aim).status == 404
        assert bob.ask("GET", "/api/subscriptions/messages", user="ann", **aim).status == 404
        assert [one["payload"] for one in ann.get("/api/subscriptions/messages", **aim)["messages"]] == ["x"]
        (line,) = ann.get("/api/subscriptions")["subscriptions"]
        assert (line["client"], line["door"], line["user"], line["behind"]) == ("c", "http", None, 1)
    with Peer(broker.place, ADMIN) as admin:
        lines = admin.get("/api/subscriptions", sort="behind")["subscriptions"]
        assert [(one["user"], one["client"]) for one in lines if one["behind"]] == [("ann", "c")]
        moved = admin.post("/api/subscriptions/move", {**aim, "user": "ann", "to": "latest"})
        assert moved["moved"] == [{"topic": "a/1", "next": 2, "collected": 0}]
        answer = admin.ask("DELETE", "/api/subscriptions", user="ann", **aim)
        assert answer.status == 200


# --- sessions


def login(peer: Peer, **body: str) -> Answer:
    return peer.ask("POST", "/api/login", body)


def own(place: Place) -> dict[str, str]:
    return {"Origin": f"http://{place[0]}:{place[1]}"}


def test_a_session_is_a_cookie_that_scripts_cannot_read(broker: GuardedDoor) -> None:
    with Peer(broker.place) as peer:
        answer = login(peer, user="ann", password="secret")
        assert answer.status == 200
        assert answer.json["user"] == "ann"
        word, *attributes = answer.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(attributes)
        peer.headers = {"Cookie": f"other=1; {word}"}
        assert peer.get("/api/session")["user"] == "ann"
        assert peer.get("/api/topics")
        assert peer.ask("POST", "/api/logout", {}, own(broker.place)).status == 200
        assert peer.ask("GET", "/api/topics").status == 401
        assert peer.get("/api/session")["authenticated"] is False


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"user": "ann", "password": "wrong"}, 401),
        ({"token": "ann-token"}, 200),
        ({"token": "wrong"}, 401),
        ({}, 400),
        ({"user": "ann", "token": "ann-token"}, 400),
        ({"user": 1}, 400),
    ],
)
def test_a_login_is_a_password_or_a_token(broker: GuardedDoor, body: dict[str, str], status: int) -> None:
    assert ask(broker.place, "POST", "/api/login", body).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # nobody says where it comes from
        ({"Origin": "OWN", **JSON}, 201),
        ({"Sec-Fetch-Site": "same-origin", **JSON}, 201),
        ({"Origin": "http://evil.example", **JSON}, 403),
        ({"Origin": "null", **JSON}, 403),
        ({"Origin": "https://[", **JSON}, 403),
        ({"Sec-Fetch-Site": "cross-site", **JSON}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "OWN", **JSON}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Content-Type": "text/plain"}, 415),  # what a form can send
        ({"Sec-Fetch-Site": "same-origin", "Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Sec-Fetch-Site": "same-origin"}, 415),
    ],
)
def test_a_cookie_alone_changes_nothing(broker: GuardedDoor, headers: dict[str, str], status: int) -> None:
    with Peer(broker.place) as peer:
        cookie = login(peer, token="ann-token").headers["set-cookie"].partition(";")[0]
        sent = {
            name: own(broker.place)["Origin"] if value == "OWN" else value for name, value in headers.items()
        }
        assert peer.ask("POST", messages_of("a/forged"), b"{}", {"Cookie": cookie, **sent}).status == status


def test_a_page_of_another_site_gets_nothing_by_other_credentials_either(broker: GuardedDoor) -> None:
    """A browser that knows a password sends it by itself."""
    evil = {"Origin": "http://evil.example", **basic("ann", "secret")}
    assert ask(broker.place, "POST", messages_of("a/x"), b"x", evil).status == 403
    assert ask(broker.place, "GET", "/api/events?filter=a/%23", None, evil).status == 403
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(broker.place, "GET", "/api/docs", None, navigation).status == 200  # somebody follows a link


def test_a_websocket_says_where_it_comes_from(broker: GuardedDoor) -> None:
    url = f"ws://{broker.place[0]}:{broker.place[1]}/api/socket?filter=a/%23"
    for origin, headers, status in ((Origin("http://evil.example"), ANN, 403), (None, {}, 401)):
        with (
            pytest.raises(InvalidStatus) as raised,
            connect(url, origin=origin, additional_headers=headers, open_timeout=PATIENCE),
        ):
            pass
        assert raised.value.response.status_code == status
        assert raised.value.response.headers["content-type"] == "application/problem+json"
    with connect(
        url, origin=Origin(own(broker.place)["Origin"]), additional_headers=ANN, open_timeout=PATIENCE
    ):
        pass


# --- what is taken away


def test_whoever_is_removed_has_no_session_and_no_stream(broker: GuardedDoor) -> None:
    place = broker.place
    with Peer(place) as peer, closing(Events(place, basic("bob", "hidden"), filter="b/#")) as stream:
        cookie = login(peer, user="bob", password="hidden").headers["set-cookie"].partition(";")[0]
        peer.headers = {"Cookie": cookie}
        assert peer.get("/api/session")["user"] == "bob"
        broker.change(USERS.with_user("bob", None))
        assert list(stream) == []  # it has ended
        with Peer(place, {"Cookie": cookie}) as again:
            assert again.ask("GET", "/api/topics").status == 401
        assert ask(place, "GET", "/api/topics", None, basic("bob", "hidden")).status == 401


def test_a_stream_ends_whose_topics_are_not_allowed_any_more(broker: GuardedDoor) -> None:
    with closing(Events(broker.place, ANN, filter="a/#")) as stream:
        broker.change(USERS.with_user("ann", User(allow=rules("publish a/#"))))
        (event,) = stream.take(1)
        assert (event.name, event.data["type"]) == ("error", "/api/docs#NotPermitted")
        assert list(stream) == []


def test_an_administrator_who_ends_a_subscription_ends_its_stream(broker: GuardedDoor) -> None:
    with (
        closing(Events(broker.place, ANN, client="c", filter="a/ended")) as stream,
        Peer(broker.place, ADMIN) as peer,
    ):
        path = "/api/subscriptions"
        wait_until(lambda: any(one["connected"] for one in peer.get(path, filter="a/ended")["subscriptions"]))
        assert peer.ask("DELETE", path, client="c", filter="a/ended").status == 404  # his own he has not
        assert peer.ask("DELETE", path, client="c", filter="a/ended", user="ann").status == 200
        (event,) = list(stream)
        assert (event.name, event.data["type"]) == ("error", "/api/docs#NotSubscribed")
    with closing(Events(broker.place, ANN, filter="a/ended")) as stream, Peer(broker.place, ADMIN) as peer:
        wait_until(lambda: peer.get(path, filter="a/ended")["subscriptions"])  # one without a name
        (line,) = peer.get(path, filter="a/ended")["subscriptions"]
        found = {"client": line["client"], "door": line["door"], "user": "ann", "filter": "a/ended"}
        assert peer.ask("DELETE", path, None, None, **found).status == 200
        assert [event.name for event in stream] == ["error"]


def test_a_changed_password_ends_what_came_in_by_it(broker: GuardedDoor) -> None:
    with Peer(broker.place, basic("ann", "secret")) as peer:
        peer.get("/api/topics")
        broker.change(USERS.with_user("ann", User(hash_password("new"), allow=rules("all a/#"))))
        with Peer(broker.place) as again:
            assert again.ask("GET", "/api/topics", None, basic("ann", "secret")).status == 401
            assert again.ask("GET", "/api/topics", None, basic("ann", "new")).status == 200


# --- the name of the door


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:PORT", 200),
        ("localhost:PORT", 200),
        ("LOCALHOST", 200),
        ("broker.localhost", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("evil.example:PORT", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_without_users_a_name_that_leads_here_is_not_enough(peer: Peer, host: str, status: int) -> None:
    sent = {"Host": host.replace("PORT", str(peer.place[1]))}
    assert peer.ask("GET", "/api/topics", None, sent).status == status
    assert peer.ask("POST", messages_of("t"), b"x", sent).status == (201 if status == 200 else status)


def test_without_users_a_page_of_another_site_changes_nothing(peer: Peer) -> None:
    """A form can send text/plain to wherever it likes, and no browser asks before."""
    for sent in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = peer.ask("POST", messages_of("t"), b"x", {**sent, "Content-Type": "text/plain"})
        assert answer.status == 403
        with Peer(peer.place) as another:
            assert another.ask("GET", "/api/events?filter=t", None, sent).status == 403


def test_a_name_is_enough_for_those_who_say_who_they_are(broker: GuardedDoor) -> None:
    assert ask(broker.place, "GET", "/api/topics", None, {"Host": "broker.example.com", **ANN}).status == 200


def test_every_answer_has_the_headers_that_keep_browsers_careful(peer: Peer) -> None:
    for path in ("/api/docs", "/api/topics", "/nothing", "/healthz"):
        headers = peer.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
