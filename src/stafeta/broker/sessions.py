"""One connection a client id, for the doors that ask for it."""

from stafeta.errors import AlreadyConnected


class Sessions:
    def __init__(self) -> None:
        self._held: dict[str, object] = {}

    def open(self, client: str, connection: object) -> None:
        """Take the client id for this connection."""
        if self._held.setdefault(client, connection) is not connection:
            raise AlreadyConnected(f"Client {client!r} is already connected.")

    def close(self, client: str, connection: object) -> None:
        """Give it up, if it is this connection that has it."""
        if self._held.get(client) is connection:
            del self._held[client]

    def __len__(self) -> int:
        return len(self._held)
