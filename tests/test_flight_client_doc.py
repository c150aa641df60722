"""What examples of docs/flight-client.md leave behind, and what is on the page. (test_pages.py runs all of them.)"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stafeta
from tests.brokers import BrokerProcess

PAGE = Path(__file__).parent.parent / "docs" / "flight-client.md"


@pytest.fixture(scope="module")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("doc") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=36500d', doors=("flight",)) as process:
        yield process


@pytest.fixture
def address(flying: BrokerProcess) -> str:
    return flying.flight


@pytest.fixture
def examples(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The examples, for this broker and in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8").replace("grpc://127.0.0.1:8815", address)
    text = text.replace("stafeta.connect()", f'stafeta.connect("{address}")')
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_going_on_where_the_program_was(examples: list[str], address: str, tmp_path: Path) -> None:
    lines = [str(number) for number in range(100)]
    for had in (30, 70, 100):
        (tmp_path / "readings.txt").write_text("".join(f"{line}\n" for line in lines[:had]))
        exec(examples[1], {})
    with stafeta.connect(address) as broker:
        payloads: list[Any] = broker.read("readings").column("payload").to_pylist()
    assert [payload.decode() for payload in payloads] == lines


def test_a_transaction(examples: list[str], address: str) -> None:
    exec(examples[2], {})
    with stafeta.connect(address) as broker:
        found = broker.read("accounts/+", columns=["topic", "kind", "payload"]).to_pylist()
    assert found == [
        {"topic": "accounts/1", "kind": "json", "payload": b'{"amount": -10}'},
        {"topic": "accounts/2", "kind": "json", "payload": b'{"amount": 10}'},
    ]


def test_every_method_and_option_is_on_the_page() -> None:
    import inspect

    from stafeta.clients.flight.connection import Connection
    from stafeta.clients.flight.producer import Producer
    from stafeta.clients.flight.subscription import Received, Subscription

    text = PAGE.read_text(encoding="utf-8")
    for one in (Connection, Producer, Subscription, Received):
        for name, value in vars(one).items():
            if name.startswith("_") or name in ("address", "topic", "name", "filter"):
                continue
            assert re.search(rf"\b{name}\b", text), f"{one.__name__}.{name}"
            if inspect.isfunction(value):
                for option in inspect.signature(value).parameters:
                    assert option == "self" or re.search(rf"\b{option}\b", text), f"{name}({option})"


def test_what_has_to_be_named_is_shown_so() -> None:
    import ast
    import inspect

    from stafeta.clients.flight.connection import Connection

    for name, options in re.findall(
        r"^\| `(\w+)\(([^`]*)\)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    ):
        method = getattr(Connection, name, None)
        if method is None or "…" in options:
            continue
        shown = ast.parse(f"def f({options.replace(' MiB', '')}): ...").body[0]
        assert isinstance(shown, ast.FunctionDef)
        parameters = inspect.signature(method).parameters.values()
        for kind, arguments in (
            (inspect.Parameter.POSITIONAL_OR_KEYWORD, shown.args.args),
            (inspect.Parameter.KEYWORD_ONLY, shown.args.kwonlyargs),
        ):
            named = [one.arg for one in arguments]
            real = [one.name for one in parameters if one.kind is kind and one.name != "self"]
            assert named == real[: len(named)], name


def test_everything_has_its_twin() -> None:
    from stafeta.clients.flight.async_connection import AsyncConnection
    from stafeta.clients.flight.async_streams import AsyncProducer, AsyncSubscription, AsyncTransaction
    from stafeta.clients.flight.connection import Connection
    from stafeta.clients.flight.producer import Producer, Transaction
    from stafeta.clients.flight.subscription import Subscription

    for one, twin in (
        (Connection, AsyncConnection),
        (Producer, AsyncProducer),
        (Subscription, AsyncSubscription),
        (Transaction, AsyncTransaction),
    ):
        for name in vars(one):
            assert name.startswith("_") or hasattr(twin, name), f"{twin.__name__}.{name}"
