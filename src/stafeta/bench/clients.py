"""The two ends of a door, as a run needs them; each door has a module with both."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.histogram import Histogram
from stafeta.bench.plan import Plan
from stafeta.bench.schedule import Burst


class Publisher(ABC):
    """Publishes bursts on the plan's topic. When it is made, it is connected; subscribers are there already."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan = plan
        self.number = number
        self.acknowledgements = Histogram()  # how long after its time a message was acknowledged, if it was

    @abstractmethod
    def publish(self, burst: Burst) -> None:
        """Hands messages over. May wait where too many are on their way."""

    def finish(self) -> None:  # noqa: B027 - where nothing is on its way after `publish`
        """Waits until everything is acknowledged."""

    def note(self, burst: Burst, now: int) -> None:
        """A burst is acknowledged."""
        for time, count in burst.groups:
            self.acknowledgements.add(now - time, count)


class Subscriber(ABC):
    """Gets what is published on the plan's topic. When it is made, it is subscribed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.leaving = threading.Event()

    @abstractmethod
    def receive(self, stats: DeliveryStats) -> None:
        """Takes what comes, and acknowledges it where the door has that, until it is to leave."""

    def leave(self) -> None:
        """Makes `receive` return soon, in another thread."""
        self.leaving.set()

    def close(self) -> None:  # noqa: B027 - where `leave` does it
        """Ends the subscription and the connection."""


class Module(Protocol):
    Publisher: Callable[[Plan, int], Publisher]
    Subscriber: Callable[[Plan], Subscriber]


def module(plan: Plan) -> Module:
    """That of the plan's door."""
    return cast("Module", import_module(f"stafeta.bench.{plan.door}"))
