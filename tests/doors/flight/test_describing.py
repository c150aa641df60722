"""Descriptions: what a topic holds, and how to read it side by side."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import (
    SCHEMA,
    Peer,
    Place,
    Said,
    as_bytes,
    column,
    numbered,
    read_json,
    refused,
    rows_of,
    works,
)


def described(info: flight.FlightInfo) -> list[dict[str, Any]]:
    found = info.app_metadata
    topics: list[dict[str, Any]] = read_json(found if isinstance(found, bytes) else found.encode())["topics"]
    return topics


def listed(peer: Peer, criteria: Said) -> dict[str, flight.FlightInfo]:
    found = peer.client.list_flights(as_bytes(criteria), peer.options)  # type: ignore[arg-type]
    return {described(info)[0]["topic"]: info for info in found}


@pytest.mark.parametrize(
    "criteria", [b"{", b"[]", b"\xff", {"filtre": "a"}, {"filter": 5}, {"filter": "a b"}], ids=str
)
def test_criteria_that_are_wrong_are_refused(flying: BrokerProcess, peer: Peer, criteria: Said) -> None:
    with refused():
        listed(peer, criteria)
    assert works(flying)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"\xff",
        {"topic": 5},
        {"topic": "described", "filter": "described"},
        {"topic": "described", "parts": 2},
        {"topic": "described", "partitions": 0},
        {"topic": "described", "partitions": -1},
        {"topic": "described", "partitions": "2"},
        {"topic": "described", "partitions": 1.5},
        {"topic": "described", "from": "middle"},
        {"topic": "described", "from_time": "yesterday"},
        {"filter": "a b"},
        "a/+",
        "two words",
    ],
    ids=str,
)
def test_a_descriptor_that_is_wrong_is_refused(flying: BrokerProcess, peer: Peer, said: Said) -> None:
    peer.put_texts("described", ["x"])
    with refused():
        peer.info(said)
    assert works(flying)


def test_a_path_has_one_element(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, ["x"])
    for path in ((), (topic, "more")):
        with refused():
            peer.client.get_flight_info(flight.FlightDescriptor.for_path(*path), peer.options)


def test_a_topic_that_does_not_exist_has_no_description(peer: Peer, topic: str) -> None:
    for said in (topic, {"topic": topic}):
        with refused() as told:
            peer.info(said)
        assert told.error == "NoSuchTopic"
    info = peer.info({"filter": f"{topic}/#"})
    assert (info.total_records, described(info)) == (0, [])


def test_a_topic_is_described_by_its_schema_its_offsets_its_rows_and_its_bytes(
    peer: Peer, topic: str
) -> None:
    peer.put_texts(topic, ["x" * 100] * 700)
    peer.put_texts(topic, ["x" * 100] * 300)
    for said in (topic, {"topic": topic}, {"filter": topic}):
        info = peer.info(said)
        assert [(one.name, one.type) for one in info.schema] == [(one.name, one.type) for one in SCHEMA]
        assert info.total_records == 1000
        (one,) = described(info)
        assert 90_000 <= one.pop("bytes") == info.total_bytes <= 130_000
        assert one == {"topic": topic, "first": 1, "next": 1001, "rows": 1000}
        assert [endpoint.locations for endpoint in info.endpoints] == [[]]
        assert peer.get(info.endpoints[0].ticket.ticket).equals(peer.get(topic))


def test_the_topics_that_match_are_listed(peer: Peer, topic: str) -> None:
    names = {f"{topic}/a": 1, f"{topic}/b": 2, f"{topic}/b/c": 3}
    for name, count in names.items():
        peer.put_texts(name, numbered(count))
    assert listed(peer, {"filter": f"{topic}/+"}).keys() == {f"{topic}/a", f"{topic}/b"}
    found = listed(peer, {"filter": f"{topic}/#"})
    assert {name: info.total_records for name, info in found.items()} == names
    assert listed(peer, b"").keys() >= names.keys()
    assert listed(peer, b"").keys() == listed(peer, b"{}").keys()
    assert listed(peer, {"filter": f"{topic}/nothing"}) == {}
    for name, info in found.items():
        texts = [text for endpoint in info.endpoints for text in peer.texts(endpoint.ticket.ticket)]
        assert texts == numbered(names[name])


def test_a_thousand_topics_are_listed_and_read_in_order(peer: Peer, topic: str) -> None:
    names = [f"{topic}/{number * 7 % 1000}" for number in range(1000)]
    with peer.putting({}, rows_of([]).schema) as stream:
        for name in names:
            stream.send(rows_of([name]), {"topic": name})
        stream.answers(1000)
    assert listed(peer, {"filter": f"{topic}/+"}).keys() == set(names)
    assert len(peer.topics(f"{topic}/+")) == 1000
    assert column(peer.get({"filter": f"{topic}/+"}), "topic") == names
    info = peer.info({"filter": f"{topic}/+"})
    assert (info.total_records, len(described(info))) == (1000, 1000)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 64])
def test_endpoints_read_side_by_side_give_every_row_once(
    place: Place, peer: Peer, topic: str, partitions: int
) -> None:
    for first in (1, 501, 502):
        peer.put_texts(topic, numbered(500 if first == 1 else 1 if first == 501 else 499, first))
    info = peer.info({"topic": topic, "partitions": partitions})
    assert len(info.endpoints) == partitions

    def read(endpoint: flight.FlightEndpoint) -> list[tuple[int, bytes]]:
        assert endpoint.locations == []
        with Peer(place) as one:
            found = one.get(endpoint.ticket.ticket)
        return list(zip(column(found, "offset"), column(found, "payload"), strict=True))

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(read, info.endpoints))
    expected = [(offset, text.encode()) for offset, text in enumerate(numbered(1000), 1)]
    assert [row for part in parts for row in part] == expected
    assert max(map(len, parts)) - min(map(len, parts)) <= 1000 // partitions


def test_endpoints_stay_what_they_were_when_more_is_published(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(100))
    info = peer.info({"topic": topic, "partitions": 4})
    peer.put_texts(topic, ["later"] * 50)
    texts = [text for endpoint in info.endpoints for text in peer.texts(endpoint.ticket.ticket)]
    assert texts == numbered(100)


def test_more_partitions_than_rows_give_every_row_once(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(3))
    info = peer.info({"topic": topic, "partitions": 10})
    assert len(info.endpoints) <= 10
    texts = [text for endpoint in info.endpoints for text in peer.texts(endpoint.ticket.ticket)]
    assert texts == numbered(3)


def test_each_topic_of_a_filter_is_parted(peer: Peer, topic: str) -> None:
    for name in "ab":
        peer.put_texts(f"{topic}/{name}", [f"{name} {number}" for number in range(10)])
    info = peer.info({"filter": f"{topic}/+", "partitions": 2})
    assert [(one["topic"], one["rows"]) for one in described(info)] == [
        (f"{topic}/a", 10),
        (f"{topic}/b", 10),
    ]
    assert (info.total_records, len(info.endpoints)) == (20, 4)
    tables = [peer.get(endpoint.ticket.ticket) for endpoint in info.endpoints]
    assert all(len(set(column(table, "topic"))) == 1 for table in tables)
    texts = [text for table in tables for text in column(table, "payload")]
    assert sorted(texts) == sorted(f"{name} {number}".encode() for name in "ab" for number in range(10))


@pytest.mark.parametrize(
    ("said", "offsets"),
    [
        ({"from": 4}, range(4, 11)),
        ({"to": 4}, range(1, 4)),
        ({"from": 3, "to": 9}, range(3, 9)),
        ({"from": "earliest", "to": 100}, range(1, 11)),
        ({"from": "latest"}, []),
    ],
    ids=str,
)
def test_a_range_may_be_described(peer: Peer, topic: str, said: dict[str, Any], offsets: list[int]) -> None:
    peer.put_texts(topic, numbered(10))
    info = peer.info({"topic": topic, "partitions": 2, **said})
    assert info.total_records == len(offsets)
    tables = [peer.get(endpoint.ticket.ticket) for endpoint in info.endpoints]
    assert [offset for table in tables for offset in column(table, "offset")] == list(offsets)
    (one,) = described(info)
    assert (one["first"], one["next"]) == (1, 11)
