"""A model of lakes, log and checkpoints: whatever is done to each, lake and log together have everything, once."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.brokers import BrokerProcess
from tests.pipeline.lake_model import LAKES, Pipelines
from tests.pipeline.queries import forgetful

__all__ = ["forgetful"]

Step = tuple[str, int]
NAMES = (
    "publish", "publish", "archive", "archive", "archive", "save", "save", "put_back", "put_back", "compact",
    "lose_checkpoints", "lose_lists", "restart_broker",
)  # fmt: skip
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, len(LAKES) - 1)), min_size=40, max_size=40)


def carried_out(pipelines: Pipelines, todo: list[Step], *, audited: bool) -> None:
    for name, number in todo:
        getattr(pipelines, name)(number)
        pipelines.settle()
        if name not in ("publish", "save"):
            pipelines.check(number, audited=audited)


def test_lakes_and_log_have_everything_whatever_is_done_to_them(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """Two lakes that share a warehouse, a catalog that is put back, a checkpoint and lists that are lost."""
    todo: list[Step] = [
        ("archive", 0),  # from here on the broker holds something
        ("publish", 0),
        ("archive", 1),
        ("save", 0),
        ("publish", 1),
        ("archive", 0),
        ("put_back", 1),  # the first lake lacks again what both have acknowledged
        ("publish", 2),
        ("archive", 0),
        ("lose_checkpoints", 0),
        ("lose_lists", 0),
        ("compact", 0),
        ("archive", 1),
        ("put_back", 0),  # and so does the second
        ("archive", 1),
    ]
    pipelines = Pipelines(spark, forgetful, tmp_path)
    carried_out(pipelines, todo[:7], audited=False)
    pipelines.check(0, audited=True)
    carried_out(pipelines, todo[7:], audited=False)
    assert pipelines.losses == 2
    pipelines.check(1, audited=True)


@pytest.mark.soak
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
