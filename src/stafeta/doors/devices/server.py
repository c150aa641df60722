"""The devices door: datagrams in, TCP out, on one port. (docs/protocols/devices.md)

1. Readings that come together are published together, and durable before anyone is sent them.
2. A client is known by its id, and only one connection has it; its subscriptions outlive the connection.
3. There is nothing in the protocol to say no with. A command that is wrong is logged and skipped; bytes that are no
   command, or a subscription that cannot be stored, end the connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stafeta.addresses import Address
from stafeta.broker import Broker
from stafeta.doors.connection import Connections, PushedConnection
from stafeta.doors.delivery import Encoder
from stafeta.doors.devices.codec import (
    STRUCT_OVERHEAD,
    TEXT_OVERHEAD,
    Command,
    Commands,
    Identify,
    Refused,
    Subscribe,
    Unsubscribe,
    struct_frames,
    text_frames,
    text_stream,
)
from stafeta.doors.devices.receiver import Received, Receiver
from stafeta.doors.devices.sockets import BACKLOG, Bound, bind
from stafeta.errors import AlreadyConnected, InvalidCommand, StafetaError
from stafeta.logs import announce, fields
from stafeta.names import DEVICES_PREFIX

log = logging.getLogger("stafeta.devices")

REPORT = 10.0  # seconds between two log lines about what was dropped


@dataclass(slots=True)
class Counts:
    """What has become of messages that did not go their way."""

    invalid: int = 0  # datagrams that could not be read
    ignored: int = 0  # readings on topics that nobody has subscribed to
    lost: int = 0  # datagrams that the kernel had no room for
    unstored: int = 0  # readings that could not be stored
    changed: int = 0  # messages that a device could not be sent as they are


class DevicesDoor:
    """`observer` is called with a line, as docs/protocols/devices.md has it, for each client that comes or goes."""

    def __init__(
        self,
        broker: Broker,
        *,
        buffer: int,
        receive_buffer: int,
        max_connections: int,
        peer_timeout: float,
        takeover: bool = False,
        observer: Callable[[str], None] | None = None,
    ) -> None:
        self.broker = broker
        self.connections = Connections(broker, buffer, max_connections, peer_timeout, log)
        self.takeover = takeover  # an id goes to whoever came last with it
        self.observer = observer or log.info
        self.counts = Counts()
        self._share = broker.share()
        self.text = Encoder(
            partial(text_frames, cut=self._changed), TEXT_OVERHEAD, partial(text_stream, cut=self._changed)
        )
        self.struct = Encoder(
            partial(struct_frames, cut=self._changed), STRUCT_OVERHEAD, unit=STRUCT_OVERHEAD
        )
        self.closed = False
        self._receive_buffer = receive_buffer
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._receivers: list[Receiver] = []
        self._received: deque[tuple[Receiver, Received]] = deque()
        self._reported = Counts()
        self._report_timer = self._loop.call_later(REPORT, self._report)

    async def listen(self, host: str, port: int, bound: Bound | None = None) -> tuple[str, int]:
        """Open one more address, for UDP and TCP, or take sockets that are bound to it already; returns it, with the
        port that was chosen where 0 was given."""
        udp, tcp = bound or bind(host, port)
        port = udp.getsockname()[1]
        self._servers.append(
            await self._loop.create_server(lambda: Connection(self), sock=tcp, backlog=BACKLOG)
        )
        receiver = Receiver(udp, self._receive_buffer, lambda received: self._take(receiver, received))
        self._receivers.append(receiver)
        receiver.start()
        announce(log, f"listening on {Address(host, port)}")
        return host, port

    async def close(self) -> None:
        """Publish what has come, let connections take what is on its way, and let them go."""
        self.closed = True
        self._report_timer.cancel()
        self.counts.lost = sum(receiver.lost for receiver in self._receivers)
        for server in self._servers:
            server.close()
        for receiver in self._receivers:
            await self._loop.run_in_executor(None, receiver.close)
        await asyncio.wait([self.broker.commit()])
        while self._received:  # the broker was congested
            self._publish()
            await asyncio.wait([self.broker.commit()])
        await self.connections.close()
        self._tell()

    # --- readings

    def _take(self, receiver: Receiver, received: Received) -> None:
        self._received.append((receiver, received))
        if len(self._received) == 1:
            self._publish()

    def _publish(self) -> None:
        published = 0
        while self._received and not self.broker.congested and not self._share.spent:
            receiver, received = self._received.popleft()
            if received.invalid:
                self.counts.invalid += received.invalid
                log.debug("datagrams are dropped: %s", received.example)
            ignored = self._share.count(partial(self.broker.publish_all, received.readings))
            self.counts.ignored += ignored
            published += len(received.readings) - ignored
            receiver.done(received)
        commit = self.broker.commit()
        commit.add_done_callback(partial(self._stored, published))
        if self._received:
            self._share.when_free(self._publish)

    def _stored(self, published: int, commit: "asyncio.Future[None]") -> None:
        if commit.exception() is not None:
            self.counts.unstored += published

    def _changed(self) -> None:
        self.counts.changed += 1

    def _report(self) -> None:
        self.counts.lost = sum(receiver.lost for receiver in self._receivers)
        self._tell()
        self._report_timer = self._loop.call_later(REPORT, self._report)

    def _tell(self) -> None:
        """Log what has been dropped or changed since the last time."""
        now, before = self.counts, self._reported
        self._reported = replace(now)
        dropped = {
            "invalid": now.invalid - before.invalid,
            "lost": now.lost - before.lost,
            "unstored": now.unstored - before.unstored,
        }
        if any(dropped.values()):
            log.warning("datagrams were dropped", extra=fields(**dropped))
        if now.changed > before.changed:
            count = now.changed - before.changed
            log.warning("messages were cut, or sent as STRING, to fit a device", extra=fields(count=count))


class Connection(PushedConnection):
    """One subscriber."""

    __slots__ = ("_commands", "_door", "_id")

    def __init__(self, door: DevicesDoor) -> None:
        super().__init__(door.connections)
        self._door = door
        self._commands = Commands()
        self._id = ""

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._commands.take(data)
        except InvalidCommand as error:
            self._obey(error.before)
            self._refuse("the connection is closed: %s", error)
            self.transport.abort()
            return
        self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self.transport.is_closing():
                return
            try:
                self._do(command)
            except AlreadyConnected:
                self._door.observer(f"Client {self._id} already connected.")
                self._id = ""
                self.transport.close()
            except StafetaError as error:
                self._refuse("a command is skipped: %s", error)
        if self.delivery is not None:
            self._door.broker.commit().add_done_callback(self._stored)

    def _do(self, command: Command) -> None:
        match command:
            case Identify(client):
                self._id = client
                self._enter(DEVICES_PREFIX + client)
            case Subscribe(topic, sf) if self.delivery is not None:
                self.delivery.consumer.subscribe(topic, durable=sf, persistent=True)
            case Unsubscribe(topic) if self.delivery is not None:
                self.delivery.consumer.unsubscribe(topic)
            case Refused(why):
                self._refuse("a command is skipped: %s", why)

    def _enter(self, client: str) -> None:
        broker = self._door.broker
        older = broker.session_holder(client)
        if self._door.takeover and isinstance(older, Connection) and older is not self:
            older.end()
        broker.open_session(client, self)
        delivery = self.deliver(client, self._door.struct if self._commands.struct else self._door.text)
        self._door.observer(f"New client {self._id} connected from {self.peer}.")
        delivery.consumer.resume()

    def _stored(self, commit: "asyncio.Future[None]") -> None:
        if commit.exception() is not None and not self.transport.is_closing():
            self._refuse("the connection is closed, its commands could not be stored: %s", commit.exception())
            self.transport.abort()

    def _refuse(self, sentence: str, why: object) -> None:
        log.warning(sentence, why, extra=fields(client=self._id or None, peer=self.peer))

    def end(self) -> None:
        """Give the id up, at once."""
        if self.delivery is not None:
            self.delivery.settle()  # what it has got does not come again
        self.transport.abort()
        self._left()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._left()

    def _left(self) -> None:
        if self.delivery is None:
            return
        self.delivery.close()
        if self._door.broker.close_session(self.delivery.consumer.client, self) and not self._door.closed:
            self._door.observer(f"Client {self._id} disconnected.")
