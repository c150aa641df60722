"""Stores that can be made to fail, and the ways to end one."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from stafeta.errors import StoreFull
from stafeta.store.port import Group
from stafeta.store.sqlite import SqliteStore, checkpoint, pages, sweeper
from stafeta.testing.memory import MemoryStore

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)


class FailingMemory(MemoryStore):
    fails = False

    async def commit(self, group: Group) -> None:
        if self.fails:
            raise StoreFull("No room is left.")
        await super().commit(group)

    def crash(self) -> None:
        """Nothing: what is in memory is all there is."""


class FailingSqlite(SqliteStore):
    fails = False

    def __init__(self, folder: Path, *, checkpoint_rows: int = 20, segments_from: int = 256 << 10) -> None:
        super().__init__(
            folder, durability="os", checkpoint_rows=checkpoint_rows, segments_from=segments_from
        )

    async def commit(self, group: Group) -> None:
        if self.fails:
            raise StoreFull("No room is left.")
        await super().commit(group)

    def crash(self) -> None:
        """Let go as the system does for a process that is killed."""
        self._release()
        for thread in (self._write_thread, self._read_thread, self._copy_thread):
            thread.shutdown()


def shrink(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """Lets slices and portions meet in every step."""
    for module, name in (
        (checkpoint, "SLICE"),
        (checkpoint, "PER_TOPIC"),
        (sweeper, "RUNS"),
        (sweeper, "BUDGET"),
        (sweeper, "BLOCKS"),
        (sweeper, "SHARED"),
    ):
        monkeypatch.setattr(module, name, small)
    monkeypatch.setattr(pages, "PAGE", 2 * pages.WIDTH)
