"""A task whose broker says nothing ends with a sentence, and soon after the timeout."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest
from pyarrow import flight

from stafeta.errors import NoReply
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Range, Task
from stafeta.pipeline.connector.reading import batches
from stafeta.pipeline.connector.spark_schema import arrow_schema, schema_of

TIMEOUT = 1.0


class Silent(flight.FlightServerBase):
    """A door that takes a call and never answers it, until it is told to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: object, ticket: object) -> NoReturn:
        self.ended.wait()
        raise flight.FlightUnavailableError("it is over")


@pytest.fixture
def silent() -> Iterator[str]:
    with Silent() as server:
        yield f"grpc://127.0.0.1:{server.port}"
        server.ended.set()


@pytest.fixture
def deaf() -> Iterator[str]:
    """A port where connections are taken, and nothing is read or said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"grpc://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("place", ["silent", "deaf"])
def test_a_task_does_not_wait_for_ever(place: str, request: pytest.FixtureRequest) -> None:
    broker = request.getfixturevalue(place)
    options = ReadOptions.of({"broker": broker, "subscribe": "t", "timeout": f"{TIMEOUT}s"}, streaming=False)
    schema = arrow_schema(schema_of(None, decode=False))
    began = time.monotonic()
    with pytest.raises(NoReply, match="has not answered for 1 s"):
        list(batches(options, schema, Task((Range("t", 1, 5),))))
    assert time.monotonic() - began < TIMEOUT * 60
