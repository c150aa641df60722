"""How much memory processes have while something goes on, sampled again and again."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import psutil

from stafeta.clients.closing import Closing

_PAUSE = 0.05  # seconds between two samples

Processes = Callable[[], Iterable[psutil.Process]]


def one(pid: int) -> Processes:
    """Always this process."""
    process = psutil.Process(pid)
    return lambda: [process]


def below(pid: int) -> Processes:
    """The processes that this one has started, and those that they have."""
    process = psutil.Process(pid)

    def children() -> Iterable[psutil.Process]:
        try:
            return process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []  # it has ended

    return children


class Watch(Closing):
    """The most that was resident, in MB, by label; of several processes under a label, that of the largest one."""

    def __init__(self, watched: Mapping[str, Processes]) -> None:
        self.before = {label: _largest(processes()) for label, processes in watched.items()}
        self.highest = dict(self.before)
        self._watched = watched
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            for label, processes in self._watched.items():
                self.highest[label] = max(self.highest[label], _largest(processes()))
            if self._over.wait(_PAUSE):
                return


def _largest(processes: Iterable[psutil.Process]) -> float:
    largest = 0
    for process in processes:
        try:
            largest = max(largest, process.memory_info().rss)
        except psutil.NoSuchProcess:
            continue  # it has ended meanwhile
    return largest / 1e6
