"""The HTTP door: listens, and holds what its requests share. (docs/protocols/http.md)

1. uvicorn's protocols run on the broker's own loop, on sockets that are bound here: there is no server beside it, and
   nothing else takes signals or writes logs.
2. Requests take turns with the other doors: what they add to a group is counted, and more waits for the next.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Final, ParamSpec, TypeVar

from uvicorn.config import Config
from uvicorn.server import ServerState

from stafeta import addresses
from stafeta.addresses import Address
from stafeta.broker import Gate
from stafeta.doors.connection import Connections
from stafeta.doors.figures import DoorFigures
from stafeta.doors.http.app import Application
from stafeta.doors.http.connection import HttpConnection
from stafeta.doors.http.logins import Logins
from stafeta.doors.http.metrics import Scraper, route
from stafeta.doors.http.overview import Sampler
from stafeta.doors.http.publishing import Keys
from stafeta.doors.http.sql import Sql
from stafeta.doors.http.streams import Streams
from stafeta.doors.tls import Certificates, layered
from stafeta.errors import ConfigError
from stafeta.logs import SeldomLog, announce

log = logging.getLogger("stafeta.http")
_P = ParamSpec("_P")
_T = TypeVar("_T")

BACKLOG: Final = 4096  # connections that wait to be accepted
KEEP_ALIVE: Final = 75  # seconds that a connection may wait between two requests
CLOSE_TIMEOUT: Final = 1.0  # seconds that requests have to end by themselves
MAX_COMMAND: Final = 1 << 20  # bytes of one message from a WebSocket
READING: Final = 2  # large bodies that are read at a time
HELD: Final = 4  # bodies of the largest size that may be in memory together


class HttpDoor:
    def __init__(
        self,
        broker: Gate,
        *,
        buffer: int,
        max_connections: int,
        max_body: int,
        peer_timeout: float,
        hosts: Iterable[str] = (),
        session: float = 12 * 3600.0,
        certificates: Certificates | None = None,
        metrics: Scraper | None = None,
        overview: Sampler | None = None,
        sql: Sql | None = None,
    ) -> None:
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.secure = certificates is not None
        self.hosts = frozenset(host.lower() for host in hosts)
        self.max_body = max_body
        self.held = 0  # bytes of bodies of requests that are not answered yet
        self.max_held = max(HELD * max_body, 64 << 20)
        self.warn = SeldomLog(log).warning
        self.connections = Connections(broker, buffer, max_connections, peer_timeout, log, "http")
        self.logins = Logins(broker.security, session)
        self.streams = Streams(self)
        self.keys = Keys()
        self.share = broker.share()
        self.numbers = count(1)
        self._reading = asyncio.Semaphore(READING)
        self.overview = overview
        self.sql = sql
        self.closing = False
        self._certificates = certificates
        self._servers: list[asyncio.Server] = []
        self.state = ServerState()
        application = Application(self)
        if metrics is not None:
            application.mount("/metrics", route(metrics))
        self.config = Config(
            application,
            http=HttpConnection,
            ws="websockets-sansio",
            ws_max_size=MAX_COMMAND,
            ws_ping_interval=None,  # what is idle is looked after by `Streams`
            ws_per_message_deflate=False,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self.config.load()
        # It has a line for each thing that a stranger does wrong; the door has its own, and not for each.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        broker.security.on_change(self._users_changed)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open one more address; returns it, with the port that was chosen where 0 was given."""
        try:
            bound = addresses.bind(host, port, socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(
                f"The HTTP door cannot listen on {Address(host, port)}: {error.strerror}."
            ) from error
        port = bound.getsockname()[1]
        self._servers.append(
            await self.loop.create_server(
                layered(lambda: HttpConnection(self), self._certificates), sock=bound, backlog=BACKLOG
            )
        )
        announce(log, f"listening on {Address(host, port)}")
        return host, port

    def figures(self) -> DoorFigures:
        return self.connections.figures(self._certificates)

    async def close(self) -> None:
        """Let requests be answered, and connections take what is on its way."""
        self.closing = True
        self.broker.security.forget_listener(self._users_changed)
        for server in self._servers:
            server.close()
        self.streams.close()
        if self.overview is not None:
            self.overview.close()
        for connection in list(self.state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                while self.state.tasks:
                    await asyncio.wait(list(self.state.tasks))
        await self.connections.close()
        for task in self.state.tasks:
            task.cancel()

    def _users_changed(self) -> None:
        self.logins.drop_dead()
        self.streams.recheck()

    # --- for requests

    async def room(self) -> None:
        """Returns when more may be added to the group that grows."""
        while self.share.spent or self.broker.congested:
            turn: asyncio.Future[None] = self.loop.create_future()
            self.share.when_free(lambda turn=turn: None if turn.done() else turn.set_result(None))  # type: ignore[misc]
            await turn

    async def read(self, reading: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Reads a large body in a thread. Few are read at a time, since one may take many times its size meanwhile."""
        async with self._reading:
            return await asyncio.to_thread(reading, *args, **more)

    async def durable(self) -> None:
        """Returns when all that was done so far is durable, or raises why it could not be."""
        commit = self.broker.commit()
        await asyncio.wait([commit])
        commit.result()
