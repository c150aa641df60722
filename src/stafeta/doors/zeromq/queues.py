"""What waits on a connection of the door: requests to be taken, large replies to be sent."""

from collections import deque

import zmq

REQUEST_COST = 64  # bytes that a request takes in memory beside its own


class Waiting:
    """Requests of a connection that wait for the reply to an earlier one."""

    __slots__ = ("_requests", "busy", "counted", "size", "warned", "working")

    def __init__(self) -> None:
        self._requests: deque[bytes] = deque()
        self.size = 0
        self.busy = False  # that request takes time
        self.working = False  # because it is large: it does not wait for anybody
        self.counted = 0  # bytes of those that came behind a large one
        self.warned = False  # the log says that more were dropped

    @property
    def ready(self) -> bool:
        """True where there is one to be taken."""
        return bool(self._requests) and not self.busy

    def add(self, request: bytes) -> None:
        self._requests.append(request)
        self.size += len(request) + REQUEST_COST

    def pop(self) -> bytes:
        request = self._requests.popleft()
        self.size -= len(request) + REQUEST_COST
        return request


class Unsent:
    """Large replies to a connection that ZeroMQ has taken and not sent yet."""

    __slots__ = ("_replies", "size")

    def __init__(self) -> None:
        self._replies: deque[tuple[zmq.MessageTracker, int]] = deque()
        self.size = 0

    def add(self, tracker: zmq.MessageTracker, size: int) -> None:
        self._replies.append((tracker, size))
        self.size += size

    def settled(self) -> "Unsent":
        """Itself, without those that have been sent by now."""
        while self._replies and self._replies[0][0].done:
            self.size -= self._replies.popleft()[1]
        return self
