"""Waiting for a condition, instead of for a while."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300  # seconds, which only a hang exhausts
_INTERVAL = 0.01
_LONGEST = 1.0
_SHARE = 9  # so many times as long as looking has taken, nobody looks


def wait_until(condition: Callable[[], T], patience: float = PATIENCE) -> T:
    """Waits until the condition gives something true, and returns that. What takes long to find out is asked for less
    often: whoever is waited for needs the processor more."""
    deadline = time.monotonic() + patience
    while True:
        begin = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        assert now < deadline, f"it has not come true within {patience:g} s"
        time.sleep(min(max(_INTERVAL, _SHARE * (now - begin)), _LONGEST))


async def comes_true(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """The same for who is on the loop that the condition comes true on."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_INTERVAL / 2)
