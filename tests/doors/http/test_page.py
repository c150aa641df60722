"""The dashboard, in a real browser against a real broker.

Reports of jobs and alerts are published as the pipeline would publish them: a Spark would take minutes.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.pipeline.runner.reports import Report, moment
from stafeta.security import User, Users
from stafeta.security.passwords import hash_password
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Peer, messages_of, topic_path
from tests.doors.http.windows import CHROMIUM, Window, browsing
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM.exists(),
        reason="there is no chromium to look at the page with: make browser installs it",
    ),
]
PASSWORD = "a long enough horse"
BROWSER_HEADERS = {"Sec-Fetch-Site": "none"}
_numbers = count(1)
Open = Callable[..., Window]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With users: ann does everything, and is the pipeline; bob reads and writes below own/."""
    folder = tmp_path_factory.mktemp("page")
    everything = (Rule.read("all #"), Rule.read("all $sys/#"))
    own = (Rule.read("publish,subscribe,read,acknowledge,list own/#"),)
    users = {
        "ann": User(hash_password(PASSWORD), allow=everything, pipeline=True),
        "bob": User(hash_password(PASSWORD), allow=own),
    }
    save(folder / "users.toml", Users(users=users))
    kept = [f'topics."{one}/#".keep=1d' for one in ("page", "alerts", "rollup", "many")]
    words = [word for one in (*kept, f"security.users={folder / 'users.toml'}") for word in ("--set", one)]
    with BrokerProcess(folder / "data", "--durability", "os", *words, doors=("http", "flight")) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[Peer]:
    """Ann, without a browser."""
    with Peer(broker.door("http")) as made:
        answer = made.ask("POST", "/api/login", {"user": "ann", "password": PASSWORD}, BROWSER_HEADERS)
        assert answer.status == 200, answer
        made.headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0], **BROWSER_HEADERS}
        yield made


@pytest.fixture
def pipeline(broker: BrokerProcess) -> Iterator[Connection]:
    """What jobs report through."""
    with stafeta.connect(broker.flight, user="ann", password=PASSWORD) as found:
        yield found


@contextmanager
def looking(browser: "Browser", place: tuple[str, int], **options: object) -> Iterator[Window]:
    context = browser.new_context(**options)  # type: ignore[arg-type]
    try:
        window = Window(context.new_page(), f"http://{place[0]}:{place[1]}")
        yield window
        assert not window.errors
        assert not window.foreign
    finally:
        context.close()


@pytest.fixture
def window(browser: "Browser", broker: BrokerProcess) -> Iterator[Window]:
    """Logged in as ann. In the end nothing has gone wrong in it, and it has asked nobody else."""
    with looking(browser, broker.door("http")) as found:
        found.open()
        found.log_in("ann", PASSWORD)
        found.see("Slowest subscriptions")
        yield found


@pytest.fixture
def topic() -> str:
    return f"page/{next(_numbers)}"


def publish(peer: Peer, topic: str, *payloads: str, kind: str = "string") -> None:
    peer.post(messages_of(topic), [{"payload": one, "kind": kind} for one in payloads], batch="true")


def lag(peer: Peer, client: str) -> int:
    found = peer.get("/api/subscriptions", sort="behind")["subscriptions"]
    return int(next(one["behind"] for one in found if one["client"] == client))


# --- coming in


def test_one_logs_in_and_out_and_is_told_what_was_wrong(browser: "Browser", broker: BrokerProcess) -> None:
    with looking(browser, broker.door("http")) as window:
        window.open("topics")
        assert window.page.get_by_role("navigation").count() == 0
        window.log_in("ann", "another horse")
        window.see("unknown, or the password is wrong")
        assert window.errors, "the browser says itself that the answer was 401"
        window.errors.clear()
        window.log_in("ann", PASSWORD)
        window.see("Log out")
        assert window.page.get_by_role("heading", name="Topics").is_visible(), "where he wanted to go"
        (cookie,) = window.page.context.cookies()
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
        window.page.get_by_role("button", name="Log out").click()
        window.page.get_by_role("button", name="Log in").wait_for()
        assert not window.page.context.cookies()


