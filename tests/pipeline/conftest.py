from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers import BrokerProcess
from tests.pipeline.sessions import INTERPRETED, session

# PySpark says so of every pandas 3, at mapInArrow and wherever else it could be used.
_NEW_PANDAS = "ignore:PySpark does not yet fully support pandas:FutureWarning"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the session is marked: -m spark chooses it, -m 'not spark' leaves it out, as does -m 'not slow'."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker("slow")
            item.add_marker(pytest.mark.filterwarnings(_NEW_PANDAS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session that all tests share. A task that fails is tried up to four times."""
    with session("local[2, 4]", tmp_path_factory.mktemp("spark"), INTERPRETED, forked=True) as one:
        yield one


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a Flight door that runs, on an empty folder, and keeps everything."""
    with BrokerProcess(tmp_path / "data", "--set", 'topics."#".keep=36500d', doors=("flight",)) as process:
        yield process
