from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests: those of a file stay together, for its fixtures' sake, and those that
    use the shared Spark session, so that there is one."""
    for item in items:
        shares = "spark" in getattr(item, "fixturenames", ())
        group = "spark" if shares else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that runs, on an empty folder."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process
