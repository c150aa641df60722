"""What a service tells systemd, by its protocol (sd_notify): a datagram of lines `NAME=value` to a socket.

1. systemd names the socket in NOTIFY_SOCKET. Without it there is nobody to tell, and nothing is done.
2. A watchdog (WATCHDOG_USEC) is told that all is well from the event loop, and only after the store has answered: where
   either hangs, systemd starts the broker again.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

log = logging.getLogger("stafeta.server")

_PATIENCE: Final = 1.0  # seconds
_SHARE: Final = 3  # of the time that systemd waits for: so often it is told


class Service:
    """What runs the broker, if it is systemd: as the environment says."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environment)
        self._task: asyncio.Task[None] | None = None

    def ready(self, status: str) -> None:
        """It has started, or has read its configuration again."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=stopping")

    def watch(self, check: Callable[[], Awaitable[None]]) -> None:
        """Say again and again that all is well, from now on, each time after `check` has returned."""
        if self._address is not None and self._watchdog:
            self._task = asyncio.get_running_loop().create_task(self._watch(check))

    def stop_watching(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await check()
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / _SHARE)

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as teller:
                teller.settimeout(_PATIENCE)  # should nobody read what is sent there
                teller.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("systemd cannot be told %s: %s", lines[0], error.strerror or "it does not read")


def _address(name: str) -> str | None:
    """That of a socket: a path, or with @ a name that is in no file system."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None


def _watchdog(environment: Mapping[str, str]) -> float:
    """Seconds in which systemd wants to hear that all is well; 0 where it does not, or from somebody else."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(environment.get("WATCHDOG_USEC", "0")) / 1_000_000
    except ValueError:
        return 0.0
