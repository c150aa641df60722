"""Getting exactly once: what has been acknowledged is on disk here before the broker hears of it.

A reader's position is the id up to which everything is acknowledged; it goes with each GET. Messages acknowledged
out of turn are remembered one by one until the position has reached them. The broker's mark of the log is remembered
with it: ids of another log are other messages'.
"""

from collections.abc import Iterable, Sequence

from stafeta.clients.zeromq.client_state import ClientState
from stafeta.clients.zeromq.replies import Message


class Reader:
    """How far one subscription has been read."""

    def __init__(self, state: ClientState, subscription: str) -> None:
        self._state = state
        self._subscription = subscription
        self.position, self._ahead, self.mark = state.acknowledged(subscription)
        self._given: Sequence[int] = ()
        self.unsent = False
        """Whether the broker has yet to hear of the position."""

    def given(self, messages: list[Message], mark: str) -> list[Message]:
        """Takes in what the broker gave after the position; returns what of it is not acknowledged yet."""
        self.mark = mark
        self._given = [message.id for message in messages]
        if not self._ahead:
            return messages
        self._acknowledge(())
        return [
            message for message in messages if message.id > self.position and message.id not in self._ahead
        ]

    def acknowledge(self, ids: Iterable[int]) -> list[int]:
        """Acknowledges messages. The ids that are ahead of the position even so."""
        new = {id_ for id_ in ids if id_ > self.position}
        self._acknowledge(new)
        return sorted(new & self._ahead)

    def acknowledge_up_to(self, last: int) -> None:
        """Acknowledges all messages up to this one."""
        if last > self.position:
            self._move(last, ())

    def has_given(self, id_: int) -> bool:
        return id_ in self._given

    def _acknowledge(self, new: Iterable[int]) -> None:
        self._ahead.update(new)
        position = self.position
        for id_ in self._given:
            if id_ > position:
                if id_ not in self._ahead:
                    break
                position = id_
        if position > self.position or new:
            self._move(position, new)

    def _move(self, position: int, new: Iterable[int]) -> None:
        self.unsent = self.unsent or position > self.position
        self._ahead = {id_ for id_ in self._ahead if id_ > position}
        self._state.acknowledge(
            self._subscription, position, self.mark, [id_ for id_ in new if id_ > position]
        )
        self.position = position