def test_who_does_not_see_the_whole_broker_sees_what_is_his(
    browser: "Browser", broker: BrokerProcess, peer: Peer
) -> None:
    publish(peer, "page/secret", "1")
    with looking(browser, broker.door("http")) as window:
        window.open()
        window.log_in("bob", PASSWORD)
        window.see("You have no subscriptions.")
        window.page.get_by_role("link", name="Topics").click()
        window.see("There are no topics yet.")


def test_a_broker_without_users_asks_for_none_and_says_what_to_do_first(
    browser: "Browser", tmp_path: Path
) -> None:
    with (
        BrokerProcess(tmp_path / "data", doors=("http",)) as process,
        looking(browser, process.door("http")) as window,
    ):
        window.open()
        window.see("Nothing has been published yet")
        window.see("stafeta put sensors/kitchen 21.5")
        assert window.page.get_by_role("button", name="Copy: stafeta put").is_visible()
        window.see("There are no durable subscriptions.")
        with Peer(process.door("http")) as peer:
            peer.post("/api/subscriptions", {"client": "c", "filter": "t"})
            publish(peer, "t", "1")
        window.page.get_by_text("Nothing has been published yet").wait_for(state="hidden")
        process.stop()
        window.see("disconnected, trying again")
        process.start()
        window.page.locator(".live.is-live").wait_for()
        window.row("Slowest subscriptions", "http/c")
        window.errors.clear()  # that the broker was away


# --- topics


def test_what_is_published_on_the_page_is_in_tail_and_plot(window: Window, peer: Peer, topic: str) -> None:
    page = window.page
    window.open(f"topics/{topic.replace('/', '%2F')}")
    window.see("Nothing has been published here yet")
    page.get_by_label("Payload").fill("21.5")
    page.get_by_label("Kind").select_option("float")
    page.get_by_role("button", name="Publish").click()
    window.see("Published as message 1.")
    window.row("Messages, the newest first", "21.5")
    window.see("last 21.5")
    plot = page.get_by_role("img", name="Values of the newest messages").locator("canvas")
    plot.wait_for()
    before = plot.evaluate("canvas => canvas.toDataURL()")
    publish(peer, topic, "22.5", "19.25", kind="float")
    window.see("last 19.25")
    wait_until(lambda: plot.evaluate("canvas => canvas.toDataURL()") != before)
    first = page.get_by_role("table", name="Messages, the newest first").get_by_role("row").nth(1)
    assert "19.25" in first.inner_text()
    page.get_by_label("Kind").select_option("int")
    page.get_by_label("Payload").fill("not a number")
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("alert").filter(has_text="not a number").wait_for()
    assert window.errors, "the browser says itself that the answer was 400"
    window.errors.clear()


def test_a_tail_is_paused_and_filtered(window: Window, peer: Peer, topic: str) -> None:
    publish(peer, topic, "apple", "pear")
    window.open(f"topics/{topic.replace('/', '%2F')}")
    window.row("Messages, the newest first", "pear")
    window.page.get_by_role("button", name="Pause").click()
    publish(peer, topic, "plum")
    window.see("paused, 1 new")
    assert not window.page.get_by_role("cell", name="plum").count()
    window.page.get_by_role("button", name="Go on").click()
    window.row("Messages, the newest first", "plum")
    window.page.get_by_label("Show messages with this text").fill("APP")
    window.page.get_by_role("cell", name="plum").wait_for(state="hidden")
    assert window.page.get_by_role("cell", name="apple").is_visible()


