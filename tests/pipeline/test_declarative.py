"""Spark Declarative Pipelines on topics: the example is run twice, as its README has it."""

from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.pipeline.declarative import Example

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]


def test_two_runs_in_a_row_bring_each_message_once_into_the_table_and_once_into_the_topic(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    example = Example(broker, tmp_path / "example")
    more = {"SPARK_CONF_DIR": "conf", "SPARK_TESTING": "1"}  # this makes Spark take any free port
    for first, last in ((1, 30), (31, 50)):
        example.publish(first, last)
        assert "Run is COMPLETED." in example.run(more=more)
        example.check(last)
