"""The OpenAPI document is true: requests that it allows are answered as it says, and it has every path there is."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from stafeta.doors.http.app import CHECKED, OPEN, STREAMS
from stafeta.doors.http.openapi import document
from stafeta.doors.http.pages import ROUTES
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Peer

OPERATIONS = [
    (method, path)
    for path, methods in document()["paths"].items()
    for method in methods
    if path not in STREAMS  # which have no end
]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    data = tmp_path_factory.mktemp("openapi") / "data"
    options = ("--durability", "os", "--set", 'topics."#".keep=1d')
    with BrokerProcess(data, *options, doors=("http",)) as broker:
        host, port = broker.door("http")
        with Peer((host, port)) as peer:
            peer.post("/api/subscriptions", {"client": "0", "filter": "0"})
            peer.publish("0", "a", "b")
        from schemathesis import openapi  # which takes a second, and not of every process that collects tests

        yield openapi.from_url(f"http://{host}:{port}/api/openapi.json")
        assert "Traceback" not in broker.stderr


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_as_the_document_says(schema: Any, method: str, path: str) -> None:
    from schemathesis import checks

    kinds = (
        checks.not_a_server_error,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
    )
    operation = schema[path][method.upper()]

    @settings(
        max_examples=15,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        # Where no Spark is at hand, 503 is what there is to say.
        case.call_and_validate(checks=kinds[1:] if path == "/api/sql" else kinds)

    check()


def test_the_document_has_every_path() -> None:
    there = {
        (path.replace("{name:path}", "{name}"), method.lower())
        for path, methods in {**OPEN, **CHECKED}.items()
        for method in methods
        if path not in ROUTES and path != "/api/openapi.json"
    } | {(path, "get") for path in STREAMS}
    said = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert said == there
