"""One run, from the broker's start to the last message."""

import time
from collections.abc import Callable
from typing import Final

from stafeta.bench.broker import OwnBroker, reach
from stafeta.bench.delivery_stats import SLOT
from stafeta.bench.plan import Plan
from stafeta.bench.results import Report, report
from stafeta.bench.worker_pool import WorkerPool

_PATIENCE: Final = 40.0  # seconds in which nobody gets ready: longer than what clients wait for an answer
_LEAD: Final = 50_000_000  # nanoseconds, at least, from the order to start until the start


def measure(plan: Plan, progress: Callable[[int], None]) -> Report:
    """Runs a plan; where it has no address, on a broker of its own.

    `progress` is called with how many are published, several times a second; where it raises, the run ends. However it
    ends, no process is left, nor a folder, nor a subscription. Only a signal handler must not raise: it could come in
    between a process's start and the note of it.
    """
    if plan.address:
        reach(*plan.place)
        return _run(plan, None, progress)
    with OwnBroker(plan.door, lambda: progress(0)) as broker:
        return _run(plan._replace(address=broker.address), broker, progress)


def _run(plan: Plan, broker: OwnBroker | None, progress: Callable[[int], None]) -> Report:
    def watch() -> None:
        if broker is not None:
            broker.check()
        progress(sum(worker.count for worker in pool.publishers))

    with WorkerPool(plan) as pool:
        pool.wait(lambda: all(worker.ready for worker in pool.subscribers), watch, _PATIENCE)
        for worker in pool.publishers:
            worker.tell(subscribed=True)
        pool.wait(lambda: all(worker.ready for worker in pool.publishers), watch, _PATIENCE)
        # Where the deliveries begin to be counted anew, so that the first count is of as long a time as the others.
        start = ((time.monotonic_ns() + _LEAD) // SLOT + 1) * SLOT
        for worker in pool.publishers:
            worker.tell(start=start)
        pool.wait(lambda: all(worker.done for worker in pool.publishers), watch)
        published = [worker.done for worker in pool.publishers if worker.done]
        for worker in pool.subscribers:
            worker.tell(published=[one["published"] for one in published])
        pool.wait(lambda: all(worker.done for worker in pool.subscribers), watch)
        delivered = [worker.done for worker in pool.subscribers if worker.done]
    return report(plan, broker is not None, start, published, delivered)
