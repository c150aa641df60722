"""The devices door: datagrams in, TCP out, on one port. (docs/protocols/devices.md)

1. Readings that come together are published together, and durable before anyone is sent them.
2. A client is known by its id, and only one connection has it; its subscriptions outlive the connection.
3. There is nothing in the protocol to say no with. A command that is wrong is logged and skipped; bytes that are no
   command, or a subscription that cannot be stored, end the connection.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from stafeta.broker import Broker
from stafeta.doors.delivery import Carrier, Delivery, Encoder
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
from stafeta.errors import AlreadyConnected, ConfigError, InvalidCommand, Lagging, StafetaError
from stafeta.logs import announce, fields
from stafeta.message import Kind, RowBatch

log = logging.getLogger("stafeta.devices")

BACKLOG = 4096  # connections that wait to be accepted
REPORT = 10.0  # seconds between two log lines about what was dropped
FAREWELL = 0.25  # seconds for connections to take what is on its way when the door closes
NOTICE = 5.0  # and for one that is told that it lags
NOTICES = "$sys/lagging"  # the topic of that message
TRIES = 20  # ports tried until one is free for UDP and TCP alike


@dataclass(slots=True)
class Counts:
    """What has become of messages that did not go their way."""

    invalid: int = 0  # datagrams that could not be read
    ignored: int = 0  # readings on topics that nobody has subscribed to
    lost: int = 0  # datagrams that the kernel had no room for
    changed: int = 0  # messages that a device could not be sent as they are


class DevicesDoor:
    """`observer` is told, in the words of docs/protocols/devices.md, who comes and goes."""

    def __init__(
        self,
        broker: Broker,
        *,
        buffer: int,
        receive_buffer: int,
        observer: Callable[[str], None] | None = None,
    ) -> None:
        self.broker = broker
        self.carrier = Carrier(broker, buffer)
        self.observer = observer or log.info
        self.counts = Counts()
        self.text = Encoder(
            partial(text_frames, cut=self._changed), TEXT_OVERHEAD, partial(text_stream, cut=self._changed)
        )
        self.struct = Encoder(partial(struct_frames, cut=self._changed), STRUCT_OVERHEAD)
        self.connections: dict[Connection, None] = {}
        self.closed = False
        self._receive_buffer = receive_buffer
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._receivers: list[Receiver] = []
        self._received: deque[tuple[Receiver, Received]] = deque()
        self._reported = Counts()
        self._report_timer = self._loop.call_later(REPORT, self._report)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open one more address, for UDP and TCP; returns it, with the port that was chosen where 0 was given."""
        for tries_left in reversed(range(TRIES)):
            try:
                udp, port = await self._bind(host, port)
                break
            except OSError as error:
                if port == 0 and tries_left:
                    continue  # the port that TCP got is taken for UDP
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise ConfigError(f"The devices door cannot listen on {host}:{port}: {reason}.") from error
        receiver = Receiver(udp, self._receive_buffer, lambda received: self._take(receiver, received))
        self._receivers.append(receiver)
        receiver.start()
        announce(log, f"listening on {host}:{port}")
        return host, port

    async def _bind(self, host: str, port: int) -> tuple[socket.socket, int]:
        udp = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind((host, port))
            port = udp.getsockname()[1]
            server = await self._loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        except BaseException:
            udp.close()
            raise
        self._servers.append(server)
        return udp, port

    async def close(self) -> None:
        """Publish what has come, let connections take what is on its way, and let them go."""
        self.closed = True
        self._report_timer.cancel()
        for server in self._servers:
            server.close()
        for receiver in self._receivers:
            await self._loop.run_in_executor(None, receiver.close)
        await asyncio.wait([self.broker.receipt()])
        while self._received:  # the broker was congested
            self._publish()
            await asyncio.wait([self.broker.receipt()])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                for connection in list(self.connections):
                    while connection.busy:  # noqa: ASYNC110 - the kernel tells nobody when a peer has it all
                        await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()
        self._report()

    # --- readings

    def _take(self, receiver: Receiver, received: Received) -> None:
        self._received.append((receiver, received))
        if len(self._received) == 1:
            self._publish()

    def _publish(self, _: "asyncio.Future[None] | None" = None) -> None:
        while self._received:
            if self.broker.congested:
                self.broker.receipt().add_done_callback(self._publish)
                return
            receiver, received = self._received.popleft()
            if received.invalid:
                self.counts.invalid += received.invalid
                log.debug("datagrams are dropped: %s", received.example)
            self.counts.ignored += self.broker.publish_all(received.readings)
            receiver.done(received)
        self.broker.receipt()

    def _changed(self) -> None:
        self.counts.changed += 1

    def _report(self) -> None:
        self.counts.lost = sum(receiver.lost for receiver in self._receivers) if not self.closed else 0
        now, before = self.counts, self._reported
        invalid, lost, changed = (
            now.invalid - before.invalid,
            now.lost - before.lost,
            now.changed - before.changed,
        )
        if invalid > 0 or lost > 0:
            log.warning("datagrams were dropped", extra=fields(invalid=invalid, lost=max(lost, 0)))
        if changed > 0:
            log.warning("messages were cut, or sent as STRING, to fit a device", extra=fields(count=changed))
        self._reported = Counts(now.invalid, now.ignored, now.lost, now.changed)
        if not self.closed:
            self._report_timer = self._loop.call_later(REPORT, self._report)


