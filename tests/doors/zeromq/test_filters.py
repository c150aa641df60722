"""Filters: reading many topics through one subscription, in either dialect."""

import pytest

from tests.doors.zeromq.peers import Peer, texts

# --- text dialect


def test_a_filter_reads_all_that_it_matches_by_position(dealer: Peer, topic: str) -> None:
    assert dealer.ask(f"SUB a {topic}/+") == "ACK"
    dealer.ask(f"PUT {topic}/x one")
    dealer.ask(f"PUT {topic}/y two")
    dealer.ask(f"PUT {topic}/x three")
    assert dealer.ask(f"PUT {topic}/x/deeper four") == "NON_EXISTENT"
    messages = dealer.got("a", f"{topic}/+")
    positions = [position for position, _ in messages]
    assert [text for _, text in messages] == ["one", "two", "three"]
    assert positions == sorted(set(positions))
    assert dealer.got("a", f"{topic}/x") == [(1, "one"), (2, "three")]  # by name: with the topic's own ids
    assert dealer.got("a", f"{topic}/y") == [(1, "two")]
    assert dealer.ask(f"ACK a {topic}/+ {positions[1]}") == "ACK"
    assert dealer.got("a", f"{topic}/+") == [messages[0], messages[2]]
    assert dealer.ask(f"ACK a {topic}/x 1") == "ACK"
    assert dealer.got("a", f"{topic}/+") == [messages[2]]
    assert dealer.ask(f"ACK a {topic}/+ {positions[2]},{positions[0]}") == "ACK"
    assert dealer.ask(f"GET a {topic}/+") == "NO_MESSAGES"
    assert dealer.ask(f"ACK a {topic}/+ {positions[2] + 1_000_000}").startswith("BAD_REQUEST ")


def test_a_filter_is_ended_as_it_was_written(dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}/#")
    dealer.ask(f"PUT {topic}/x one")
    assert dealer.ask(f"GET a {topic}/*") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"UNSUB a {topic}/x") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"UNSUB a {topic}/#") == "ACK"
    assert dealer.ask(f"UNSUB a {topic}/#") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"PUT {topic}/x two") == "NON_EXISTENT"


@pytest.mark.parametrize("wild", ["#", "*"])
def test_any_number_of_levels_is_none_too(dealer: Peer, topic: str, wild: str) -> None:
    dealer.ask(f"SUB a {topic}/{wild}")
    for name in (topic, f"{topic}/x", f"{topic}/x/y"):
        assert dealer.ask(f"PUT {name} to {name}") == "ACK"
    texts = [text for _, text in dealer.got("a", f"{topic}/{wild}")]
    assert texts == [f"to {topic}", f"to {topic}/x", f"to {topic}/x/y"]


# --- JSON dialect


def test_a_filter_is_read_by_position_and_names_each_topic(peer: Peer, topic: str) -> None:
    wide = f"{topic}/+"
    start = peer.acked("SUB", wide, "a")["last_publication_id"]
    for name, text in (("x", "one"), ("y", "two"), ("x", "three")):
        peer.acked("PUT", f"{topic}/{name}", "p", publication=text)
    found = peer.acked("GET", wide, "a", last_publication_id=start, limit=10)["publications"]
    assert [(one["topic"], one["text"]) for one in found] == [
        (f"{topic}/x", "one"),
        (f"{topic}/y", "two"),
        (f"{topic}/x", "three"),
    ]
    positions = [one["id"] for one in found]
    assert start < positions[0] < positions[1] < positions[2]
    single = peer.acked("GET", wide, "a", last_publication_id=positions[0])
    assert single == {"publication": "two", "publication_id": positions[1], "topic": f"{topic}/y"}
    assert texts(peer, f"{topic}/x", "a", 1) == ["three"]  # one topic through the filter, with its own ids
    assert peer.told("ACK", wide, "a", ids=[positions[2]]) == {"type": "ACK"}
    left = peer.acked("GET", wide, "a", last_publication_id=positions[0], limit=10)["publications"]
    assert [one["id"] for one in left] == [positions[1]]
    assert peer.told("ACK", wide, "a", last_publication_id=positions[2]) == {"type": "ACK"}
    nothing = peer.acked("GET", wide, "a", last_publication_id=positions[2], limit=10)
    assert nothing == {"publications": []}
    assert "No message has the position" in peer.refused("ACK", wide, "a", ids=[positions[2] + 1_000_000])


def test_a_topic_that_several_of_a_clients_filters_match_is_read_through_each(peer: Peer, topic: str) -> None:
    for wide in (f"{topic}/#", f"{topic}/+"):
        peer.acked("SUB", wide, "a")
    peer.acked("PUT", f"{topic}/x", "p", publication="one")
    for wide in (f"{topic}/#", f"{topic}/+"):
        (one,) = peer.acked("GET", wide, "a", last_publication_id=0, limit=10)["publications"]
        assert one["text"] == "one"
        peer.acked("ACK", wide, "a", ids=[one["id"]])
        assert peer.acked("GET", wide, "a", last_publication_id=one["id"], limit=1) == {"publications": []}
