"""Cursors that stand where they cannot, and how findings are told."""

import json

import pytest

from stafeta.clients.flight.connection import CursorInfo, SubscriptionInfo
from stafeta.pipeline.jobs.auditing.cursors import covering, standing
from stafeta.pipeline.jobs.auditing.findings import Finding, Report

ARCHIVE = "flight/pipeline/archive"


def every(topic: str) -> bool:
    return not topic.startswith("$")


def told(
    floor: int, above: tuple[tuple[int, int], ...] = (), first: int = 10, end: int = 100, client: str = "c"
) -> list[tuple[str, str]]:
    cursor = CursorInfo("t", floor, above, first, end)
    found = standing([SubscriptionInfo(client, "#", (cursor,))], {"t": [(1, 50)]}, ARCHIVE, every)
    return [(one.what, one.where) for one in found]


@pytest.mark.parametrize(
    "cursor",
    [(10,), (100,), (55,), (20, ((21, 22),)), (20, ((30, 40), (41, 100))), (10, (), 10, 10)],
    ids=str,
)
def test_a_cursor_between_what_is_held_and_the_end_is_right(cursor: tuple[int, ...]) -> None:
    assert told(*cursor) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cursor", "what", "where"),
    [
        ((101,), "stands beyond the log's end", "100"),
        ((7,), "waits for what the log has no more", "7-9"),
        ((0,), "waits for what the log has no more", "0-9"),
        ((20, ((90, 101),)), "has acknowledged what cannot be", "90-100"),
        ((20, ((15, 18),)), "has acknowledged what cannot be", "15-17"),
        ((20, ((20, 22),)), "has acknowledged what cannot be", "20-21"),
        ((20, ((30, 40), (35, 50))), "has acknowledged what cannot be", "35-49"),
        ((20, ((50, 60), (30, 40))), "has acknowledged what cannot be", "30-39"),
        ((20, ((30, 30),)), "has acknowledged what cannot be", "30-29"),
    ],
    ids=str,
)
def test_a_cursor_elsewhere_is_found(cursor: tuple[int, ...], what: str, where: str) -> None:
    assert told(*cursor) == [(f"c on # {what}", where)]  # type: ignore[arg-type]


def test_the_archive_is_done_only_with_what_is_archived() -> None:
    assert told(50, client=ARCHIVE) == []
    assert told(52, client=ARCHIVE) == [(f"{ARCHIVE} on # is done with what is not archived", "50-51")]
    new = CursorInfo("new", 1, (), 1, 8)
    ahead = CursorInfo("ahead", 5, (), 1, 8)
    gap = CursorInfo("gap", 9, (), 1, 12)
    lost = CursorInfo("lost", 5, (), 5, 8)
    archived = {"gap": [(1, 4), (6, 12)]}
    found = standing([SubscriptionInfo(ARCHIVE, "#", (new, ahead, gap, lost))], archived, ARCHIVE, every)
    assert [(one.topic, one.where, one.count) for one in found] == [
        ("ahead", "1-4", 4),
        ("gap", "4-5", 2),
        ("lost", "1-4", 4),
    ]


def test_a_topic_that_is_not_wanted_is_not_looked_at() -> None:
    wrong = CursorInfo("$sys/a", 50, (), 1, 2)
    subscription = SubscriptionInfo("c", "$sys/#", (wrong,))
    assert standing([subscription], {}, ARCHIVE, every) == []
    assert covering([], [subscription], [], every) == []


def test_each_topic_that_a_filter_matches_has_a_cursor_and_no_other() -> None:
    def on(*topics: str) -> list[SubscriptionInfo]:
        return [SubscriptionInfo("c", "a/#", tuple(CursorInfo(topic, 1, (), 1, 1) for topic in topics))]

    def found(*topics: str, before: str = "a a/b c", after: str = "a a/b c") -> list[tuple[str, str]]:
        return [
            (one.topic, one.what.removeprefix("c on a/# "))
            for one in covering(before.split(), on(*topics), after.split(), every)
        ]

    assert found("a", "a/b") == []
    assert found("a/b") == [("a", "has no cursor")]
    assert found("a/b", before="a/b") == found("a/b", after="a/b") == []  # it has just come, or gone
    assert found("a", "a/b", before="", after="a a/b") == []
    assert found("a", "a/b", "a/c") == [("a/c", "has a cursor on a topic that there is not")]
    assert found("a", "a/b", "c") == [("c", "has a cursor on what its filter does not match")]


def test_what_was_found_is_told_as_a_table_or_as_json() -> None:
    assert Report(1, 1, ()).table() == ["1 topic, 1 message: sound"]
    assert Report(0, 0, ()).table() == ["0 topics, 0 messages: sound"]
    wrong = Finding("offsets", "hall", "in neither lake nor log", ((3, 4), (7, 9), (20, 21), (30, 31)), 5)
    report = Report(2, 12_345, (wrong,))
    assert report.table() == [
        "check    topic  what                     where          count",
        "offsets  hall   in neither lake nor log  3, 7-8, 20, …  5",
        "2 topics, 12,345 messages: 1 fault",
    ]
    lines = [json.loads(line) for line in report.json()]
    assert lines == [
        {
            "check": "offsets",
            "topic": "hall",
            "what": "in neither lake nor log",
            "where": [[3, 4], [7, 9], [20, 21], [30, 31]],
            "count": 5,
        },
        {"topics": 2, "messages": 12345, "faults": 1, "sound": False},
    ]
    many = Report(1, 1, (wrong,) * 130)
    assert many.table()[-2:] == ["… and 30 more", "1 topic, 1 message: 130 faults"]