class Connection(asyncio.Protocol):
    """One subscriber."""

    __slots__ = ("_commands", "_delivery", "_door", "_id", "_peer", "_transport")

    def __init__(self, door: DevicesDoor) -> None:
        self._door = door
        self._commands = Commands()
        self._delivery: Delivery | None = None
        self._id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class
        host, port = transport.get_extra_info("peername")[:2]
        self._peer = f"{host}:{port}"
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._door.connections[self] = None

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._commands.take(data)
        except InvalidCommand as error:
            self._obey(error.before)
            self._refuse("the connection is closed: %s", error)
            self._transport.abort()
            return
        self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self._transport.is_closing():
                return
            try:
                self._do(command)
            except AlreadyConnected:
                self._door.observer(f"Client {self._id} already connected.")
                self._id = ""
                self._transport.close()
            except StafetaError as error:
                self._refuse("a command is skipped: %s", error)
        if self._delivery is not None:
            self._door.broker.receipt().add_done_callback(self._stored)

    def _do(self, command: Command) -> None:
        match command:
            case Identify(client):
                self._id = client
                self._enter(f"devices/{client}")
            case Subscribe(topic, sf) if self._delivery is not None:
                self._delivery.feed.subscribe(topic, durable=sf, lasting=True)
            case Unsubscribe(topic) if self._delivery is not None:
                self._delivery.feed.unsubscribe(topic)
            case Refused(why):
                self._refuse("a command is skipped: %s", why)

    def _enter(self, client: str) -> None:
        self._door.broker.sessions.open(client, self)
        encoder = self._door.struct if self._commands.struct else self._door.text
        self._delivery = self._door.carrier.delivery(client, self._transport, encoder, self._lags)
        self._door.observer(f"New client {self._id} connected from {self._peer}.")
        self._delivery.feed.resume()

    def _stored(self, receipt: "asyncio.Future[None]") -> None:
        if receipt.exception() is not None and not self._transport.is_closing():
            self._refuse(
                "the connection is closed, its commands could not be stored: %s", receipt.exception()
            )
            self._transport.abort()

    def _refuse(self, sentence: str, why: object) -> None:
        log.warning(sentence, why, extra=fields(client=self._id or None, peer=self._peer))

    def _lags(self, error: Lagging) -> None:
        log.warning("%s It is disconnected.", error, extra=fields(peer=self._peer))
        now = self._door.broker.now()
        notice = RowBatch(NOTICES, 1, [(0, now, "", "", Kind.STRING, None, str(error).encode())])
        assert self._delivery is not None
        self._transport.write(self._delivery.encoder.encode([notice]))
        self._transport.close()  # once it has read all that, if it ever does
        asyncio.get_running_loop().call_later(NOTICE, self._transport.abort)

    def pause_writing(self) -> None:
        if self._delivery is not None:
            self._delivery.pause()

    def resume_writing(self) -> None:
        if self._delivery is not None:
            self._delivery.resume()

    @property
    def busy(self) -> bool:
        """True while something is on its way."""
        return self._delivery is not None and self._delivery.busy

    def abort(self) -> None:
        self._transport.abort()

    def eof_received(self) -> None:
        if self._delivery is not None:
            self._delivery.settle()

    def connection_lost(self, error: Exception | None) -> None:
        del self._door.connections[self]
        if self._delivery is None:
            return
        self._delivery.close()
        self._door.broker.sessions.close(self._delivery.feed.client, self)
        if not self._door.closed:
            self._door.observer(f"Client {self._id} disconnected.")
            self._door.broker.receipt()
