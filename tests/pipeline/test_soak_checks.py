"""What the soak checks, checked itself: each thing that could go wrong is found where it was planted."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.soak_checks import (
    last_of,
    planned_ends,
    taken,
    wrong_confirmations,
    wrong_deliveries,
    wrong_looks,
    wrong_messages,
)
from tests.pipeline.soak_plan import MOMENTS, planned
from tests.pipeline.soak_producer import payload

_PUBLISHED = {"input/early": 6, "input/late": 3}


def copy(early: str = "123456", late: str = "123") -> list[bytes]:
    """Messages with these numbers, the topics mixed."""
    messages = [payload("input/early", int(number)).encode() for number in early]
    for place, number in enumerate(late):
        messages.insert(2 * place, payload("input/late", int(number)).encode())
    return messages


def test_a_true_copy_is_right() -> None:
    assert wrong_messages(_PUBLISHED, copy()) == []


@pytest.mark.parametrize(
    ("early", "sentence"),
    [
        ("1234566", "1 (6) of input/early are there more than once"),
        ("11223456", "2 (1, 2) of input/early are there more than once"),
        ("12346", "1 (5) of input/early are missing"),
        ("", "6 (1, 2, 3, 4, 5, …) of input/early are missing"),
        ("123546", "1 ((5, 4)) of input/early are in the wrong order"),
        ("1234567", "1 (b'input/early 7') in the output were never published"),
        ("0123456", "1 (b'input/early 0') in the output were never published"),
    ],
)
def test_a_planted_mistake_is_found(early: str, sentence: str) -> None:
    assert wrong_messages(_PUBLISHED, copy(early)) == [sentence]


@pytest.mark.parametrize("stranger", [b"", b"input/other 1", b"input/early x", b"\xff 1"])
def test_what_nobody_published_is_found(stranger: bytes) -> None:
    assert wrong_messages(_PUBLISHED, [*copy(), stranger]) == [
        f"1 ({stranger!r}) in the output were never published"
    ]


def test_a_batch_that_is_there_twice_is_found_as_repeated_and_as_going_back() -> None:
    assert wrong_messages(_PUBLISHED, [*copy(), *copy("456", "")]) == [
        "3 (4, 5, 6) of input/early are there more than once",
        "1 ((6, 4)) of input/early are in the wrong order",
    ]


def test_a_look_at_half_a_micro_batch_is_found() -> None:
    assert wrong_looks([100, 250, 400], [100, 250, 400]) == []
    assert wrong_looks([0, 400], [100, 250, 400]) == [], "a look may miss one"
    assert wrong_looks([100, 249], [100, 250]) == [
        "after 1 (249) messages, half a micro-batch was to be seen"
    ]


def test_deliveries_that_repeat_miss_or_turn_are_found() -> None:
    assert wrong_deliveries([1, 2, 3], 3) == []
    for offsets in ([1, 2], [1, 2, 2, 3], [1, 3, 2]):
        assert wrong_deliveries(offsets, 3)


def test_a_broker_that_takes_a_confirmation_back_is_found() -> None:
    assert wrong_confirmations([{"a": 1}, {"a": 5, "b": 0}, {"a": 5, "b": 2}]) == []
    assert wrong_confirmations([{"a": 5}, {"a": 4}]) == [
        "1 ((5, 4)) times fewer messages of a were stored than before"
    ]


def test_the_ends_of_micro_batches_are_those_of_sparks_log(tmp_path: Path) -> None:
    assert last_of(tmp_path, "commits") == -1
    (tmp_path / "offsets").mkdir()
    ends: list[dict[str, object]] = [{}, {"a": 11, "new topics": {"a": 1}}, {"a": 21, "b": 6}]
    for number, offsets in enumerate(ends):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    (tmp_path / "offsets" / ".3.crc").touch()
    assert planned_ends(tmp_path) == {0: 0, 1: 10, 2: 25}
    assert last_of(tmp_path, "offsets") == 2
    assert taken(tmp_path) == {}
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "1").touch()
    assert taken(tmp_path) == {"a": 11}


def test_the_same_seed_makes_the_same_plan_and_everybody_has_his_turn() -> None:
    for seed in range(20):
        plan = planned(20, random.Random(seed))
        assert plan == planned(20, random.Random(seed))
        victims = Counter(kill.victim for kill in plan)
        assert victims.keys() == MOMENTS.keys()
        assert min(victims.values()) >= 3
        assert victims.total() == 20
        assert all(kill.moment in MOMENTS[kill.victim] for kill in plan)
        assert {kill.victim for kill in planned(5, random.Random(seed))} == MOMENTS.keys()
