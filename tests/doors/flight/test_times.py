"""Reading by time."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, column, numbered, rows_of

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def put(peer: Peer, topic: str, *minutes: int) -> None:
    times = pa.array([at(minute) for minute in minutes], pa.timestamp("us", "UTC"))
    peer.put(topic, rows_of([f"{minute}" for minute in minutes], timestamp=times))


@pytest.fixture
def hour(peer: Peer, topic: str) -> str:
    """A topic with a message for each of sixty minutes."""
    put(peer, topic, *range(25))
    put(peer, topic, *range(25, 60))
    return topic


@pytest.mark.parametrize(
    "write",
    [
        microseconds,
        datetime.isoformat,
        lambda moment: moment.isoformat().replace("+00:00", "Z"),
        lambda moment: moment.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
    ],
    ids=["microseconds", "iso", "z", "zone"],
)
def test_a_time_is_microseconds_or_iso_8601_with_a_zone(peer: Peer, hour: str, write: Any) -> None:
    ticket = {"topic": hour, "from_time": write(at(10)), "to_time": write(at(20))}
    assert column(peer.get(ticket), "timestamp") == [at(minute) for minute in range(10, 20)]
    half = timedelta(seconds=30)
    ticket = {"topic": hour, "from_time": write(at(10) - half), "to_time": write(at(20) - half)}
    assert column(peer.get(ticket), "timestamp") == [at(minute) for minute in range(10, 20)]


@pytest.mark.parametrize(
    ("ticket", "minutes"),
    [
        ({"from_time": at(-100)}, range(60)),
        ({"from_time": at(50)}, range(50, 60)),
        ({"from_time": at(100)}, []),
        ({"to_time": at(5)}, range(5)),
        ({"to_time": at(-5)}, []),
        ({"to_time": at(100)}, range(60)),
        ({"from_time": at(10), "to_time": at(10)}, []),
        ({"from_time": at(10), "limit": 3}, range(10, 13)),
        ({"from": 31, "to_time": at(35)}, range(30, 35)),
        ({"from_time": at(30), "to": 34}, range(30, 33)),
    ],
    ids=str,
)
def test_a_range_of_time_goes_up_to_the_first_that_is_not_older(
    peer: Peer, hour: str, ticket: dict[str, Any], minutes: list[int]
) -> None:
    said = {key: one.isoformat() if isinstance(one, datetime) else one for key, one in ticket.items()}
    assert peer.texts({"topic": hour, **said}) == [f"{minute}" for minute in minutes]


def test_a_description_counts_only_the_range(peer: Peer, hour: str) -> None:
    said = {
        "topic": hour,
        "from_time": microseconds(at(10)),
        "to_time": microseconds(at(30)),
        "partitions": 3,
    }
    found = peer.info(said)
    assert found.total_records == 20
    texts = [text for endpoint in found.endpoints for text in peer.texts(endpoint.ticket.ticket)]
    assert texts == [f"{minute}" for minute in range(10, 30)]


def test_each_topic_of_a_filter_has_its_own_range(peer: Peer, topic: str) -> None:
    put(peer, f"{topic}/a", 1, 5, 9)
    put(peer, f"{topic}/b", 6, 7)
    put(peer, f"{topic}/a", 10)
    put(peer, f"{topic}/c", 1, 2)
    ticket = {"filter": f"{topic}/+", "from_time": microseconds(at(5)), "to_time": microseconds(at(10))}
    assert peer.texts(ticket) == ["5", "9", "6", "7"]


def test_a_follower_may_begin_at_a_time(peer: Peer, hour: str) -> None:
    with peer.reading({"topic": hour, "from_time": microseconds(at(57)), "follow": True}) as stream:
        assert stream.texts(3) == ["57", "58", "59"]
        put(peer, hour, 1)
        assert stream.texts(1) == ["1"]


def test_the_broker_s_own_times_can_be_asked_for(peer: Peer, topic: str) -> None:
    for number in range(1, 4):
        peer.put_texts(topic, numbered(2, number * 2 - 1))
    times = column(peer.get(topic), "timestamp")
    assert times == sorted(times)
    expected = [text for text, time in zip(numbered(6), times, strict=True) if time >= times[2]]
    assert peer.texts({"topic": topic, "from_time": microseconds(times[2])}) == expected


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(-1, 21),
    st.integers(-1, 21),
)
def test_times_that_are_out_of_order_are_ranges_of_offsets_still(
    flying: BrokerProcess, batches: list[list[int]], low: int, high: int
) -> None:
    topic = f"flight/times/{uuid4()}"
    every = [minute for minutes in batches for minute in minutes]

    def first_not_older(limit: int) -> int:
        return next((index for index, minute in enumerate(every) if minute >= limit), len(every))

    with Peer(flying.door("flight")) as peer:
        for minutes in batches:
            put(peer, topic, *minutes)
        ticket = {"topic": topic, "from_time": microseconds(at(low)), "to_time": microseconds(at(high))}
        expected = every[first_not_older(low) : first_not_older(high)]
        assert peer.texts(ticket) == [f"{minute}" for minute in expected]


def test_what_was_staged_with_times_of_its_own_is_found_by_them(peer: Peer, topic: str, name: str) -> None:
    """Of one topic, and of several that came together."""
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
    counter = peer.act("begin", producer=name)["counter"]
    said = {"stage": {"producer": name, "counter": counter, "part": "p"}}
    topics = [f"{topic}/{below}" for below in "aba"]
    times = pa.array([at(1), at(2), later], pa.timestamp("us", "UTC"))
    peer.put(said, rows_of(["1", "2", "later"], timestamp=times, topic=pa.array(topics)))
    peer.put({"topic": f"{topic}/c", **said}, rows_of(["1", "2", "later"], timestamp=times))
    assert peer.act("commit", producer=name, counter=counter)["committed"]
    for below, minutes in (("a", [at(1)]), ("b", [at(2)]), ("c", [at(1), at(2)])):
        ticket = {"topic": f"{topic}/{below}"}
        assert column(peer.get(ticket | {"to_time": at(3).isoformat()}), "timestamp") == minutes
        found = column(
            peer.get(ticket | {"from_time": (later - timedelta(minutes=5)).isoformat()}), "timestamp"
        )
        assert found == ([] if below == "b" else [later])
