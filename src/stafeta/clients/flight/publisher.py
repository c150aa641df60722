"""What `Connection.publish` sends through: a producer of every topic, for as long as the connection lives."""

from dataclasses import dataclass
from uuid import uuid4

from stafeta.clients.flight.batching import PublishRequest
from stafeta.clients.flight.channel import Channel
from stafeta.clients.flight.data import Data, batches, by_topic
from stafeta.clients.flight.sender import Sender
from stafeta.clients.flight.signals import Waiting
from stafeta.errors import InvalidMessage


@dataclass(frozen=True, slots=True)
class Published:
    """Where messages were stored: the first and the last offset, and how many they are. Others' messages may be between
    them. The offsets are None where there are several topics, or no message, or they were sent again so late that the
    broker does not remember."""

    first: int | None
    last: int | None
    count: int


class Publisher:
    def __init__(self, channel: Channel) -> None:
        self._sender = Sender(channel, {"producer": f"{uuid4().hex}"})
        self._signal = self._sender.signal

    def publishing(self, topic: str | None, data: Data, kind: str | None) -> Waiting[Published]:
        """Hand over what there is, and wait until it is stored."""
        found = batches(data, kind)
        if topic is not None and not isinstance(topic, str):
            raise InvalidMessage(f"A topic is text, not {topic!r}.")
        parts = (
            [(topic, one) for one in found]
            if topic is not None
            else [p for one in found for p in by_topic(one)]
        )
        request = PublishRequest()
        with self._signal.lock:
            for name, batch in parts:
                self._sender.add(request, name, batch)
        return self._waiting(request, len({name for name, _ in parts}) == 1)

    def _waiting(self, request: PublishRequest, one_topic: bool) -> Waiting[Published]:
        yield from self._sender.waiting(lambda: not request.unanswered, request)
        if not one_topic:
            return Published(None, None, request.acknowledged)
        return Published(request.first, request.last, request.acknowledged)

    def close(self, timeout: float | None = None) -> None:
        """Wait for what nobody waits for any more, not longer than so many seconds, and end."""
        try:
            self._signal.wait(self._finishing(timeout))
        finally:
            self._end()

    def _finishing(self, timeout: float | None) -> Waiting[None]:
        return self._sender.waiting(lambda: not self._sender.queue, PublishRequest(), timeout)

    def _end(self) -> None:
        with self._signal.lock:
            self._sender.close()
