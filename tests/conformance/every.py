"""Every dialect, and those of a door that can do something."""

from collections.abc import Callable

import pytest

from tests.conformance import devices, flight, frames, http, zeromq
from tests.conformance.dialects import Dialect

DOORS = ("devices", "frames", "flight", "http")  # beside ZeroMQ's, which is always open
DIALECTS = [
    zeromq.TEXT,
    zeromq.JSON,
    zeromq.CLIENT,
    devices.TEXT,
    devices.STRUCT,
    frames.JSON,
    frames.XML,
    frames.PICKLE,
    flight.FLIGHT,
    http.REST,
    http.SOCKET,
]


def each(name: str, can: Callable[[Dialect], bool] = lambda dialect: True) -> pytest.MarkDecorator:
    """Runs a test once for each dialect that can do this."""
    return pytest.mark.parametrize(name, [dialect for dialect in DIALECTS if can(dialect)], ids=str)