def test_rollups_are_drawn_beside_the_values(window: Window, peer: Peer, topic: str) -> None:
    publish(peer, topic, "1.5", "2.5", kind="float")
    windows = [
        {"start": f"2026-11-16T09:1{n}:00.000000Z", "min": n, "max": n + 2, "mean": n + 1} for n in range(3)
    ]
    publish(peer, f"rollup/1m/{topic}", *map(json.dumps, windows), kind="json")
    window.open(f"topics/{topic.replace('/', '%2F')}")
    window.page.get_by_role("img", name="Mean, min and max").locator("canvas").wait_for()
    assert window.page.get_by_label("Size of the windows").inner_text() == "1m"


def test_how_long_messages_are_kept_is_changed_by_keyboard(window: Window, peer: Peer, topic: str) -> None:
    page, keyboard = window.page, window.page.keyboard

    def keep() -> dict[str, object]:
        found: dict[str, object] = peer.get(topic_path(topic))["keep"]
        return found

    publish(peer, topic, "1", "2", "3")
    window.open(f"topics/{topic.replace('/', '%2F')}")
    window.see("1 d")
    change = page.get_by_role("button", name="Change how long messages are kept")
    change.press("Enter")
    window.see("as the configuration says (page/#: 1 d)")
    assert page.get_by_role("spinbutton", name="Age").input_value() == "1"
    page.get_by_role("spinbutton", name="Age").fill("36")
    page.get_by_label("Age, unit").select_option("hours")
    page.get_by_role("spinbutton", name="Count").fill("2")
    keyboard.press("Enter")
    window.see(f"{topic} keeps 1 d 12 h, 2 messages.")
    assert keep() == {"seconds": 129600, "bytes": None, "messages": 2, "rule": None, "own": True}
    window.see("kept for, as set here")
    wait_until(lambda: change.evaluate("found => found === document.activeElement"))
    keyboard.press("Enter")
    assert page.get_by_role("spinbutton", name="Age").input_value() == "36"
    for limit in ("Age", "Count"):
        page.get_by_role("spinbutton", name=limit).fill("")
    keyboard.press("Enter")
    window.see("Name at least one limit")
    page.get_by_role("spinbutton", name="Size").fill("1.5")
    page.get_by_label("Size, unit").select_option("KB")
    keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert keep()["messages"] == 2, "nothing was changed"
    change.press("Enter")
    page.get_by_role("radio", name="as set here").press("ArrowUp")
    keyboard.press("Enter")
    window.see("keeps what the configuration says")
    assert keep() == {"seconds": 86400, "bytes": None, "messages": None, "rule": "page/#", "own": False}


def test_topics_are_searched_and_paged(window: Window, peer: Peer) -> None:
    for number in range(60):
        peer.ask("PUT", f"/api/topics/many%2F{number:02}", {})
    window.open("topics?search=many/")
    window.see("1 to 50")
    assert window.page.get_by_role("link", name="many/").count() == 50
    window.page.get_by_role("button", name="Next").click()
    window.see("51 to 60")
    window.page.get_by_role("button", name="Previous").click()
    window.see("1 to 50")
    window.page.keyboard.press("Escape")
    window.page.locator("h1").click()
    window.page.keyboard.press("/")
    window.page.keyboard.press("ControlOrMeta+a")
    window.page.keyboard.type("MANY/07")
    window.see("1 to 1")
    window.page.keyboard.press("Escape")
    wait_until(lambda: window.page.get_by_role("searchbox").input_value() == "")


# --- subscriptions


def unsubscribe(peer: Peer, client: str, filter_: str) -> None:
    media = {"Content-Type": "application/json"}
    answer = peer.ask("DELETE", "/api/subscriptions", None, media, client=client, filter=filter_)
    assert answer.status == 200, answer


