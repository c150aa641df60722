"""What the conformance suite asks of every dialect of every door.

1. A stranger is one client of a broker, written as people write them who never heard of Stafeta: sockets, the standard
   library, and what the protocol's page says. It uses none of the project's codecs, so that a mistake in one shows.
2. A dialect connects strangers and declares what its door can do; a test of a rule goes through all that can do it.
3. When `subscribe`, `unsubscribe` or `publish` returns, it has happened (a datagram excepted, which nobody answers).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from stafeta.clients.closing import Closing
from tests.brokers import Doors


class Received(NamedTuple):
    """A message as a stranger gets it: the topic, where the dialect names it, and the text that it reads."""

    topic: str | None
    text: str
    raw: object = None
    """The value as it is on the wire, in the dialect's own form."""


class Stranger(Closing, ABC):
    """One client. Another one of the same name goes on where it was, if the door remembers clients."""

    @abstractmethod
    def subscribe(self, topic: str) -> None: ...

    @abstractmethod
    def unsubscribe(self, topic: str) -> None: ...

    def resume(self, topic: str) -> None:
        """Goes on with a subscription that was made before under the same name."""
        raise NotImplementedError("this door remembers no subscriptions")

    @abstractmethod
    def publish(self, topic: str, text: str) -> None: ...

    @abstractmethod
    def receive(self, count: int) -> list[Received]:
        """The next messages, in order: at least so many, waiting for them."""

    @abstractmethod
    def close(self) -> None: ...

    def texts(self, count: int) -> list[str]:
        return [message.text for message in self.receive(count)]


def _with_all_below(topic: str) -> str:
    return f"{topic}/#"


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    door: str
    connect: Callable[[Doors, str], Stranger]
    durable: bool = False
    """What is published while a subscriber is away waits for it."""
    keeps_last: bool = False
    """What is published stays, and who subscribes later is given the last of it first."""
    pushes: bool = False
    """Messages come by themselves, one for each however many of a client's subscriptions match it."""
    names_topics: bool = True
    """A message of a wider subscription says which topic it is from."""
    makes_topics: bool = False
    """Publishing needs no topic that is there already."""
    below: Callable[[str], str] = _with_all_below
    """What to subscribe to for a topic and everything below it."""
    meaning: Callable[[str], str] = str
    """The broker's filter that a subscription to this stands for."""

    def __str__(self) -> str:
        return self.name


Connect = Callable[..., Stranger]  # a dialect, and if need be a broker and a name


def new_name() -> str:
    """A name that no other client has. Devices' are of at most ten characters."""
    return f"c{next(_numbers)}"


_numbers = count(1)
