"""The frames door: listens, and holds what its connections share. (docs/protocols/frames.md)"""

import asyncio
import logging
import os
from itertools import count
from typing import Final

from stafeta.broker import Broker
from stafeta.doors.connection import Connections
from stafeta.doors.delivery import Encoder
from stafeta.doors.frames.connection import Connection
from stafeta.doors.frames.deliveries import OVERHEAD, encoder
from stafeta.doors.frames.serializers import Serializer
from stafeta.errors import ConfigError
from stafeta.logs import announce, fields

log = logging.getLogger("stafeta.frames")

BACKLOG: Final = 4096  # connections that wait to be accepted
REPORT: Final = 10.0  # seconds between two log lines that say the same


class FramesDoor:
    def __init__(self, broker: Broker, *, buffer: int, max_connections: int) -> None:
        self.broker = broker
        self.connections = Connections(broker, buffer, max_connections, log)
        self.numbers = count(1)
        self.cut = 0  # messages that were too large for a frame
        self.loop = asyncio.get_running_loop()
        self._encoders: dict[tuple[int, str], Encoder] = {}
        self._servers: list[asyncio.Server] = []
        self._warned: set[str] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open one more address; returns it, with the port that was chosen where 0 was given."""
        try:
            server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"The frames door cannot listen on {host}:{port}: {reason}.") from error
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        announce(log, f"listening on {host}:{port}")
        return host, port

    async def close(self) -> None:
        """Let connections take what is on its way, and let them go."""
        for server in self._servers:
            server.close()
        await self.connections.close()

    def encoder(self, serializer: Serializer, key: str) -> Encoder:
        """How deliveries are written: the same for all connections that use these."""
        found = self._encoders.get((serializer.code, key))
        if found is None:
            found = Encoder(encoder(serializer, key, self._cut), OVERHEAD)
            self._encoders[serializer.code, key] = found
        return found

    def topics(self) -> list[str]:
        """Those that hold a message, by name. The broker's own are not among them."""
        return sorted(
            name
            for name, topic in self.broker.topics.items()
            if topic.exists and topic.first < topic.visible and not name.startswith("$")
        )

    def warn(self, sentence: str, **details: object) -> None:
        """A line in the log, unless there was the same one a moment ago: a stranger may cause any number."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self.loop.call_later(REPORT, self._warned.discard, sentence)
            log.warning(sentence, extra=fields(**details))

    def _cut(self, topic: str) -> None:
        self.cut += 1
        self.warn("a message was cut to fit a frame", topic=topic, total=self.cut)
