"""The log of who did what: complete where little happens, bounded where a stranger wants it to grow."""

import asyncio
import json
from pathlib import Path

from stafeta.security.audit import RATE, SAME, Audit


def test_events_are_lines_of_a_file_and_messages_of_a_topic(tmp_path: Path) -> None:
    async def work() -> None:
        published: list[bytes] = []
        path = tmp_path / "audit.log"
        audit = Audit(published.append, path)
        audit.record("login", user="ann", door="flight", address="10.0.0.1:5", nothing="")
        await asyncio.to_thread(audit.record, "refused", user="ann", topic="a\n\ud800/#", operation="publish")
        await asyncio.sleep(0.01)
        audit.flush()
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert [(line["event"], line["user"]) for line in lines] == [("login", "ann"), ("refused", "ann")]
        assert "nothing" not in lines[0]
        assert [json.loads(event) for event in published] == lines
        assert path.stat().st_mode & 0o777 == 0o600

    asyncio.run(work())


def test_what_comes_again_and_again_is_counted() -> None:
    async def work() -> None:
        published: list[bytes] = []
        clock = [0.0]
        audit = Audit(published.append, clock=lambda: clock[0])
        for number in range(500):
            audit.record("refused login", door="flight", address=f"10.0.0.1:{number}", why="wrong")
        audit.flush()
        assert len(published) == 1
        clock[0] = SAME
        audit.record("refused login", door="flight", address="10.0.0.1:9", why="wrong")
        audit.flush()
        assert json.loads(published[1])["again"] == 499

    asyncio.run(work())


def test_no_more_is_written_a_second_than_may(tmp_path: Path) -> None:
    async def work() -> None:
        published: list[bytes] = []
        clock = [0.0]
        audit = Audit(published.append, clock=lambda: clock[0])
        for number in range(100_000):
            audit.record("refused login", address=f"10.0.{number}.1:1")
        audit.flush()
        assert len(published) == RATE
        clock[0] = 1.0
        audit.record("login", user="ann")
        audit.flush()
        assert sum(json.loads(event).get("not_written", 0) for event in published) == 100_000 - RATE

    asyncio.run(work())


def test_refusals_without_number_leave_nothing_else_out() -> None:
    async def work() -> None:
        published: list[bytes] = []
        audit = Audit(published.append, clock=lambda: 0.0)
        for number in range(100_000):
            audit.record("refused", user="mallory", topic=f"t/{number}")
        audit.record("users changed", what="user ann removed")
        audit.record("skip", user="admin", topic="t")
        audit.flush()
        events = [json.loads(event)["event"] for event in published]
        assert events[-2:] == ["users changed", "skip"]
        assert events.count("refused") == RATE

    asyncio.run(work())


def test_what_strangers_write_cannot_be_seen_by_a_terminal(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "audit.log"
        audit = Audit(lambda event: None, path)
        hostile = "a\n{}\x1b[2J\x9b2J\x7f\u202e\u2028"
        audit.record("refused", user="ann", topic=hostile)
        audit.flush()
        (line,) = path.read_text(encoding="utf-8").splitlines()
        assert line.isprintable()
        assert line.isascii()
        assert json.loads(line)["topic"] == hostile

    asyncio.run(work())


def test_a_file_that_is_full_begins_anew(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "audit.log"
        audit = Audit(lambda event: None, path, size=500)
        for number in range(50):
            audit.record("login", user=f"u{number}")
            audit.flush()

    asyncio.run(work())
    kept = sorted(one.name for one in tmp_path.iterdir())
    assert kept in (["audit.log", "audit.log.1"], ["audit.log.1"])
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 1500
