"""What the soak of the pipeline checks, checked itself: whatever could go wrong is found where it was planted."""

import random
from collections import Counter

import pytest

from tests.pipeline.pipeline_soak_checks import (
    Event,
    Kept,
    Window,
    crossings,
    merged,
    wrong_alerts,
    wrong_dead,
    wrong_readings,
    wrong_silence,
    wrong_union,
    wrong_windows,
)
from tests.pipeline.pipeline_soak_plan import VICTIMS, kills
from tests.pipeline.pipeline_soak_sensors import (
    EXACT,
    LOSSY,
    ORDERS,
    WAVE,
    number_of,
    number_of_order,
    order,
    reading,
)

A, U = EXACT[0], LOSSY[0]
TOPICS = (*EXACT, *LOSSY)


def kept(*offsets: int) -> list[Kept]:
    return [Kept(offset, b"%d" % offset) for offset in offsets]


def readings(*numbers: int) -> list[Kept]:
    return [Kept(offset, reading(number).encode()) for offset, number in enumerate(numbers, 1)]


def orders(*numbers: int) -> list[Kept]:
    return [Kept(offset, order(number).encode()) for offset, number in enumerate(numbers, 1)]


def whole() -> dict[str, list[Kept]]:
    return {topic: readings(1, 2, 3) for topic in TOPICS} | {ORDERS: orders(1, 2)}


SENT = dict.fromkeys(TOPICS, 3) | {ORDERS: 2}


def test_readings_and_orders_tell_their_number_and_nothing_else_does() -> None:
    for number in (1, WAVE - 1, WAVE, 2 * WAVE, 12_345_678):
        assert number_of(reading(number).encode()) == number
        assert number_of_order(order(number).encode()) == number
    for strange in (b"", b"1", b"1.1", b"2.00000001", reading(WAVE).replace("9", "1", 1).encode()):
        with pytest.raises(ValueError, match=r".*"):
            number_of(strange)
    for strange in (b"", b"{}", b"[]", b'{"number": 10, "price": 10}', b'{"number": "x", "price": 1}'):
        with pytest.raises(ValueError, match=r".*"):
            number_of_order(strange)


def test_lake_and_log_that_continue_or_overlap_are_right() -> None:
    assert wrong_union({"a": kept(1, 2, 3)}, {"a": kept(4, 5)}, {"a": 6}) == []
    assert wrong_union({"a": kept(1, 2, 3)}, {"a": kept(2, 3, 4)}, {"a": 5}) == []
    assert wrong_union({"a": kept(1, 2)}, {}, {"a": 3}) == []
    assert wrong_union({}, {"a": kept(1, 2)}, {"a": 3}) == []
    assert merged({"a": kept(1, 2)}, {"a": kept(2, 3)}) == {"a": kept(1, 2, 3)}


@pytest.mark.parametrize(
    ("lake", "log", "sentence"),
    [
        (kept(1, 2, 2), kept(3, 4), "a: offsets 1 (2) are more than once in the lake"),
        (kept(1, 2), kept(3, 3, 4), "a: offsets 1 (3) are more than once in the log"),
        (kept(1, 2), kept(4), "a: offsets 1 (3) are neither in the lake nor in the log"),
        (kept(2), kept(3, 4), "a: offsets 1 (1) are neither in the lake nor in the log"),
        (kept(1, 2), kept(3), "a: offsets 1 (4) are neither in the lake nor in the log"),
        (kept(1, 2, 3), kept(4, 5), "a: offsets 1 (5) were never given"),
        (kept(1, 2), [Kept(2, b"x"), *kept(3, 4)], "a: lake and log differ at offsets 1 (2)"),
    ],
)
def test_a_gap_a_repetition_and_a_difference_are_found(
    lake: list[Kept], log: list[Kept], sentence: str
) -> None:
    assert wrong_union({"a": lake}, {"a": log}, {"a": 5}) == [sentence]


def test_a_topic_that_only_the_broker_knows_is_found() -> None:
    assert wrong_union({}, {}, {"a": 2}) == ["a: offsets 1 (1) are neither in the lake nor in the log"]


def test_every_reading_once_is_right_and_by_udp_some_may_be_lost() -> None:
    assert wrong_readings(SENT, whole()) == []
    assert wrong_readings(SENT, whole() | {U: readings(1, 3)}) == []


@pytest.mark.parametrize(
    ("topic", "found", "sentence"),
    [
        (A, readings(1, 3), f"1 (2) of {A} are missing"),
        (A, readings(1, 2, 2, 3), f"1 (2) of {A} are there more than once"),
        (A, readings(2, 1, 3), f"1 ((2, 1)) of {A} are in the wrong order"),
        (A, readings(1, 2, 3, 4), f"1 (b'{reading(4)}') in {A} were never sent"),
        (A, [*readings(1, 2, 3), Kept(4, b"17")], f"1 (b'17') in {A} were never sent"),
        (U, readings(1, 2, 2), f"1 (2) of {U} are there more than once"),
        (U, readings(3, 1), f"1 ((3, 1)) of {U} are in the wrong order"),
        (U, readings(1, 4), f"1 (b'{reading(4)}') in {U} were never sent"),
        (U, [], f"{U} has no messages"),
        (ORDERS, orders(1), f"1 (2) of {ORDERS} are missing"),
    ],
)
def test_a_reading_that_is_lost_doubled_or_strange_is_found(
    topic: str, found: list[Kept], sentence: str
) -> None:
    assert wrong_readings(SENT, whole() | {topic: found}) == [sentence]


