"""Which threads go first where there are not enough processors for all of them."""

import os
import sys
import threading
from contextlib import suppress
from typing import Final

BEHIND: Final = 4  # how much nicer than others those are that move bulk: they get about half as much
_NICEST: Final = 19


def step_back() -> None:
    """Let this thread go behind others, and those that it starts. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            nice = min(os.getpriority(os.PRIO_PROCESS, thread) + BEHIND, _NICEST)
            os.setpriority(os.PRIO_PROCESS, thread, nice)
