"""Actions: what they answer, and what they say to bodies that are wrong."""

import json
from typing import Any

import pytest
from pyarrow import flight

import stafeta
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, numbered, refused, works

RIGHT: dict[str, dict[str, Any]] = {
    "subscribe": {"client": "somebody", "filter": "actions/#"},
    "unsubscribe": {"client": "somebody", "filter": "actions/#"},
    "ack": {"client": "somebody", "filter": "actions/#", "ranges": []},
    "cursors": {"client": "somebody", "filter": "actions/#"},
    "subscriptions": {},
    "topics": {},
    "check": {"marks": []},
    "stats": {},
    "sequence": {"producer": "somebody", "topic": "actions"},
    "begin": {"producer": "somebody"},
    "committed": {"producer": "somebody"},
    "commit": {"producer": "somebody", "counter": 1},
    "abort": {"producer": "somebody", "counter": 1},
}
WRONG_VALUES: dict[str, list[Any]] = {
    "client": [None, 5, "", "two words", "x" * 300, ["a"]],
    "filter": [5, "", "a b", "a#b", "/".join("#" * 5), ["a"]],
    "ranges": [None, "all", {}],
    "marks": [None, "all", {}, [5], ["all"], [""]],
    "producer": [None, 5, "", "two words"],
    "topic": [None, 5, "", "a b", "a/+"],
    "counter": [None, "1", 1.5, True, -1, 1 << 70],
}
OPTIONAL: dict[str, dict[str, list[Any]]] = {
    "subscribe": {"from": ["now", 5, ""]},
    "topics": {"filter": WRONG_VALUES["filter"]},
    "committed": {"counter": WRONG_VALUES["counter"][1:]},
    "commit": {
        "parts": ["a", [5], {"a": "5"}, {"a": -1}, {"a": True}],
        "label": [5, ["a"], "x" * 201],
        "forget_after": [0, -1, "1", 1.5, 1 << 70],
    },
}
NO_OBJECTS = [b"{", b"[]", b"null", b"5", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000]


def wrong_bodies() -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for action, right in RIGHT.items():
        found += [(action, body) for body in NO_OBJECTS]
        bodies: list[dict[str, Any]] = [right | {"colour": "red"}]
        bodies += [{key: right[key] for key in right if key != left_out} for left_out in right]
        bodies += [right | {key: value} for key in right for value in WRONG_VALUES[key]]
        bodies += [
            right | {key: value} for key, values in OPTIONAL.get(action, {}).items() for value in values
        ]
        found += [(action, json.dumps(body).encode()) for body in bodies]
    return found