WINDOWS = [Window("a", 0, 3), Window("a", 1, 4), Window("b", 0, 2)]


def test_windows_that_count_every_reading_are_right() -> None:
    assert wrong_windows({"a": 7, "b": 2}, WINDOWS, list(reversed(WINDOWS))) == []


@pytest.mark.parametrize(
    ("table", "published", "sentences"),
    [
        (
            WINDOWS[:2],
            WINDOWS,
            [
                "the windows of b in the lake count 0 readings of 2",
                f"windows 1 ({WINDOWS[2]}) are not the same in the lake and in the topics",
            ],
        ),
        (
            [*WINDOWS, WINDOWS[2]],
            WINDOWS,
            [
                "windows 1 (('b', 0)) are more than once in the lake",
                "the windows of b in the lake count 4 readings of 2",
            ],
        ),
        (
            WINDOWS,
            [*WINDOWS[:2], Window("b", 0, 1)],
            [
                "the windows of b in the topics count 1 readings of 2",
                f"windows 2 ({Window('b', 0, 1)}, {WINDOWS[2]}) are not the same in the lake and in the topics",
            ],
        ),
        (
            [*WINDOWS, Window("c", 0, 1)],
            [*WINDOWS, Window("c", 0, 1)],
            [
                "the windows of c in the lake count 1 readings of 0",
                "the windows of c in the topics count 1 readings of 0",
            ],
        ),
    ],
)
def test_windows_that_miss_repeat_or_invent_readings_are_found(
    table: list[Window], published: list[Window], sentences: list[str]
) -> None:
    assert wrong_windows({"a": 7, "b": 2}, table, published) == sentences


WAVES = {topic: readings(WAVE - 1, WAVE, WAVE + 1, 2 * WAVE, 3 * WAVE) for topic in TOPICS}
RAISED, CLEARED, AGAIN = Event("raised", 2), Event("cleared", 4), Event("raised", 5)
ALERTS = {topic: [RAISED, CLEARED, AGAIN] for topic in TOPICS}


def test_alerts_of_each_crossing_are_right() -> None:
    assert list(crossings(WAVES[A])) == ALERTS[A]
    assert wrong_alerts(WAVES, ALERTS) == []


@pytest.mark.parametrize(
    ("events", "sentences"),
    [
        ([RAISED, CLEARED], [f"alerts 1 ({AGAIN}) of {A} are missing"]),
        (
            [RAISED, AGAIN],
            [
                f"alerts of {A} do not alternate: 1 ({(RAISED, AGAIN)})",
                f"alerts 1 ({CLEARED}) of {A} are missing",
            ],
        ),
        (
            [RAISED, CLEARED, RAISED, CLEARED, AGAIN],
            [f"alerts 2 ({RAISED}, {CLEARED}) of {A} are there more than once"],
        ),
        (
            [RAISED, CLEARED, AGAIN, Event("cleared", 6)],
            [f"alerts 1 ({Event('cleared', 6)}) of {A} have no reason"],
        ),
    ],
)
def test_alerts_that_are_missing_doubled_or_without_reason_are_found(
    events: list[Event], sentences: list[str]
) -> None:
    assert wrong_alerts(WAVES, ALERTS | {A: events}) == sentences


def test_alerts_of_other_topics_and_readings_that_never_cross_are_found() -> None:
    assert wrong_alerts(WAVES, ALERTS | {"x": []}) == ["there are alerts for 1 (x), which no rule is about"]
    assert wrong_alerts(WAVES | {A: readings(1)}, ALERTS | {A: []}) == [
        f"no reading of {A} has crossed the limit"
    ]


def test_a_sensor_that_was_taken_for_silent_is_found() -> None:
    assert wrong_silence({A: [("raised", 10.5)], U: []}, stopped=10.0) == []
    assert wrong_silence({A: [("raised", 9.5), ("cleared", 9.6)]}, stopped=10.0) == [
        f"sensors were taken for silent that were not: 1 (('{A}', 'raised', 9.5))"
    ]


def test_the_dead_are_the_orders_that_do_not_fit() -> None:
    found = {ORDERS: orders(9, 10, 11, 20)}
    dead = [(ORDERS, 2), (ORDERS, 4)]
    assert wrong_dead(found, dead, dead) == []
    assert wrong_dead(found, dead[:1], dead) == [f"of the dead 1 ({dead[1]}) are missing in topics"]
    assert wrong_dead(found, dead, [*dead, dead[0]]) == [
        f"of the dead 1 ({dead[0]}) are more than once in the lake"
    ]
    assert wrong_dead(found, [*dead, (ORDERS, 1)], dead) == [
        f"1 ({(ORDERS, 1)}) are among the dead in topics and should not be"
    ]


def test_the_same_seed_kills_the_same_and_everybody_has_his_turn() -> None:
    for seed in range(20):
        one, other = kills(random.Random(seed)), kills(random.Random(seed))
        plan = [next(one) for _ in range(12)]
        assert plan == [next(other) for _ in range(12)]
        assert {kill.victim for kill in plan[: len(VICTIMS)]} == set(VICTIMS)
        assert min(Counter(kill.victim for kill in plan).values()) >= 2
