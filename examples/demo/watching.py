"""Looks at broker and lake while they work, and tells the board."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import stafeta
from examples.demo.board import Board, Message, Shelf
from stafeta.config import load
from stafeta.errors import StafetaError
from stafeta.pipeline import Lake

_POLL_INTERVAL: Final = 1.0
HOLDER: Final = "demo"
_COLUMNS: Final = list(Message._fields)

log = logging.getLogger(__name__)


class Watcher:
    """Three threads: what is published, what the jobs report, and how much is where."""

    def __init__(self, address: str, config: Path, board: Board) -> None:
        self._board = board
        self._broker = stafeta.connect(address)
        self._lake = Lake(load(str(config)).lake)
        self._closed = threading.Event()
        looks: tuple[Callable[[], None], ...] = (self._follow, self._listen, self._measure)
        self._threads = [threading.Thread(target=look, daemon=True) for look in looks]

    def hold(self) -> None:
        """The broker holds everything for the jobs, which come later, and for whoever looks at it in the end."""
        self._broker.hold("#", name=HOLDER)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._broker.close(0.0)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5.0)

    def subscribers(self) -> set[str]:
        return {one.client for one in self._broker.subscriptions()}

    def stored(self) -> dict[str, int]:
        """How many messages each topic has had."""
        return {topic.topic: topic.next - 1 for topic in self._broker.topics("#")}

    def _follow(self) -> None:
        self._subscribe("#", self._board.take)

    def _listen(self) -> None:
        self._subscribe("$sys/pipeline/+", self._board.hear)

    def _subscribe(self, filter_: str, tell: Callable[[list[Message]], None]) -> None:
        try:
            with self._broker.subscribe(filter_, columns=_COLUMNS) as subscription:
                for batch in subscription:
                    columns = [batch.data.column(name).to_pylist() for name in _COLUMNS]
                    tell([Message(*row) for row in zip(*columns, strict=True)])
        except StafetaError as error:  # the connection was closed, or the broker is gone
            log.debug("%s: %s", filter_, error)

    def _measure(self) -> None:
        while not self._closed.wait(_POLL_INTERVAL):
            try:
                shelf = self.shelf()
            except StafetaError as error:
                log.debug("%s", error)
                continue
            with self._board.lock:
                self._board.shelf = shelf

    def shelf(self) -> Shelf:
        """What is in the lake now, and in the log after it."""
        log_ends = {topic.topic: topic.next for topic in self._broker.topics("#")}
        if not self._lake.has("messages"):
            return Shelf(log=sum(end - 1 for end in log_ends.values()))
        archived = {topic: runs[-1][1] for topic, runs in self._lake.archived().items()}
        snapshot = self._lake.table("messages").current_snapshot()
        summary = snapshot.summary if snapshot else None
        rows, files, size = (
            int((summary and summary[f"total-{name}"]) or 0)
            for name in ("records", "data-files", "files-size")
        )
        waiting = sum(max(0, end - archived.get(topic, 1)) for topic, end in log_ends.items())
        return Shelf(rows, files, size, waiting)
