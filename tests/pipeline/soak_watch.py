"""Those who watch the output while its makers are killed."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import stafeta
from stafeta.clients.flight.subscription import Received
from stafeta.errors import NoReply, NoSuchTopic

_INTERVAL = 0.25
_TIMEOUT = 120.0


class Watch:
    """Follows a topic with a durable subscription, and beside it looks again and again at what there is.

    What a subscription gets may be cut anywhere; a look is one read, and ends where the topic ends at that instant.
    """

    def __init__(self, address: str, topic: str) -> None:
        self.offsets: list[int] = []
        """Of what the subscription got, in its order."""
        self.looks: list[int] = []
        """How many messages there were, each time that it was another number than before."""
        self.times_looked = 0
        self._topic = topic
        self._broker = stafeta.connect(address, timeout=_TIMEOUT)
        # Subscribed before anybody writes, so that it misses nothing.
        self._subscription = self._broker.subscribe(topic, name="watch", columns=["offset"])
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._errors: list[Exception] = []
        self._follower = threading.Thread(target=self._noting, args=(self._follow,))
        self._looker = threading.Thread(target=self._noting, args=(self._look,))

    @property
    def count(self) -> int:
        return len(self.offsets)

    def wait_for_more(self, known: int, patience: float) -> bool:
        """Waits until more messages are visible than were known, and returns at once then."""
        with self._news:
            return self._news.wait_for(lambda: bool(self._errors) or self.count > known, patience)

    def check(self) -> None:
        """Raise what has ended a watcher."""
        for error in self._errors:
            raise error

    def visible(self) -> int:
        """How many messages there are now."""
        return sum(topic.next - 1 for topic in self._broker.topics(self._topic))

    def __enter__(self) -> Self:
        self._follower.start()
        self._looker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        patience = None if error is None else 0.0  # the broker may be gone
        self._subscription.close(patience)
        self._broker.close(patience)
        self._follower.join()
        self._looker.join()

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            if not self._ended.is_set():
                with self._news:
                    self._errors.append(error)
                    self._news.notify_all()

    def _follow(self) -> None:
        for batch in self._subscription:
            with self._news:
                self.offsets += _offsets(batch)
                self._news.notify_all()
            batch.ack()

    def _look(self) -> None:
        seen = 0
        while not self._ended.is_set():
            with self._news:
                self._news.wait(_INTERVAL)  # or until the subscription gets the first of something
            try:
                found = self._broker.read(self._topic, start=seen + 1, columns=["offset"])
            except (NoSuchTopic, NoReply):
                continue
            self.times_looked += 1
            if found.num_rows:
                seen = found["offset"][-1].as_py()
                self.looks.append(seen)


def _offsets(batch: Received) -> list[int]:
    offsets: list[Any] = batch.data.column("offset").to_pylist()
    return offsets
