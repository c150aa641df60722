"""A publisher or subscriber of a run: a process of its own, since Python runs one thread at a time.

1. It reads what to do and prints what it has done in JSON, an object a line, on standard input and output.
2. A subscriber says that it is ready, reads how much was published, and says what it has got, once that is everything
   or nothing more comes. A publisher reads that the subscribers are ready, says that it is, too, reads when to
   start, and says what it has done.
3. It ends when its standard input does, so that none is left when the one who has started it is killed.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from stafeta.bench import clients
from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.plan import DOORS, Plan
from stafeta.bench.schedule import bursts
from stafeta.errors import StafetaError

_REPORT: Final = 0.1  # seconds between two lines that say how far it has come
_POLL_INTERVAL: Final = 0.05  # seconds between two looks at whether all has come
_PATIENCE: Final = 5.0  # seconds in which nothing comes: what has not come is lost
_EXIT_TIMEOUT: Final = 20.0  # seconds to end a subscription: longer than clients wait for an answer
_GIVING_UP: Final = 5.0  # seconds for the same where the subscriber has failed: the broker may be gone

_leaving = threading.Event()


class Orders:
    """What the one who has started this process says."""

    def __init__(self) -> None:
        # Not a SimpleQueue: after a signal its `get` may wait for ever, whatever its timeout is.
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, timeout: float | None = None) -> dict[str, Any] | None:
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def _read(self) -> None:
        # Not through Python's buffer: its lock would still be held when the process ends.
        begun = b""
        while data := os.read(0, 1 << 16):
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                self._queue.put(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GIVING_UP)  # a client may be waiting for a broker that is gone, too
        os._exit(1)


class Receiving:
    """A subscriber at work in a thread, so that orders and signals are heard while it waits for messages."""

    def __init__(self, subscriber: clients.Subscriber) -> None:
        self.stats = DeliveryStats(time.monotonic_ns())
        self._subscriber = subscriber
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Ends this process where it has failed, and said so, or where it reads that it is to leave."""
        if self._failed or _leaving.is_set():
            sys.exit(1)

    def stop(self) -> None:
        self._subscriber.leave()
        self._thread.join(_GIVING_UP if self._failed else _EXIT_TIMEOUT)

    def _run(self) -> None:
        try:
            self._subscriber.receive(self.stats)
        except StafetaError as error:
            fail(error)  # before the end of the subscription makes others fail
            self._failed = True
        except BaseException:
            self._failed = True
            raise
        finally:
            self._subscriber.close()


def publish(plan: Plan, number: int, orders: Orders) -> dict[str, Any]:
    module = clients.module(plan)  # takes a while; the subscribers get ready meanwhile
    orders.wait()
    publisher = module.Publisher(plan, number)
    say(ready=True)
    order = orders.wait()
    assert order is not None
    published, reported = 0, time.monotonic()
    for burst in bursts(plan, number, order["start"]):
        publisher.publish(burst)
        published += burst.total
        if time.monotonic() - reported >= _REPORT:
            reported = time.monotonic()
            say(count=published)
    publisher.finish()
    return {
        "published": published,
        "end": time.monotonic_ns(),
        "latency": publisher.acknowledgements.to_plain() if DOORS[plan.door].acknowledges else None,
    }


def subscribe(plan: Plan, orders: Orders) -> dict[str, Any]:
    module = clients.module(plan)
    # So that the subscription is ended. Nothing is raised: it could be lost, wherever it comes in between.
    signal.signal(signal.SIGTERM, lambda *_: _leaving.set())
    receiving = Receiving(module.Subscriber(plan))
    stats = receiving.stats
    try:
        say(ready=True)
        while (order := orders.wait(_POLL_INTERVAL)) is None:
            receiving.check()
        published, since = order["published"], time.monotonic_ns()
        while stats.lost(published) > 0 and _idle(stats, since) < _PATIENCE:
            time.sleep(_POLL_INTERVAL)
            receiving.check()
    finally:
        receiving.stop()
    return stats.to_plain(published)


def _idle(stats: DeliveryStats, since: int) -> float:
    return (time.monotonic_ns() - max(stats.last, since)) / 1e9


def say(**what: object) -> None:
    line = memoryview(json.dumps(what).encode() + b"\n")
    with suppress(BrokenPipeError):  # nobody wants to know any more
        while line:
            line = line[os.write(1, line) :]


def fail(error: StafetaError) -> None:
    say(failed=[type(error).__name__, str(error)])


def main() -> int:
    logging.getLogger("stafeta").addHandler(logging.NullHandler())  # what matters of it is in the error
    orders = Orders()
    job = orders.wait()
    assert job is not None
    plan = Plan(**job["plan"])
    try:
        if job["role"] == "publisher":
            say(done=publish(plan, job["number"], orders))
        else:
            say(done=subscribe(plan, orders))
    except StafetaError as error:
        fail(error)
        return 1
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except SystemExit:
        code = 1
    os._exit(code)  # threads of libraries may still be at work; there is nothing more to do
