"""One connection a client id, for the doors that ask for it."""

from collections.abc import Iterator

from stafeta.errors import AlreadyConnected


class Sessions:
    def __init__(self) -> None:
        self._held: dict[str, object] = {}

    def open(self, client: str, connection: object) -> None:
        """Take the client id for this connection."""
        if self._held.setdefault(client, connection) is not connection:
            raise AlreadyConnected(f"Client {client!r} is already connected.")

    def holder(self, client: str) -> object:
        """The connection that has the client id, if there is one."""
        return self._held.get(client)

    def close(self, client: str, connection: object) -> bool:
        """Give it up; false where it is not this connection that has it."""
        if self._held.get(client) is not connection:
            return False
        del self._held[client]
        return True

    def __contains__(self, client: str) -> bool:
        return client in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