def test_a_body_that_is_wrong_is_refused_with_a_sentence(flying: BrokerProcess, peer: Peer) -> None:
    wrong = []
    for action, body in wrong_bodies():
        try:
            with refused():
                peer.told(action, body)
        except (AssertionError, pytest.fail.Exception) as error:  # all of them are told at once
            wrong.append(f"{action} {body[:80]!r}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
    assert works(flying)


@pytest.mark.parametrize("action", ["shout", "", "Subscribe", "stats ", "ș"], ids=ascii)
def test_an_action_that_there_is_not_is_refused(flying: BrokerProcess, peer: Peer, action: str) -> None:
    with refused():
        peer.told(action, b"{}")
    assert works(flying)


def test_the_actions_are_listed(peer: Peer) -> None:
    listed: list[Any] = list(peer.client.list_actions(peer.options))
    assert {one.type for one in listed} == set(RIGHT)
    assert all(one.description for one in listed)


def test_a_subscriber_is_told_how_far_it_has_come(peer: Peer, topic: str, name: str) -> None:
    filter_ = f"{topic}/#"
    with refused() as told:
        peer.act("cursors", client=name, filter=filter_)
    assert told.error == "NotSubscribed"
    body = json.dumps({"client": name, "filter": filter_}).encode()
    peer.act("subscribe", client=name, filter=filter_)
    assert peer.told("cursors", body) == []
    peer.put_texts(f"{topic}/a", ["1", "2", "3"])
    peer.put_texts(f"{topic}/b", ["1"])
    peer.act("ack", client=name, filter=filter_, ranges=[[f"{topic}/a", None, 3]])
    peer.act("ack", client=name, filter=filter_, ranges=[[f"{topic}/b", 1, 2]])
    assert peer.told("cursors", body) == [
        {"topic": f"{topic}/a", "floor": 3, "next": 4},
        {"topic": f"{topic}/b", "floor": 2, "next": 2},
    ]


def test_durable_subscriptions_of_all_doors_are_told(peer: Peer, topic: str, name: str) -> None:
    def told() -> list[dict[str, Any]]:
        return [one for one in peer.told("subscriptions", b"{}") if one["filter"].startswith(topic)]

    peer.subscribe(name, f"{topic}/+")
    assert told() == [{"client": f"flight/{name}", "filter": f"{topic}/+", "cursors": []}]
    peer.put_texts(f"{topic}/a", numbered(9))
    peer.ack(name, f"{topic}/+", (f"{topic}/a", None, 3), (f"{topic}/a", 5, 7), (f"{topic}/a", 9, 10))
    cursor = {"topic": f"{topic}/a", "floor": 3, "above": [[5, 7], [9, 10]], "first": 1, "next": 10}
    assert told() == [{"client": f"flight/{name}", "filter": f"{topic}/+", "cursors": [cursor]}]


def test_topics_are_told(peer: Peer, topic: str, name: str) -> None:
    peer.put_texts(f"{topic}/a", numbered(3))
    peer.subscribe(name, f"{topic}/+")
    peer.subscribe(name, f"{topic}/b")
    assert sorted(peer.topics(f"{topic}/#"), key=str) == [
        {"topic": f"{topic}/a", "first": 1, "next": 4, "rows": 3, "subscribers": 1},
        *([one] if (one := _topic(peer, f"{topic}/b")) else []),
    ]
    every = {one["topic"] for one in peer.told("topics", b"{}")}
    assert every >= {f"{topic}/a"}
    assert peer.topics(f"{topic}/nothing/+") == []


def test_a_filter_that_is_one_name_matches_that_topic_or_none(peer: Peer, topic: str) -> None:
    assert peer.topics(topic) == []
    assert peer.get({"filter": topic}).num_rows == 0
    peer.put_texts(topic, numbered(2))
    assert [one["topic"] for one in peer.topics(topic)] == [topic]
    assert peer.texts({"filter": topic}) == numbered(2)


def _topic(peer: Peer, name: str) -> dict[str, Any] | None:
    """A topic that was subscribed to and never published to: whether it exists yet is the broker's affair."""
    found = peer.topics(f"{name}/#")
    assert found in ([], [{"topic": name, "first": 1, "next": 1, "rows": 0, "subscribers": 2}])
    return found[0] if found else None


def test_the_state_of_the_broker_is_told(peer: Peer, topic: str, name: str) -> None:
    before = peer.act("stats")
    assert before.keys() == {
        "version",
        "topics",
        "subscriptions",
        "clients",
        "messages",
        "position",
        "pending",
        "uptime",
        "streams",
    }
    assert before["version"] == stafeta.__version__
    peer.put_texts(topic, numbered(7))
    peer.subscribe(name, topic)
    after = peer.act("stats")
    grown = {key: after[key] - before[key] for key in before if key != "version"}
    assert grown.pop("uptime") > 0
    assert grown == {
        "topics": 1,
        "subscriptions": 1,
        "clients": 1,
        "messages": 7,
        "position": 7,
        "pending": 0,
        "streams": 0,
    }


def test_a_producer_is_told_its_next_number(peer: Peer, topic: str, name: str) -> None:
    assert peer.act("sequence", producer=name, topic=topic) == {"next": 1}
    peer.put_texts({"topic": topic, "producer": name}, numbered(5), {"sequence": 1})
    assert peer.act("sequence", producer=name, topic=topic) == {"next": 6}
    peer.put_texts({"topic": topic, "producer": name}, numbered(5), {"sequence": 1})
    assert peer.act("sequence", producer=name, topic=topic) == {"next": 6}
    assert peer.act("sequence", producer=f"{name}-other", topic=topic) == {"next": 1}
    assert peer.act("sequence", producer=name, topic=f"{topic}/other") == {"next": 1}


def test_to_ask_for_a_number_makes_no_topic(peer: Peer, topic: str, name: str) -> None:
    peer.act("sequence", producer=name, topic=topic)
    assert peer.topics(f"{topic}/#") == []


def test_what_the_door_does_not_do_is_an_error_and_nothing_worse(
    flying: BrokerProcess, peer: Peer, topic: str
) -> None:
    writer, reader = peer.client.do_exchange(flight.FlightDescriptor.for_path(topic), peer.options)
    writer.done_writing()
    with pytest.raises((flight.FlightError, NotImplementedError)):
        reader.read_chunk()
    assert works(flying)
