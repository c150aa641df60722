"""What is to be measured, and what each door can do.

1. Every message begins with the time at which it was to be sent and with a number of its own (`message_header.py`):
   that is the least that a message has.
2. Where messages go as fast as possible, they go in batches of a size that suits the door. With a rate, each goes
   when it is due, unless a batch is asked for.
3. UDP has no way to slow a publisher down: through the devices door messages always have a rate.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stafeta import credentials
from stafeta.addresses import read

if TYPE_CHECKING:
    from stafeta.clients.tls import Tls

_PORTION: Final = 4 << 20  # bytes that a batch has at most, where nobody says how many messages it has


class Door(NamedTuple):
    """What a door can carry, and what it promises."""

    scheme: str  # of its addresses
    least: int  # bytes of a message
    most: int
    batch: int  # messages that go together where they go as fast as possible
    rate: float | None  # messages a second, where nobody says how many
    acknowledges: bool
    promise: str


_ON_DISK: Final = "a message is on disk before it is acknowledged and before it is delivered"
_NO_RECEIPT: Final = "a message is on disk before it is delivered; the protocol has no acknowledgement"
# The largest messages: what a broker takes unless configured otherwise, what surely fits a frame, a datagram.
DOORS: Final = {
    "flight": Door("grpc", 16, 8 << 20, 10_000, None, True, _ON_DISK),
    "zeromq": Door("tcp", 32, 8 << 20, 5_000, None, True, _ON_DISK),
    "frames": Door("tcp", 32, 65_000, 1_000, None, False, _NO_RECEIPT),
    "devices": Door("tcp", 32, 1_500, 1, 10_000, False, _NO_RECEIPT),
}


class Plan(NamedTuple):
    """One run."""

    door: str
    address: str  # HOST:PORT
    topic: str
    size: int  # bytes of a message
    batch: int
    rate: float | None  # messages a second, of all publishers together
    messages: int | None  # of all publishers together; None: for so many seconds
    seconds: float | None
    publishers: int
    subscribers: int
    tls: bool = False

    @property
    def place(self) -> tuple[str, int]:
        return read(self.address)

    def certificates(self) -> "Tls | None":
        """Those of the environment, where the door takes TLS."""
        from stafeta.clients.tls import Tls

        return credentials.tls() or Tls() if self.tls else None

    def share(self, publisher: int) -> int | None:
        """How many messages one of the publishers has to publish."""
        if self.messages is None:
            return None
        return self.messages // self.publishers + (publisher < self.messages % self.publishers)

    def to_plain(self) -> dict[str, Any]:
        return self._asdict()


def batch_of(door: Door, size: int, rate: float | None) -> int:
    """How many messages go together where nobody says it."""
    return 1 if rate else max(min(door.batch, _PORTION // size), 1)
