"""Waiting for a condition, instead of for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300  # seconds, which only a hang exhausts
_INTERVAL = 0.01


def wait_until(condition: Callable[[], T], patience: float = PATIENCE) -> T:
    """Waits until the condition gives something true, and returns that."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it has not come true within {patience:g} s"
        time.sleep(_INTERVAL)
    return found
