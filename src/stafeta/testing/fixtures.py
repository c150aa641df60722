"""Fixtures for pytest: `pytest_plugins = ["stafeta.testing.fixtures"]` in a conftest.py makes them known.

Nothing else imports this module, so that pytest is no dependency of Stafeta.
"""

from collections.abc import Iterator

import pytest

from stafeta.testing.broker import Broker


@pytest.fixture
def stafeta_broker() -> Iterator[Broker]:
    """A broker for one test, with every door open and nothing in its log."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_stafeta_broker() -> Iterator[Broker]:
    """One broker for all tests of a run, which takes less time: tests that share it use topics of their own."""
    with Broker() as broker:
        yield broker
