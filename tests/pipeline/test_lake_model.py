"""A model of lakes, log and checkpoints: whatever is done to each, lake and log together have everything, once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stafeta.pipeline.jobs.archiving import retention
from tests.brokers import BrokerProcess
from tests.pipeline.lake_model import LAKES, Pipelines
from tests.pipeline.queries import forgetful

__all__ = ["forgetful"]

Step = tuple[str, int]
NAMES = (
    "publish", "publish", "archive", "archive", "archive", "archive_while_all_goes_on", "die_before_the_commit",
    "die_after_the_commit", "save", "save", "put_back", "put_back", "put_back_catalog", "lose_catalog", "lose_a_file",
    "lose_the_table", "compact", "lose_checkpoints", "lose_lists", "restart_broker",
)  # fmt: skip
UNSEEN = (
    "publish",
    "save",
    "lose_checkpoints",
    "lose_a_file",
    "lose_the_table",
)  # what is there is as it was
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, len(LAKES) - 1)), min_size=40, max_size=40)


def carried_out(
    pipelines: Pipelines, todo: list[Step], *, audited: bool, unseen: Sequence[str] = UNSEEN
) -> None:
    for name, number in todo:
        getattr(pipelines, name)(number)
        pipelines.settle()
        if name not in unseen:
            pipelines.check(number, audited=audited)


def test_lakes_and_log_have_everything_whatever_is_done_to_them(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lakes that share a warehouse, which is put back, drivers that die, and everything lost that can be."""
    monkeypatch.setattr(retention, "_POLL_INTERVAL", 0.1)  # which is waited for after each step
    todo: list[Step] = [
        ("archive", 0),  # from here on the broker holds something
        ("publish", 0),
        ("archive", 1),
        ("save", 0),
        ("lose_lists", 1),
        ("publish", 1),
        ("die_after_the_commit", 0),
        ("archive", 1),
        ("put_back_catalog", 0),
        ("archive", 0),
        ("put_back", 1),  # both lakes lack again what both have acknowledged
        ("publish", 2),
        ("archive", 0),
        ("lose_checkpoints", 0),
        ("lose_catalog", 0),
        ("lose_the_table", 0),
        ("archive", 1),
        ("publish", 0),
        ("die_before_the_commit", 0),
        ("archive_while_all_goes_on", 0),
    ]
    pipelines = Pipelines(spark, forgetful, tmp_path)
    unseen = (
        *UNSEEN,
        "lose_lists",
        "put_back_catalog",
        "lose_catalog",
        "die_before_the_commit",
    )  # until the next
    carried_out(pipelines, todo[:11], audited=False, unseen=unseen)
    pipelines.check(0, audited=True)
    carried_out(pipelines, todo[11:], audited=False, unseen=unseen)
    assert pipelines.losses == 2
    pipelines.check(1, audited=True)
    # Where a look failed in the lake, its task in the log may be at it still: four times, for as long as a reader waits
    # for a broker that is gone then, in one of the two places that tests share.
    spark.sparkContext.cancelAllJobs()


@pytest.mark.soak
@pytest.mark.timeout(7200)  # 800 steps, each with a view and an audit
@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps)
def test_lakes_and_log_have_everything_whatever_happens(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, todo: list[Step]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    with BrokerProcess(folder / "data", doors=("flight",)) as broker:
        carried_out(Pipelines(spark, broker, folder), [("archive", 0), *todo], audited=True)
