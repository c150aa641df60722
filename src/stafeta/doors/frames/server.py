"""The frames door: listens, and holds what its connections share. (docs/protocols/frames.md)"""

import asyncio
import logging
import socket
from collections import deque
from itertools import count
from typing import Final

from stafeta import addresses
from stafeta.addresses import Address
from stafeta.broker import Gate, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.connection import Connections
from stafeta.doors.delivery import Encoder
from stafeta.doors.figures import DoorFigures
from stafeta.doors.frames.connection import Connection
from stafeta.doors.frames.deliveries import OVERHEAD, encoder
from stafeta.doors.frames.serializers import Serializer
from stafeta.doors.tls import Certificates, layered
from stafeta.errors import ConfigError
from stafeta.logs import SeldomLog, announce

log = logging.getLogger("stafeta.frames")

BACKLOG: Final = 4096  # connections that wait to be accepted


class FramesDoor:
    def __init__(
        self,
        broker: Gate,
        *,
        buffer: int,
        max_connections: int,
        peer_timeout: float,
        certificates: Certificates | None = None,
    ) -> None:
        self.broker = broker
        self._certificates = certificates
        self.connections = Connections(broker, buffer, max_connections, peer_timeout, log, "frames")
        self.numbers = count(1)
        self.cut = 0  # messages that were too large for a frame
        self.skipped = 0  # commands that could not be carried out
        self.loop = asyncio.get_running_loop()
        self._encoders: dict[tuple[int, str], Encoder] = {}
        self._servers: list[asyncio.Server] = []
        self.share = broker.share()
        self._turns: deque[Connection] = deque()  # connections that have much to say
        self.warn = SeldomLog(log).warning
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open one more address; returns it, with the port that was chosen where 0 was given."""
        try:
            bound = addresses.bind(host, port, socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(
                f"The frames door cannot listen on {Address(host, port)}: {error.strerror}."
            ) from error
        port = bound.getsockname()[1]
        self._servers.append(
            await self.loop.create_server(
                layered(lambda: Connection(self), self._certificates), sock=bound, backlog=BACKLOG
            )
        )
        announce(log, f"listening on {Address(host, port)}")
        return host, port

    def figures(self) -> DoorFigures:
        return self.connections.figures(self._certificates, {"cut": self.cut, "skipped": self.skipped})

    async def close(self) -> None:
        """Let connections take what is on its way, and let them go."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await self.connections.close()

    def encoder(self, serializer: Serializer, key: str) -> Encoder:
        """How deliveries are written: the same for all connections that use these."""
        found = self._encoders.get((serializer.code, key))
        if found is None:
            found = Encoder(encoder(serializer, key, self._cut), OVERHEAD)
            self._encoders[serializer.code, key] = found
        return found

    async def topics(self, verbs: Verbs) -> list[str]:
        """Those that hold a message, by name. The broker's own are not among them."""
        found = in_portions(await verbs.listed("#"))
        return [topic.name async for topic in found if topic.first < topic.visible]

    @property
    def crowded(self) -> bool:
        """True while even those who say little have to wait for their turn."""
        return bool(self._turns) or self.share.spent or self.broker.congested

    def take_turns(self, connection: Connection) -> None:
        self._turns.append(connection)
        if len(self._turns) == 1:
            self.loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        if self.share.spent or self.broker.congested:
            self.share.when_free(self._give_turn)
            return
        # Taken off afterwards: while there are any in the queue, this is scheduled.
        connection = self._turns[0]
        try:
            connection.turn()
        except Exception:  # the others must not suffer for it
            log.exception("a connection is closed, for a reason that it should not have")
            connection.transport.abort()
        self._turns.popleft()
        if self._turns:
            self.loop.call_soon(self._give_turn)

    def keep(self, task: "asyncio.Task[None]") -> None:
        """Let a task go on that nobody waits for."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut(self, topic: str) -> None:
        self.cut += 1
        self.warn("a message was cut to fit a frame", topic=topic, total=self.cut)
