"""What a ticket gives: ranges, columns, limits, order."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import (
    EVERY_COLUMN,
    MORE,
    SCHEMA,
    Peer,
    Place,
    Said,
    column,
    numbered,
    refused,
    rows_of,
    works,
)
from tests.waiting import wait_until

TEN = "ten"


@pytest.fixture(scope="module")
def ten(flying: BrokerProcess) -> str:
    """A topic of ten messages."""
    with Peer(flying.door("flight")) as peer:
        peer.put_texts(TEN, numbered(4))
        peer.put_texts(TEN, numbered(6, 5))
        peer.put_texts(f"{TEN}/b", numbered(7))
    return TEN


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"{}",
        b"[1]",
        b"null",
        b'{"topic": "ten"} more',
        b'{"topic": ' + b"[" * 100_000,
        b"x" * 1_000_000,
        {"topic": 5},
        {"topic": None},
        {"topic": ""},
        {"topic": "two words"},
        {"topic": "a/+"},
        {"topic": "x" * 256},
        {"filter": 5},
        {"filter": "a#b"},
        {"filter": ""},
        {"topic": "ten", "filter": "ten"},
        {"topic": "ten", "form": 1},
        {"topic": "ten", "from": "middle"},
        {"topic": "ten", "from": 1.5},
        {"topic": "ten", "from": True},
        {"topic": "ten", "from": [1]},
        {"topic": "ten", "from": 1 << 70},
        {"topic": "ten", "to": "latest"},
        {"topic": "ten", "to": 1.5},
        {"filter": "ten", "from": 5},
        {"filter": "ten", "to": 5},
        {"topic": "ten", "from_time": "yesterday"},
        {"topic": "ten", "from_time": "2026-01-01T00:00:00"},
        {"topic": "ten", "from_time": 1.5},
        {"topic": "ten", "to_time": "2026-13-01T00:00:00Z"},
        {"topic": "ten", "to_time": 1 << 70},
        {"topic": "ten", "columns": "payload"},
        {"topic": "ten", "columns": ["payload", "colour"]},
        {"topic": "ten", "columns": [1]},
        {"topic": "ten", "limit": -1},
        {"topic": "ten", "limit": "5"},
        {"topic": "ten", "limit": 1.5},
        {"topic": "ten", "batch_rows": 0},
        {"topic": "ten", "batch_rows": -1},
        {"topic": "ten", "batch_rows": "many"},
        {"topic": "ten", "follow": "yes"},
        {"topic": "ten", "follow": 1},
        {"client": "a"},
        {"client": "a b", "filter": "ten"},
        {"client": 5, "filter": "ten"},
        {"client": "nobody-has-subscribed-so", "filter": "ten"},
        {"spans": []},
        {"spans": "ten"},
        {"spans": ["ten"]},
        {"spans": [["ten", 1]]},
        {"spans": [["ten", 1, 2, 3]]},
        {"spans": [[5, 1, 2]]},
        {"spans": [["ten", 1, True]]},
        {"spans": [["ten", -1, 2]]},
        {"spans": [["ten", 1, 1 << 70]]},
        {"spans": [["ten", 1, 2], ["two words", 1, 2]]},
        {"spans": [["ten", 1, 2]], "topic": "ten"},
        {"spans": [["ten", 1, 2]], "filter": "ten"},
        {"spans": [["ten", 1, 2]], "client": "a"},
        {"spans": [["ten", 1, 2]], "from": 1},
        {"spans": [["ten", 1, 2]], "to_time": 5},
        {"spans": [["ten", 1, 2]], "follow": True},
        {"spans": [["ten", 1, 2]], "together": 1},
        {"spans": [["ten", 1, 2]] * 1001, "together": True},
        {"topic": "ten", "together": True},
    ],
    ids=lambda ticket: ascii(ticket)[:60],
)
def test_what_is_no_ticket_is_refused(flying: BrokerProcess, peer: Peer, ten: str, ticket: Said) -> None:
    with refused():
        peer.get(ticket)
    assert works(flying)


def test_a_topic_that_does_not_exist_is_refused(peer: Peer, topic: str) -> None:
    for ticket in (topic, {"topic": topic}, {"topic": topic, "from": 3}):
        with refused() as told:
            peer.get(ticket)
        assert told.error == "NoSuchTopic"
        assert topic in told.message


def test_an_offset_that_the_topic_has_not_reached_is_refused(peer: Peer, ten: str) -> None:
    for said in ({"topic": ten, "from": 12}, {"topic": ten, "from": 1000, "to": 2000}):
        with refused() as told:
            peer.get(said)
        assert told.error == "NoSuchOffset"
        with refused() as told:
            peer.info(said)
        assert told.error == "NoSuchOffset"


def test_a_filter_that_matches_nothing_gives_nothing(peer: Peer, topic: str) -> None:
    found = peer.get({"filter": f"{topic}/#"})
    assert (found.num_rows, found.schema.names) == (0, SCHEMA.names)


def test_the_columns_are_those_of_the_page(peer: Peer, ten: str) -> None:
    for ticket in (ten, {"topic": ten}, {"filter": ten}):
        schema = peer.get(ticket).schema
        assert [(field.name, field.type) for field in schema] == [(one.name, one.type) for one in SCHEMA]
    schema = peer.get({"topic": ten, "columns": EVERY_COLUMN}).schema
    assert {one.name: one.type for one in schema} == {one.name: one.type for one in SCHEMA} | MORE


@pytest.mark.parametrize(
    "columns",
    [["payload"], ["position", "offset"], ["kind", "topic", "payload"], EVERY_COLUMN[::-1]],
    ids=str,
)
def test_columns_come_in_the_order_asked_for(peer: Peer, ten: str, columns: list[str]) -> None:
    whole = peer.get({"topic": ten, "columns": EVERY_COLUMN})
    found = peer.get({"topic": ten, "columns": columns})
    assert found.schema.names == columns
    for name in columns:
        assert column(found, name) == column(whole, name)


@pytest.mark.parametrize(
    ("ticket", "offsets"),
    [
        ({}, range(1, 11)),
        ({"from": "earliest"}, range(1, 11)),
        ({"from": "latest"}, []),
        ({"from": 4}, range(4, 11)),
        ({"to": 4}, range(1, 4)),
        ({"from": 3, "to": 7}, range(3, 7)),
        ({"from": 5, "to": 5}, []),
        ({"from": 10}, [10]),
        ({"from": 11}, []),
        ({"to": 1000}, range(1, 11)),
        ({"limit": 0}, []),
        ({"limit": 3}, range(1, 4)),
        ({"limit": 1000}, range(1, 11)),
        ({"from": 4, "limit": 2}, [4, 5]),
        ({"from": 4, "to": 8, "limit": 1000}, range(4, 8)),
        ({"from": "earliest", "to": 3}, [1, 2]),
        ({"follow": False}, range(1, 11)),
        ({"from": 3, "batch_rows": 2}, range(3, 11)),
        ({"limit": 5, "batch_rows": 3}, range(1, 6)),
    ],
    ids=str,
)
def test_a_range_is_what_is_asked_for(
    peer: Peer, ten: str, ticket: dict[str, Any], offsets: list[int]
) -> None:
    batches = peer.batches({"topic": ten, **ticket})
    found = [offset for batch in batches for offset in column(batch, "offset")]
    assert found == list(offsets)
    texts = [text.decode() for batch in batches for text in column(batch, "payload")]
    assert texts == [f"message {offset}" for offset in offsets]
    assert all(batch.num_rows <= ticket.get("batch_rows", 65_536) for batch in batches)


def test_a_follower_ends_at_the_limit_that_it_has_named(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(3))
    with peer.reading({"topic": topic, "follow": True, "limit": 5}) as stream:
        assert stream.texts(3) == numbered(3)
        peer.put_texts(topic, ["more", "to come", "than is wanted"])
        found = [text for batch in stream.rest() for text in column(batch, "payload")]
    assert found == [b"more", b"to come"]


def test_a_topic_whose_messages_are_gone_is_empty(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("gone") / "data"
    with BrokerProcess(data, doors=("flight",)) as broker, Peer(broker.door("flight")) as peer:
        peer.subscribe("reader", "t", **{"from": "earliest"})
        peer.put_texts("t", numbered(5))
        with peer.reading({"client": "reader", "filter": "t"}) as stream:
            assert stream.texts(5) == numbered(5)
        peer.ack("reader", "t", ("t", None, 6))
        wait_until(lambda: peer.topics("t")[0]["first"] == 6)
        assert peer.topics("t")[0] | {"rows": 0, "next": 6} == peer.topics("t")[0]
        for ticket in ("t", {"topic": "t", "from": 2}, {"topic": "t", "from": 2, "to": 4}, {"filter": "#"}):
            assert peer.get(ticket).num_rows == 0
        assert (peer.info("t").total_records, peer.info("t").total_bytes) == (0, 0)
        assert [peer.get(one.ticket.ticket).num_rows for one in peer.info("t").endpoints] in ([], [0])
        peer.put_texts("t", ["new"])
        assert column(peer.get({"topic": "t", "from": 2}), "offset") == [6]


def test_messages_of_several_topics_come_in_the_order_of_publication(peer: Peer, topic: str) -> None:
    sent = []
    with peer.putting({}, rows_of([]).schema) as stream:
        for number in range(300):
            text = f"{number}"
            sent += [text, f"{text} again"][: 1 + number % 2]
            stream.send(rows_of(sent[-1 - number % 2 :]), {"topic": f"{topic}/{number * 7 % 50}"})
        stream.answers(300)
    ticket: dict[str, Any] = {"filter": f"{topic}/+", "columns": ["topic", "offset", "position", "payload"]}
    found = peer.get(ticket)
    assert column(found, "payload") == [text.encode() for text in sent]
    assert len(set(column(found, "topic"))) == 50
    positions = column(found, "position")
    assert positions == sorted(set(positions))
    assert peer.texts(ticket | {"limit": 100}) == sent[:100]
    batches = peer.batches(ticket | {"batch_rows": 64})
    assert max(batch.num_rows for batch in batches) <= 64
    assert pa.Table.from_batches(batches).equals(found)


def test_columns_of_text_come_in_runs_where_that_is_asked_for(peer: Peer, topic: str) -> None:
    texts = pa.array(["1", "2", "x", "y", "z"])
    kinds = pa.array(["int", "int", "string", "string", "int"]).dictionary_encode()
    peer.put_texts(f"{topic}/a", numbered(3))
    peer.put(
        f"{topic}/a", pa.RecordBatch.from_arrays([texts.slice(0, 4), kinds.slice(0, 4)], ["payload", "kind"])
    )
    for wanted in ({"topic": f"{topic}/a"}, {"filter": f"{topic}/#"}):
        for more in ({}, {"batch_rows": 2}, {"limit": 5}, {"limit": 5, "batch_rows": 3}):
            plain = peer.get({**wanted, **more})
            runs = peer.get({**wanted, **more, "runs": True})
            for field in runs.schema:
                encoded = pa.types.is_run_end_encoded(field.type)
                assert encoded == (field.name in ("topic", "producer", "source", "kind"))
            assert {name: runs.column(name).to_pylist() for name in runs.schema.names} == plain.to_pydict()
        peer.put_texts(f"{topic}/b", numbered(2))


def test_batches_in_runs_say_where_they_begin(peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(5))
    ticket = json.dumps(
        {"topic": topic, "from": 2, "batch_rows": 3, "runs": True, "columns": ["kind"]}
    ).encode()
    found = []
    for chunk in peer.client.do_get(flight.Ticket(ticket), peer.options):
        assert chunk.app_metadata is not None
        assert chunk.data is not None
        found.append((json.loads(chunk.app_metadata.to_pybytes()), chunk.data.num_rows))
    assert found == [({"offset": 2}, 3), ({"offset": 5}, 1)]


def test_a_reader_sees_what_was_there_when_it_began(place: Place, peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(3000))
    with peer.reading({"topic": topic, "batch_rows": 100}) as stream, Peer(place) as other:
        other.put_texts(topic, ["too late"] * 10)
        assert sum(batch.num_rows for batch in stream.rest()) == 3000


def test_many_readers_read_side_by_side(place: Place, peer: Peer, topic: str) -> None:
    peer.put_texts(topic, numbered(20_000))
    whole = peer.get(topic)

    def same(_: int) -> bool:
        with Peer(place) as one:
            return bool(one.get({"topic": topic, "batch_rows": 1000}).equals(whole))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(same, range(16)))


@given(st.integers(1, 11), st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_any_range_of_any_batches_is_exact(
    flying: BrokerProcess, ten: str, low: int, high: int, limit: int, batch_rows: int
) -> None:
    ticket = {"topic": ten, "from": low, "to": high, "limit": limit, "batch_rows": batch_rows}
    with Peer(flying.door("flight")) as peer:
        batches = peer.batches(ticket)
    found = [offset for batch in batches for offset in column(batch, "offset")]
    assert found == list(range(low, min(high, 11)))[:limit]
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "/b", "/none"]), st.integers(0, 12), st.integers(0, 12)), min_size=1
    ),
    st.integers(1, 5),
    st.none() | st.integers(0, 12),
)
def test_spans_give_each_topic_by_itself_and_say_where_batches_begin(
    flying: BrokerProcess, ten: str, spans: list[tuple[str, int, int]], batch_rows: int, limit: int | None
) -> None:
    counts = {ten: 10, f"{ten}/b": 7, f"{ten}/none": 0}
    with Peer(flying.door("flight")) as peer:
        wanted = [(ten + name, low, high) for name, low, high in spans]
        ticket = {"spans": wanted, "columns": ["offset"], "batch_rows": batch_rows, "limit": limit}
        found: list[tuple[str, int]] = []
        for chunk in peer.client.do_get(flight.Ticket(json.dumps(ticket).encode()), peer.options):
            assert chunk.data is not None
            assert chunk.app_metadata is not None
            offsets = column(chunk.data, "offset")
            told = json.loads(chunk.app_metadata.to_pybytes())
            assert 0 < len(offsets) <= batch_rows
            assert told["offset"] == offsets[0]
            found += [(told["topic"], offset) for offset in offsets]
    expected = [
        (topic, offset)
        for topic, low, high in wanted
        for offset in range(max(low, 1), min(high, counts[topic] + 1))
    ]
    assert found == expected[:limit]


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "/b", "/none"]), st.integers(0, 12), st.integers(0, 12)), min_size=1
    ),
    st.integers(1, 5),
    st.none() | st.integers(0, 12),
    st.booleans(),
)
@example([("", 2, 3), ("", 0, 2)], 1, None, False)  # of one run, and the later one first
def test_spans_together_come_in_the_order_of_the_log_and_say_whose_rows_are_whose(
    flying: BrokerProcess,
    ten: str,
    spans: list[tuple[str, int, int]],
    batch_rows: int,
    limit: int | None,
    runs: bool,
) -> None:
    counts = {ten: 10, f"{ten}/b": 7, f"{ten}/none": 0}
    columns = ["offset", "payload", "topic", "position", "kind"]
    with Peer(flying.door("flight")) as peer:
        every = peer.get({"filter": f"{ten}/#", "columns": columns}).to_pylist()
        wanted = [(ten + name, low, high) for name, low, high in spans]
        asked = {"spans": wanted, "together": True, "columns": columns, "runs": runs, "mark": ""}
        asked |= {"batch_rows": batch_rows, "limit": limit}
        found: list[dict[str, Any]] = []
        for chunk in peer.client.do_get(flight.Ticket(json.dumps(asked).encode()), peer.options):
            assert chunk.data is not None
            assert chunk.app_metadata is not None
            assert 0 < chunk.data.num_rows <= batch_rows
            about = json.loads(chunk.app_metadata.to_pybytes())
            rows = pa.Table.from_batches([chunk.data]).to_pylist()
            named = [(topic, first + at) for topic, first, count in about["runs"] for at in range(count)]
            assert named == [(row["topic"], row["offset"]) for row in rows]
            assert about["mark"]
            found += rows
    times = Counter((topic, offset) for topic, low, high in wanted for offset in range(low, high))
    expected = [row for row in every for _ in range(times[row["topic"], row["offset"]])]
    assert sum(counts.values()) == len(every)
    assert len(found) == len(expected[:limit])
    if max(times.values(), default=0) < 2:  # else what is there twice comes with the one span or the other
        assert found == expected[:limit]
    elif limit is None:
        assert Counter(row["position"] for row in found) == Counter(row["position"] for row in expected)
