"""What becomes of each kind at each door: all of docs/values.md."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.conformance import devices, zeromq
from tests.conformance.dialects import Connect, Dialect, Stranger, new_name
from tests.conformance.every import DIALECTS, each
from tests.conformance.frames import Framed
from tests.conformance.table import VALUES
from tests.conformance.values import STRING, Value, Way, told

PAGE = Path(__file__).parents[2] / "docs" / "values.md"
TOPIC = "/conformance/values"
MAX_BODY = 65_535
LONGEST_CHARACTER = len("&quot;")  # as it is written in any of the serializers
CASES = [(value, way) for value in VALUES for way in value.ways]


@pytest.fixture(scope="module")
def audience(one_broker: BrokerProcess) -> Iterator[dict[Dialect, Stranger]]:
    """One of each dialect, all subscribed to the same topic."""
    with ExitStack() as closing:
        everyone = {one: closing.enter_context(one.connect(one_broker, new_name())) for one in DIALECTS}
        for receiver in everyone.values():
            receiver.subscribe(TOPIC)
        yield everyone


@pytest.mark.parametrize(("value", "way"), CASES, ids=[f"{way.dialect} {value.name}" for value, way in CASES])
def test_a_value_is_the_same_for_everyone_whichever_way_it_was_published(
    connect: Connect, audience: dict[Dialect, Stranger], value: Value, way: Way
) -> None:
    way.publish(connect(way.dialect), TOPIC)
    received = {dialect: receiver.receive(1) for dialect, receiver in audience.items()}
    found = {one.name: [told(one, message) for message in messages] for one, messages in received.items()}
    assert found == {one.name: [value.as_told(one)] for one in DIALECTS}


def test_the_page_says_what_is_tested_here() -> None:
    published, delivered = tables()
    tested = {(way.door, way.what) for _, way in CASES if way.what}
    assert tested == published
    assert {value.row for value in VALUES} == delivered


def tables() -> tuple[set[tuple[str, str]], set[str]]:
    """What can be published through which door, and the rows of what is delivered."""
    parts = re.split(r"^## .*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    door, published = "", set()
    for first, what, *_ in rows(parts[1]):
        door = first or door
        published.add((door, what))
    return published, {row[0] for row in rows(parts[2])}


def rows(part: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# --- what there is no room for


@each("receiving", lambda dialect: dialect.door == "devices")
@pytest.mark.parametrize("kind", ["string", "json"])
def test_a_device_gets_the_beginning_of_what_is_too_long(
    connect: Connect, topic: str, receiving: Dialect, kind: str
) -> None:
    receiver, publisher = connect(receiving), connect(zeromq.JSON)
    receiver.subscribe(topic)
    sent = '"' + "ș" * 2000 + '"'
    assert isinstance(publisher, zeromq.Json)
    publisher.put(topic, publication=sent, kind=kind)
    ((_, shown, raw),) = receiver.receive(1)
    assert isinstance(raw, devices.Reading)
    assert (raw.type, shown) == (STRING, sent[:750])  # 1499 bytes: the next character has two


@each("receiving", lambda dialect: dialect.door == "devices")
def test_a_device_gets_what_has_a_long_topic_as_a_string(
    connect: Connect, topic: str, receiving: Dialect
) -> None:
    receiver, publisher = connect(receiving), connect(zeromq.JSON)
    name = f"{topic}/".ljust(49, "x") + "ș" * 20
    receiver.subscribe(name)
    assert isinstance(publisher, zeromq.Json)
    publisher.put(name, publication="-12", kind="int")
    ((cut, shown, raw),) = receiver.receive(1)
    assert isinstance(raw, devices.Reading)
    assert (cut, raw.type, shown) == (name[:49], STRING, "-12")


@each("receiving", lambda dialect: dialect.door == "frames")
@pytest.mark.parametrize("char", ["a", "ș", '"', "🙂", "\n"], ids=ascii)
def test_a_frame_holds_the_beginning_of_what_is_too_long(
    connect: Connect, topic: str, receiving: Dialect, char: str
) -> None:
    receiver, publisher = connect(receiving), connect(zeromq.TEXT)
    receiver.subscribe(topic)
    publisher.publish(topic, char * MAX_BODY)
    publisher.publish(topic, "the next")
    found, following = receiver.texts(2)
    assert (found, following) == (char * len(found), "the next")
    assert isinstance(receiver, Framed)
    assert MAX_BODY - LONGEST_CHARACTER < receiver.largest <= MAX_BODY  # one more has no room
