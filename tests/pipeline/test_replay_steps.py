"""A replay that dies at each of its steps, one after the other, and goes on each time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stafeta.clients.flight.producer import Transaction
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import replay
from stafeta.pipeline.jobs.replaying.replay_plan import PlanStore
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import numbered, payloads, published

# Where a replay by the clock writes something down: its plan; its messages, unseen; and how far it is, with them.
STEPS: tuple[tuple[type, str], ...] = ((PlanStore, "write"), (Transaction, "write"), (Transaction, "commit"))


class Killed(BaseException):
    """Nobody expects it, so nothing is put in order."""


def dying(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, after which whoever took it is dead."""

    def take(*arguments: Any, **options: Any) -> None:
        step(*arguments, **options)
        raise Killed

    return take


def test_a_replay_by_the_clock_that_dies_at_any_step_sends_each_message_once(
    spark: SparkSession,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published(broker, a=numbered(1, 12))
    config = config_of(broker, tmp_path)
    Archive(spark, broker, config).take("#")
    asked = {"topic": "a", "into": "copies", "rate": "10", "name": "mine"}
    seen = []
    for owner, name in STEPS:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying(getattr(owner, name)))
            with pytest.raises(Killed):
                replay.start(Context(spark, config, "replay", "", arguments=asked))
        broker.restart()
        seen.append(len(payloads(broker, "copies")))
    assert seen == [0, 0, 2], "two messages in the first fifth of a second, seen with the commit"
    replay.start(Context(spark, config, "replay", "", arguments=asked))
    assert payloads(broker, "copies") == numbered(1, 12)
    assert capsys.readouterr().err.endswith("Replay mine goes on.\nReplay mine is done: 12 messages.\n")


def test_a_replay_at_full_speed_that_dies_after_each_portion_sends_each_message_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(broker, a=numbered(1, 6))
    config = config_of(broker, tmp_path, batch=2)
    Archive(spark, broker, config).take("#")
    asked = {"topic": "a", "into": "copies", "name": "mine"}
    for sent in (2, 4):
        with monkeypatch.context() as patch:
            patch.setattr(replay.Replay, "_send_all", dying(replay.Replay._send_all))
            with pytest.raises(Killed):
                replay.start(Context(spark, config, "replay", "", arguments=asked))
        broker.restart()
        assert payloads(broker, "copies") == numbered(1, sent)
    replay.start(Context(spark, config, "replay", "", arguments=asked))
    assert payloads(broker, "copies") == numbered(1, 6)