def test_a_lag_rises_and_goes_to_zero_as_it_is_acknowledged(window: Window, peer: Peer, topic: str) -> None:
    peer.post("/api/subscriptions", {"client": "slow", "filter": topic})
    publish(peer, topic, "1", "2")
    behind = window.row("Slowest subscriptions", "http/slow").get_by_role("cell").nth(1)
    wait_until(lambda: behind.inner_text() == "2")
    seconds = window.row("Slowest subscriptions", "http/slow").get_by_role("cell").nth(2)
    earlier = seconds.inner_text()
    publish(peer, topic, "3")
    wait_until(lambda: behind.inner_text() == "3")
    wait_until(lambda: seconds.inner_text() != earlier)
    window.open("subscriptions")
    window.page.get_by_role("button", name=f"Cursors of slow on {topic}").click()
    window.page.get_by_role("button", name=f"Acknowledge {topic}").click()
    window.page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    window.see("Acknowledged up to 3.")
    assert lag(peer, "slow") == 0
    window.open()
    window.see("Slowest subscriptions")
    window.page.get_by_text("http/slow").wait_for(state="hidden")


def test_a_subscription_is_found_among_more_than_are_shown(window: Window, peer: Peer, topic: str) -> None:
    """Those that are furthest behind are shown; the one that is looked for is not among them."""
    client = f"one-of-many-{topic.rpartition('/')[2]}"
    for number in range(205):
        peer.post("/api/subscriptions", {"client": f"{client}-{number:03}", "filter": topic})
    peer.post("/api/subscriptions", {"client": "caught-up", "filter": f"{topic}/quiet"})
    publish(peer, topic, "1")
    window.open("subscriptions")
    window.see("The 200 that are furthest behind are shown.")
    assert window.page.get_by_role("cell", name="caught-up").count() == 0
    window.page.get_by_role("searchbox").fill("CAUGHT")
    window.row("Subscriptions", "caught-up")
    window.page.get_by_text("furthest behind are shown").wait_for(state="hidden")
    window.page.get_by_role("searchbox").fill("nobody has this name")
    window.see("No subscription has “nobody has this name”")
    for number in range(205):
        unsubscribe(peer, f"{client}-{number:03}", topic)


def test_a_cursor_is_moved_back_after_a_question(window: Window, peer: Peer, topic: str) -> None:
    peer.post("/api/subscriptions", {"client": "again", "filter": topic})
    publish(peer, topic, "1", "2", "3")
    peer.post("/api/subscriptions/move", {"client": "again", "filter": topic, "to": "latest"})
    window.open("subscriptions")
    move = window.page.get_by_role("button", name=f"Move again on {topic}")
    move.click()
    window.page.keyboard.press("Escape")
    window.page.get_by_role("dialog").wait_for(state="hidden")
    assert lag(peer, "again") == 0
    move.click()
    window.page.get_by_role("spinbutton", name="Offset").fill("2")
    window.page.get_by_role("dialog").get_by_role("button", name="Move").click()
    window.see("Moved on 1 topic.")
    assert lag(peer, "again") == 2
    move.click()
    window.page.get_by_role("dialog").get_by_role("button", name="Move").click()
    window.page.get_by_role("dialog").wait_for(state="hidden")
    assert lag(peer, "again") == 3
    unsubscribe(peer, "again", topic)


# --- jobs and alerts


def report(pipeline: Connection, job: str, state: str, batch: int, rows: int, **more: object) -> None:
    found = Report(job, state, moment(), batch, rows, 120.0, 7, **more)  # type: ignore[arg-type]
    pipeline.publish(found.topic, [found.to_json()], kind="json")


