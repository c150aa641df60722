from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that runs, on an empty folder."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process
