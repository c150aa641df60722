"""What `Connection.publish` sends through: a producer of every topic, for as long as the connection lives."""

from dataclasses import dataclass
from uuid import uuid4

from stafeta.clients.flight.bell import Waiting
from stafeta.clients.flight.data import Data, batches, by_topic
from stafeta.clients.flight.link import Link
from stafeta.clients.flight.orders import Order
from stafeta.clients.flight.shipper import Shipper
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
    def __init__(self, link: Link) -> None:
        self._shipper = Shipper(link, {"producer": f"{uuid4().hex}"})
        self._bell = self._shipper.bell

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
        order = Order()
        with self._bell.lock:
            for name, batch in parts:
                self._shipper.add(order, name, batch)
        return self._waiting(order, len({name for name, _ in parts}) == 1)

    def _waiting(self, order: Order, one_topic: bool) -> Waiting[Published]:
        yield from self._shipper.waiting(lambda: not order.parcels, order)
        if not one_topic:
            return Published(None, None, order.acknowledged)
        return Published(order.first, order.last, order.acknowledged)

    def close(self, timeout: float | None = None) -> None:
        """Wait for what nobody waits for any more, not longer than so many seconds, and end."""
        try:
            self._bell.wait(self._finishing(timeout))
        finally:
            self._end()

    def _finishing(self, timeout: float | None) -> Waiting[None]:
        return self._shipper.waiting(lambda: not self._shipper.parcels, Order(), timeout)

    def _end(self) -> None:
        with self._bell.lock:
            self._shipper.close()
