"""Carries reports to the broker, and orders from it.

1. Nothing waits for it. A broker that is away costs reports, and nothing else.
2. Of several reports of one job in one state the last one goes; of those that could not be sent, a job's last.
3. What nothing is heard of is taken for dead: where a job says nothing new, its last report goes again.
4. An order that was given before the runner came is for others.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stafeta.errors import StafetaError
from stafeta.pipeline.runner.reports import CONTROL, Report

if TYPE_CHECKING:
    from stafeta.clients.flight.connection import Connection

log = logging.getLogger("stafeta.pipeline")

_POLL_INTERVAL: Final = 0.5  # seconds between looks at the orders
_HEARTBEAT: Final = 3.0  # … between two reports of a job that has not ended
_PATIENCE: Final = 5.0
_FAREWELL: Final = 3.0


class StatusReporter:
    """A thread with a connection of its own. `obey` is called there, with the names of jobs to stop; none means all."""

    def __init__(self, address: str, obey: Callable[[list[str]], None]) -> None:
        self._address = address
        self._obey = obey
        self._broker: Connection | None = None
        self._next_order: int | None = None
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, str], Report] = {}
        self._sent: dict[str, tuple[float, Report]] = {}  # the last one of each job, and when
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="stafeta-reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, report: Report) -> None:
        with self._changed:
            self._waiting.pop((report.job, report.state), None)  # so that it comes last
            self._waiting[report.job, report.state] = report
            self._changed.notify_all()

    def close(self) -> None:
        """Sends what waits, if that is quick, and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_FAREWELL)

    def _run(self) -> None:
        looked = 0.0
        while True:
            with self._changed:
                if not self._waiting and not self._closed:
                    self._changed.wait(_POLL_INTERVAL)
                reports, self._waiting = list(self._waiting.values()), {}
                closed = self._closed
            try:
                self._deliver(reports or self._due())
                if not closed and time.monotonic() >= looked + _POLL_INTERVAL:
                    looked = time.monotonic()
                    self._follow_orders()
            except StafetaError as error:
                log.debug("The broker does not hear of the jobs: %s", error)
                self._hang_up()
                with self._changed:
                    latest = {report.job: report for report in (*reports, *self._waiting.values())}
                    self._waiting = {(report.job, report.state): report for report in latest.values()}
                    if not closed:
                        self._changed.wait(_POLL_INTERVAL)
            if closed:
                self._hang_up()
                return

    def _deliver(self, reports: list[Report]) -> None:
        for report in reports:
            self._connected().publish(report.topic, [report.to_json()], kind="json")
            self._sent[report.job] = (time.monotonic(), report)

    def _due(self) -> list[Report]:
        """What goes again."""
        before = time.monotonic() - _HEARTBEAT
        return [report for at, report in self._sent.values() if at < before and not report.ended]

    def _follow_orders(self) -> None:
        if self._next_order is None:
            self._next_order = next((one.next for one in self._connected().topics(CONTROL)), 1)
        for names in self._orders():
            self._obey(names)

    def _orders(self) -> Iterator[list[str]]:
        broker, seen = self._connected(), self._next_order or 1
        topic = next(iter(broker.topics(CONTROL)), None)
        if topic is None or topic.next == seen:
            return
        # Where it has gone back the broker's folder is another one.
        self._next_order = topic.next
        start = max(seen, topic.first) if seen < topic.next else topic.next
        if start < topic.next:
            for payload in broker.read(CONTROL, start=start, columns=["payload"]).column("payload"):
                names = order_in(payload.as_py())
                if names is not None:
                    yield names

    def _connected(self) -> "Connection":
        from stafeta.clients.flight.connection import Connection

        if self._broker is None:
            self._broker = Connection(self._address, timeout=_PATIENCE)
        return self._broker

    def _hang_up(self) -> None:
        if self._broker is not None:
            with suppress(StafetaError):
                self._broker.close(0.0)
            self._broker = None


def order(names: list[str]) -> str:
    """An order to stop jobs; without names, all."""
    return json.dumps({"stop": names})


def order_in(payload: bytes) -> list[str] | None:
    """The names in an order to stop; None where it is none."""
    try:
        names = json.loads(payload)["stop"]
    except (ValueError, TypeError, KeyError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
