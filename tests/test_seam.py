"""Doors call the broker's methods: nobody outside `broker/` reaches into its parts."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from stafeta.broker import Broker, Gate
from stafeta.broker.guarded import GuardedBroker
from stafeta.testing.memory import MemoryStore
from tests.test_imports import imports, within

ROOT = Path(stafeta.__file__).parent
# What topics and subscriptions have for the parts alone.
WITHIN = {"cursors", "subscribers", "watchers"}
# What doors import of the broker beside the package's own names.
OFFERED = {"stafeta.broker.consumer", "stafeta.broker.overview", "stafeta.broker.portions"}


async def parts() -> set[str]:
    """The attributes of a broker that are parts of it, and not methods or values."""
    broker = await Broker.open(MemoryStore())
    await broker.close()
    found = {name for name, value in vars(broker).items() if within(type(value).__module__, {"stafeta"})}
    return found - {"security"}  # which doors ask who comes in


def reached(source: str, parts: set[str]) -> Iterator[str]:
    """What a module reaches of a broker's parts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            of_broker = name.endswith("broker") and (node.attr in parts or node.attr.startswith("_"))
            of_part = name in parts - {"log"} or (name in ("topic", "subscription") and node.attr in WITHIN)
            if of_broker or of_part:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("folder", ["doors", "server.py"])
def test_doors_and_the_server_do_not_reach_the_parts_of_the_broker(folder: str) -> None:
    known = asyncio.run(parts())
    assert {"commits", "staging", "registry", "collector"} <= known
    where = ROOT / folder
    wrong = [
        f"{path.relative_to(ROOT)}, {found}"
        for path in ([where] if where.is_file() else where.rglob("*.py"))
        for found in reached(path.read_text(encoding="utf-8"), known)
    ]
    assert not wrong


@pytest.mark.parametrize(
    "wrong",
    [
        "self.broker.commits.fill = more",
        "door.broker.staging.begin('p')",
        "self._broker._store.sweep()",
        "for one in topic.cursors(): pass",
        "list(subscription.cursors)",
        "registry = broker.registry",
        "registry.topics",
    ],
)
def test_reaching_a_part_is_noticed(wrong: str) -> None:
    assert list(reached(wrong, asyncio.run(parts())))


def test_doors_import_only_what_the_broker_offers() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "doors").rglob("*.py")
        for name in imports(path)
        if within(name, {"stafeta.broker"}) and name.count(".") > 2 and not within(name, OFFERED)
    ]
    assert not wrong


# What doors call of a broker itself, and what of the verbs that `for_principal` gives them.
GATE = {name for name in vars(Gate) if not name.startswith("_")} | set(Gate.__annotations__)
VERBS = {name for name in dir(GuardedBroker) if not name.startswith("_")}


def unchecked(source: str) -> Iterator[str]:
    """What a module calls of a broker, or of verbs, that is not what doors are given of them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            of_broker = name.endswith("broker") and name != "stafeta.broker" and node.attr not in GATE
            of_verbs = name.endswith("verbs") and node.attr not in VERBS
            if of_broker or of_verbs:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_doors_reach_no_verb_that_is_not_checked() -> None:
    """mypy says the same by `Gate` and `Verbs`, but for what is `Any`."""
    wrong = [
        f"{path.relative_to(ROOT)}, {found}"
        for path in (ROOT / "doors").rglob("*.py")
        for found in unchecked(path.read_text(encoding="utf-8"))
    ]
    assert not wrong
    known = {name for path in (ROOT / "doors").rglob("*.py") for name in imports(path)}
    assert "stafeta.broker.Broker" not in known
    assert "stafeta.broker.broker" not in known


@pytest.mark.parametrize(
    "wrong",
    ["self.broker.publish('t', b'')", "door.broker.topics['t']", "verbs.registry", "self._verbs._broker"],
)
def test_reaching_a_verb_that_is_not_checked_is_noticed(wrong: str) -> None:
    assert list(unchecked(wrong))


def test_a_gate_has_no_verbs() -> None:
    assert {"commit", "group"} == GATE & VERBS  # to wait for a group, and see its size


@pytest.mark.parametrize("folder", ["pipeline", "cli", "bench", "clients", "config"])
def test_nobody_else_has_a_broker_to_reach_into(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in imports(path)
        if within(name, {"stafeta.broker"})
    ]
    assert not wrong
