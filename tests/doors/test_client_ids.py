"""The names of clients and producers of two doors never meet: each door's begin with a prefix of its own."""

import ast
import asyncio
from itertools import permutations
from pathlib import Path

import pytest

import stafeta
from stafeta.broker import Broker
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.codec import Put, Subscribe
from stafeta.doors.zeromq.text_dialect import TextDialect
from stafeta.errors import InvalidClient
from stafeta.message import Kind
from stafeta.names import PREFIXES, check_client
from stafeta.testing.memory import MemoryStore

ROOT = Path(stafeta.__file__).parent


def test_no_prefix_is_the_beginning_of_another() -> None:
    assert not [pair for pair in permutations(PREFIXES, 2) if pair[0].startswith(pair[1])]
    for prefix in PREFIXES:
        check_client(f"{prefix}x")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_zeromq_client_has_no_name_of_another_door(prefix: str) -> None:
    client = f"{prefix}7"

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("reader", "t")
        for request in (Subscribe(client, "t", None), Put("t", b"x", Kind.STRING, client, 1)):
            with pytest.raises(InvalidClient, match=prefix):
                actions.act(broker, TextDialect(), request, "")
        assert list(broker.clients) == ["reader"]
        await broker.close()

    asyncio.run(work())


@pytest.mark.parametrize("folder", ["doors", "broker", "clients", "pipeline", "cli"])
def test_prefixes_are_written_in_one_place(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}, line {node.lineno}: {node.value!r}"
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(PREFIXES)
    ]
    assert not wrong
