"""People who subscribe through the devices door, by TCP."""

import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple

from examples.demo.fleet import CYCLE
from stafeta.clients.devices import Subscriber
from stafeta.errors import NoReply

_POLL_INTERVAL: Final = 0.2
_FAREWELL: Final = 2.0


class Away(NamedTuple):
    """When somebody is not there, in seconds of a cycle."""

    begin: float
    end: float


class Listener:
    """Somebody who gets what is published on a filter; with `away`, also what was published meanwhile."""

    def __init__(self, name: str, filter_: str, host: str, port: int, away: Away | None = None) -> None:
        self.name = name
        self.filter = filter_
        self.got: Counter[str] = Counter()
        self.is_there = False
        self.missed = 0
        """How many messages waited when it came back last."""
        self._place = (host, port)
        self._away = away
        self._back = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def come_back(self) -> None:
        """Is there from now on."""
        self._back.set()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _wanted(self, began: float) -> bool:
        at = (time.monotonic() - began) % CYCLE
        return self._away is None or self._back.is_set() or not self._away.begin <= at < self._away.end

    def _run(self) -> None:
        began = time.monotonic()
        while not self._closed.is_set():
            if self._wanted(began):
                with suppress(NoReply):  # the broker is away: again in a moment
                    self._listen(began)
            self.is_there = False
            self._closed.wait(_POLL_INTERVAL)

    def _listen(self, began: float) -> None:
        with Subscriber(self.name, *self._place) as subscriber:
            subscriber.subscribe(self.filter, sf=self._away is not None)
            self.is_there = True
            first = True
            while not self._closed.is_set() and self._wanted(began):
                deliveries = subscriber.receive(_POLL_INTERVAL)
                if deliveries is None:
                    return
                self.got.update(delivery.topic for delivery in deliveries)
                if first and deliveries and self._away is not None:
                    self.missed, first = len(deliveries), False
            subscriber.finish()
            # What this machine has counts as delivered: it is read to the end before the connection is closed.
            while deliveries := subscriber.receive(_FAREWELL):
                self.got.update(delivery.topic for delivery in deliveries)
