"""The connections of the Flight door. gRPC has them, and says nothing of them: they are among the process's files.

1. There are at most so many, and so many from one address; who has made no call in time, or has been silent for long,
   is shut down. It is looked at once a second: until then there may be more.
2. A call says from which address and port it comes. That one may make calls is seen before it is counted here.
"""

import asyncio
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, NamedTuple

from stafeta import addresses
from stafeta.config.options import Limits
from stafeta.logs import SeldomLog

INTERVAL: Final = 1.0  # seconds between two looks, at most
FILES: Final = "/proc/self/fd"


class Found(NamedTuple):
    descriptor: int
    peer: str


class Connections:
    """Tells which connections to the ports there are to be ended. `limits` are those of now."""

    def __init__(self, limits: Callable[[], Limits], most: int, log: logging.Logger) -> None:
        self._limits = limits
        self._most = most
        self._log = SeldomLog(log)
        self._since: dict[Found, float] = {}  # when each was first seen
        self._called: dict[str, float] = {}  # when each peer last began or ended a call
        self._calling: Counter[str] = Counter()  # calls that are carried out
        self._lock = threading.Lock()
        self.ports: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None and os.path.isdir(FILES):
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- in the threads of calls

    def begin(self, peer: str) -> None:
        """Somebody who may has made a call."""
        with self._lock:
            self._calling[peer] += 1
            self._called[peer] = monotonic()

    def end(self, peer: str) -> None:
        """It is over."""
        with self._lock:
            self._calling[peer] -= 1
            if not self._calling[peer]:
                del self._calling[peer]
            self._called[peer] = monotonic()

    # --- looking

    async def _watch(self) -> None:
        while True:
            limits = self._limits()
            await asyncio.sleep(min(INTERVAL, limits.identify_timeout, limits.idle_timeout))
            found = await asyncio.to_thread(_connections, frozenset(self.ports))
            with self._lock:
                ended = self._too_many(found)
            for one, why in ended:
                self._log.warning(f"connections are closed: {why}", peer=one.peer)
                _shut_down(one)

    def _too_many(self, found: Iterable[Found]) -> list[tuple[Found, str]]:
        """Those that are to be ended, and why."""
        now, limits, most = monotonic(), self._limits(), self._most
        self._since = {one: self._since.get(one, now) for one in found}
        peers = {one.peer for one in self._since}
        self._called = {peer: when for peer, when in self._called.items() if peer in peers}
        by_network: Counter[str] = Counter()
        ended: list[tuple[Found, str]] = []
        # The longest there first, and those that have made calls before all others: these stay.
        ordered = sorted(self._since.items(), key=lambda item: (item[0].peer not in self._called, item[1]))
        for number, (one, since) in enumerate(ordered, 1):
            network = addresses.network_of(one.peer)
            by_network[network] += 1
            if one.peer in self._calling:
                continue
            if one.peer not in self._called and now - since >= limits.identify_timeout:
                ended.append((one, "they made no call within limits.identify_timeout"))
            elif now - self._called.get(one.peer, now) >= limits.idle_timeout:
                ended.append((one, "they were silent for limits.idle_timeout"))
            elif by_network[network] > limits.max_address_connections:
                why = "there are as many from their address as limits.max_address_connections allows"
                ended.append((one, why))
            elif number > most:
                ended.append((one, "there are as many as limits.max_connections allows"))
        return ended


def _connections(ports: frozenset[int]) -> list[Found]:
    """Those of this process to one of the ports."""
    found: list[Found] = []
    for name in os.listdir(FILES):
        descriptor = int(name)
        try:
            if not os.readlink(f"{FILES}/{name}").startswith("socket:"):
                continue
            borrowed = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)
        except OSError:
            continue
        try:
            if borrowed.getsockname()[1] in ports:
                found.append(Found(descriptor, addresses.peer(borrowed.getpeername())))
        except (OSError, IndexError, TypeError):
            pass  # it is no connection, or not of the internet
        finally:
            borrowed.detach()
    return found


def _shut_down(one: Found) -> None:
    """gRPC has the connection, and closes it."""
    try:
        copy = os.dup(one.descriptor)
    except OSError:
        return
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, copy) as connection:
        try:
            if addresses.peer(connection.getpeername()) == one.peer:  # or it is another's by now
                connection.shutdown(socket.SHUT_RDWR)
        except (OSError, IndexError, TypeError):
            pass
