"""What a replay is asked for, and what is made of it, without a broker."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stafeta.errors import ConfigError
from stafeta.pipeline.jobs.replaying.pace import Clock, chunks
from stafeta.pipeline.jobs.replaying.replay_plan import (
    ORDER,
    Plan,
    PlanStore,
    ReplayKey,
    chosen,
    cut,
    measured,
    outgoing,
    portion,
    ranges_of,
    sampled,
)
from stafeta.pipeline.jobs.replaying.request import Request, name_of
from stafeta.times import parse

BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
MICROS = 1_794_787_200_000_000
PLAIN = {"topic": "a/#", "into": "copies"}


# --- requests


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"topic": ""}, "--topic: The topic is empty."),
        ({"topic": "a#"}, "--topic: In 'a#'"),
        ({"topic": "a, b c"}, "--topic: The topic 'b c' has white space"),
        ({"into": ""}, "--into: say where to: a topic, such as copies"),
        ({"into": "a/#"}, "--into: The topic 'a/#' has '#' in it"),
        ({"into": "a b/{topic}"}, "--into: The topic 'a b/topic' has white space"),
        ({"since": "yesterday"}, "--from: 'yesterday' is no time; write ISO 8601 with a zone"),
        ({"until": "2026-11-16T08:00:00"}, "--to: '2026-11-16T08:00:00' is no time"),
        (
            {"since": "2026-11-16T08:00Z", "until": "2026-11-16T08:00Z"},
            "--from and --to: nothing lies between",
        ),
        ({"from_offset": 7, "to_offset": 7}, "--from-offset and --to-offset: nothing lies between"),
        ({"rate": "quick"}, "--rate: 'quick' is neither messages a second nor 'original' nor 'full'"),
        ({"rate": "0"}, "--rate: '0' is neither"),
        ({"rate": "-5"}, "--rate: '-5' is neither"),
        ({"rate": "nan"}, "--rate: 'nan' is neither"),
        ({"rate": "inf"}, "--rate: 'inf' is neither"),
        ({"rate": "original", "speed": -1.0}, "--speed is -1; it must be above 0"),
        ({"speed": 2.0}, "--speed goes with --rate original"),
    ],
)
def test_a_request_that_is_wrong_is_refused(arguments: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Request.of({**PLAIN, **arguments})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["a b", "../a", ".a", "ș", "x" * 65])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="A replay cannot be named"):
        name_of(name)
    assert name_of("a.b-C_7") == "a.b-C_7"
    assert name_of(None) != name_of("")


def test_a_request_is_read_from_a_command_line() -> None:
    assert Request.of(PLAIN) == Request("a/#", "copies")
    given_ = {"topic": "a, b/+", "into": "{topic}", "since": "1794787200000", "until": "2026-11-16T01:00+01:00",
              "rate": "1_000", "keep_times": True}  # fmt: skip
    with pytest.raises(ConfigError):
        Request.of(given_)
    request = Request.of({**given_, "until": "2026-11-16T02:00+01:00"})
    assert request == Request("a,b/+", "{topic}", MICROS, MICROS + 3600_000_000, rate=1000.0, keep_times=True)
    assert [request.wants(topic) for topic in ("a", "b", "b/c", "b/c/d")] == [True, False, True, False]
    assert parse("2026-11-16T00:00:00.000001Z") == MICROS + 1


# --- plans


def test_only_offsets_that_are_archived_are_chosen() -> None:
    archived = {"a": [(1, 10), (20, 30)], "a/b": [(5, 6)], "c": [(1, 100)]}
    assert ranges_of(archived, Request("a/#", "x")) == {"a": [(1, 10), (20, 30)], "a/b": [(5, 6)]}
    assert ranges_of(archived, Request("#", "x", from_offset=8, to_offset=25)) == {
        "a": [(8, 10), (20, 25)],
        "c": [(8, 25)],
    }
    assert ranges_of(archived, Request("d", "x")) == {}


places = st.builds(ReplayKey, st.integers(0, 50), st.sampled_from("ab"), st.integers(1, 50))


@given(st.sets(places), st.integers(1, 10_000), st.integers(1, 1000))
def test_portions_follow_one_another_and_are_all(samples: set[ReplayKey], count: int, size: int) -> None:
    cuts, sizes = cut(sorted(samples), count, size)
    assert all(before < after for before, after in pairwise(cuts))
    assert len(sizes) == len(cuts) + 1
    assert sum(sizes) == count
    assert min(sizes) >= 0


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plans = PlanStore((tmp_path / "lake").as_uri())
    assert plans.read("x") is None
    plan = Plan(
        Request("a", "b", 5, None, 1, 7, 2.5, 1.0, True),
        {"a": [(1, 7), (9, 12)]},
        (ReplayKey(6, "a", 3), ReplayKey(9, "a", 5)),
        (1, 2, 3),
        5,
        "id",
    )
    plans.write("x", plan)
    plans.write("x", plan)
    again = plans.read("x")
    assert again == plan
    assert again.producer == plan.producer != replace(plan, lake="other").producer
    assert replace(plan, lake="").producer == ""
    assert (plan.messages, plan.portions) == (6, 3)
    assert [plan.times(number) for number in range(3)] == [(5, 6), (6, 9), (9, None)]
    assert [file.name for file in (tmp_path / "lake" / "replays").iterdir()] == ["x.json"]
    (tmp_path / "lake" / "replays" / "x.json").write_text('{"request": {}')
    with pytest.raises(ConfigError, match=r"x\.json is no plan of a replay; remove it"):
        plans.read("x")


def test_portions_of_a_frame_are_its_chosen_rows_in_order(spark: SparkSession) -> None:
    # Several messages of each time, of topics that take turns; the frame is in no order.
    rows = [
        (topic, offset, BEGIN + timedelta(seconds=offset // 4), f"{topic} {offset}".encode(), "string")
        for offset in range(40, 0, -1)
        for topic in ("ș", "b", "a")
    ]
    frame = spark.createDataFrame(
        rows, "topic string, offset bigint, timestamp timestamp, payload binary, kind string"
    )
    request = Request("#", "to/{topic}/{topic}", MICROS + 1_000_000, MICROS + 9_000_000)
    messages = chosen(frame, {"a": [(1, 21), (30, 100)], "ș": [(3, 38)]}, request)
    expected = [
        (one[2], one[0], one[1])
        for one in sorted(rows, key=lambda one: (one[2], one[0], one[1]))
        if timedelta(seconds=1) <= one[2] - BEGIN < timedelta(seconds=9)
        and ((one[0] == "a" and not 21 <= one[1] < 30) or (one[0] == "ș" and 3 <= one[1] < 38))
    ]
    size = sum(len(f"{topic} {offset}".encode()) for _, topic, offset in expected)
    assert measured(messages) == (len(expected), MICROS + 1_000_000, size)
    cuts, _ = cut(sampled(messages, 15), len(expected), 15)
    assert len(cuts) == (len(expected) - 1) // 15
    edges = [None, *cuts, None]
    parts = [
        portion(messages, low, high).select(*ORDER).toArrow().to_pylist() for low, high in pairwise(edges)
    ]
    assert max(map(len, parts)) <= 15 + 1
    assert [tuple(one.values()) for part in parts for one in part] == expected
    assert outgoing(messages, request).limit(1).toArrow().to_pylist()[0]["topic"] in ("to/a/a", "to/ș/ș")


# --- the clock


@given(
    st.lists(st.integers(0, 3_000_000), max_size=50).map(sorted),
    st.sampled_from(["original", 1.0, 7.0, 33.3, 1000.0]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_chunks_are_all_rows_in_order_and_are_due_in_order(times: list[int], rate: Any, speed: float) -> None:
    request = Request("a", "b", rate=rate, speed=speed if rate == "original" else 1.0)
    begin = times[0] if times else 0
    made = list(chunks(pa.array(times, pa.timestamp("us", "UTC")), request, begin, 0))
    assert [row for one in made for row in range(one.start, one.stop)] == list(range(len(times)))
    assert [one.number for one in made] == list(range(len(made)))
    assert all(before.due < after.due for before, after in pairwise(made))
    for one in made:
        if rate == "original":
            assert one.due == pytest.approx((times[one.start] - begin) / 1_000_000 / speed)
            assert times[one.stop - 1] - times[one.start] <= 200_000 * speed
        else:
            assert one.due == pytest.approx(one.start / rate)
            assert one.stop - one.start <= max(1, round(rate * 0.2))


def test_the_clock_begins_with_what_is_sent_first() -> None:
    waited: list[float] = []
    clock = Clock(waited.append)
    clock.wait_until(1000.0)
    assert waited == []
    clock.wait_until(1000.5)
    assert waited == [pytest.approx(0.5, abs=0.4)]