def test_jobs_and_alerts_appear_while_one_looks(window: Window, peer: Peer, pipeline: Connection) -> None:
    report(pipeline, "archive", "running", 1, 100)
    assert "running" in window.row("Jobs", "archive").inner_text()
    alert = {"rule": "hot", "topic": "upb/hall", "state": "raised", "severity": "critical"}
    publish(peer, "alerts/hot/upb/hall", json.dumps({**alert, "message": "29.5 degrees"}), kind="json")
    window.see("29.5 degrees")
    publish(peer, "alerts/hot/upb/hall", "neither <b>JSON</b> nor an alert")
    window.see("neither <b>JSON</b> nor an alert")
    window.page.get_by_role("link", name="Pipeline").first.click()
    window.row("Jobs", "archive")
    report(pipeline, "archive", "running", 2, 130)
    commit = window.row("Last commits", "archive").get_by_role("cell").all_inner_texts()
    assert commit[1:] == ["archive", "2", "30"]
    report(pipeline, "rollup", "failed", 1, 5, error="The disk is full.")
    failed = window.row("Jobs", "rollup").inner_text()
    assert "failed" in failed
    assert "The disk is full." in failed
    window.page.get_by_role("img", name="Rows per second of each job").locator("canvas").wait_for()


# --- for everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    window: Window, peer: Peer, pipeline: Connection, topic: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    # What just appears is faint for a moment, unless one wants no motion.
    window.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    peer.post("/api/subscriptions", {"client": "reader", "filter": topic})
    publish(peer, topic, "1.5", "2.5", kind="float")
    report(pipeline, "archive", "running", 3, 140)
    pages = {"": "Store", f"topics?search={topic}": topic, f"topics/{topic.replace('/', '%2F')}": "last 2.5"}
    for path, text in {**pages, "subscriptions": "reader", "pipeline": "Throughput"}.items():
        window.open(path)
        window.see(text)
        _check(Axe().run(window.page).response, path)
        if text == "last 2.5":
            window.page.get_by_role("button", name="Change how long messages are kept").click()
            _check(Axe().run(window.page).response, "the question how long messages are kept")
            window.page.keyboard.press("Escape")
        if path == "subscriptions":
            window.page.get_by_role("button", name=f"Move reader on {topic}").click()
            _check(Axe().run(window.page).response, "the dialog")
            window.page.keyboard.press("Escape")
    window.page.get_by_role("button", name="Log out").click()
    window.page.get_by_role("button", name="Log in").wait_for()
    _check(Axe().run(window.page).response, "login")


def _check(found: dict[str, object], path: str) -> None:
    violations = found["violations"]
    assert isinstance(violations, list)
    serious = [
        (one["id"], one["help"], [node["html"] for node in one["nodes"]][:3])
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious, path


def test_a_phone_shows_each_page_without_scrolling_sideways(window: Window, peer: Peer, topic: str) -> None:
    publish(peer, topic, "1.5", "word " * 100, "w" * 300)
    window.page.set_viewport_size({"width": 390, "height": 800})
    for path in ("", "topics", f"topics/{topic.replace('/', '%2F')}", "subscriptions", "pipeline"):
        window.open(path)
        window.page.locator("h1").wait_for()
        wide = window.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, path


def test_light_and_dark_are_switched_and_remembered(window: Window) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = window.page.evaluate(ground)
    window.page.get_by_role("button", name="Dark").click()
    dark = window.page.evaluate(ground)
    assert dark != light
    window.page.reload()
    window.see("Slowest subscriptions")
    assert window.page.evaluate(ground) == dark


def test_the_first_key_leads_past_the_navigation(window: Window) -> None:
    window.page.reload()
    window.see("Slowest subscriptions")
    window.page.keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    window.page.keyboard.press("Enter")
    assert window.page.evaluate("document.activeElement.id") == "main"
    window.see("Slowest subscriptions")


def test_the_page_is_held_by_browsers_and_asked_for_only_where_it_has_changed(broker: BrokerProcess) -> None:
    with Peer(broker.door("http")) as peer:
        for path in ("/", "/page/app.js", "/page/views/topic.js", "/page/vendor/uPlot.iife.min.js"):
            answer = peer.ask("GET", path)
            assert answer.status == 200, path
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            again = peer.ask("GET", path, None, {"If-None-Match": answer.headers["etag"]})
            assert (again.status, again.body) == (304, b"")
        assert peer.ask("GET", "/page/__init__.py").status == 404
        assert peer.ask("GET", "/page/..%2Fapp.py").status == 404
