"""The broker that is measured: one of our own, in a process of its own, or one that runs already."""

import socket
from collections.abc import Callable
from typing import Final

from stafeta.addresses import Address
from stafeta.clients.closing import Closing
from stafeta.errors import NoReply
from stafeta.testing.broker import Broker, BrokerFailed

_REACH: Final = 5.0  # seconds to answer


class OwnBroker(Closing):
    """A broker with one door open, on a temporary folder. It and its folder are gone afterwards."""

    def __init__(self, door: str, meanwhile: Callable[[], None]) -> None:
        """`meanwhile` is called while it starts; where that raises, it is ended again."""
        self._broker = Broker(None, "--durability", "fsync", "--log-level", "warning", doors=(door,))
        try:
            self._broker.start(meanwhile)
        except BrokerFailed as error:
            self.close()
            raise NoReply(str(error)) from None
        except BaseException:
            self.close()
            raise
        self.address = str(Address(*self._broker.door(door)))

    def check(self) -> None:
        """Raises `NoReply` where it has ended."""
        if not self._broker.running:
            raise NoReply(f"The broker has ended:\n{self._broker.stderr}".rstrip())

    def close(self) -> None:
        self._broker.close()


def reach(host: str, port: int) -> None:
    """Raises `NoReply` where nobody listens."""
    try:
        socket.create_connection((host, port), _REACH).close()
    except (OSError, UnicodeError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise NoReply(
            f"No broker answers at {Address(host, port)}: {why}. Does it run, with this door open?"
        ) from None
