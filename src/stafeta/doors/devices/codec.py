"""What subscribers send and get, in the two dialects of docs/protocols/devices.md. No sockets.

1. The first two bytes of a connection settle its dialect: `id` is text, all else is struct.
2. Bytes may be cut or run together anywhere: the same bytes make the same commands, and the same deliveries.
3. A command that is wrong but has an end is refused and skipped; where the end is not known, nothing more is read.
"""

from stafeta.doors.devices import struct_dialect, text_dialect
from stafeta.doors.devices.commands import Command, Identify, Refused, Subscribe, Unsubscribe
from stafeta.doors.devices.deliveries import ReceivedMessage
from stafeta.doors.devices.text_dialect import Deliveries, identify, subscribe, unsubscribe
from stafeta.errors import InvalidCommand

__all__ = [
    "STRUCT_OVERHEAD",
    "TEXT_OVERHEAD",
    "Command",
    "Commands",
    "Deliveries",
    "Identify",
    "ReceivedMessage",
    "Refused",
    "Subscribe",
    "Unsubscribe",
    "identify",
    "struct_frames",
    "subscribe",
    "text_frames",
    "text_stream",
    "unsubscribe",
]

TEXT_OVERHEAD = text_dialect.OVERHEAD
STRUCT_OVERHEAD = struct_dialect.OVERHEAD
text_frames = text_dialect.frames
text_stream = text_dialect.stream
struct_frames = struct_dialect.frames


class Commands:
    """Reads what one subscriber sends."""

    def __init__(self) -> None:
        self.struct: bool | None = None  # the dialect, once it is settled
        self._identified = False
        self._unread = b""

    def take(self, data: bytes) -> list[Command]:
        """The commands that these bytes complete. Raises `InvalidCommand` where the connection has to be closed;
        the commands that came before that in the same bytes are its `before`."""
        data = self._unread + data
        if self.struct is None:
            if len(data) < len(text_dialect.MARK):
                self._unread = data
                return []
            self.struct = not data.startswith(text_dialect.MARK)
        read = struct_dialect.read if self.struct else text_dialect.read
        commands: list[Command] = []
        at = 0
        try:
            while (found := read(data, at)) is not None:
                self._check_turn(found[0])
                command, at = found
                commands.append(command)
        except InvalidCommand as error:
            error.before = commands
            raise
        finally:
            self._unread = data[at:]
        return commands

    def _check_turn(self, command: Command) -> None:
        """The id comes first, and once."""
        if self._identified == isinstance(command, Identify):
            raise InvalidCommand(
                "The client says its id again."
                if self._identified
                else "A command comes before the client's id."
            )
        self._identified = True
