"""The devices door: datagrams in, TCP out, on one port. (docs/protocols/devices.md)

Readings that come together are published together, and durable before anyone is sent them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from stafeta.addresses import Address
from stafeta.broker import Gate, Verbs
from stafeta.doors.connection import Connections
from stafeta.doors.delivery import Encoder
from stafeta.doors.devices.codec import (
    STRUCT_OVERHEAD,
    TEXT_OVERHEAD,
    struct_frames,
    text_frames,
    text_stream,
)
from stafeta.doors.devices.connection import Connection
from stafeta.doors.devices.receiver import Guard, Received, Receiver
from stafeta.doors.devices.sockets import BACKLOG, Bound, bind
from stafeta.doors.figures import DoorFigures
from stafeta.doors.tls import Certificates, layered
from stafeta.errors import NotAuthenticated
from stafeta.logs import announce, fields

log = logging.getLogger("stafeta.devices")

REPORT = 10.0  # seconds between two log lines about what was dropped


@dataclass(slots=True)
class Counts:
    """What has become of messages that did not go their way."""

    invalid: int = 0  # datagrams that could not be read
    ignored: int = 0  # readings on topics that nobody has subscribed to
    refused: int = 0  # datagrams of those who may not send any
    lost: int = 0  # datagrams that the kernel had no room for
    unstored: int = 0  # readings that could not be stored
    changed: int = 0  # messages that a device could not be sent as they are


class DevicesDoor:
    """`observer` is called with a line, as docs/protocols/devices.md has it, for each client that comes or goes."""

    def __init__(
        self,
        broker: Gate,
        *,
        buffer: int,
        receive_buffer: int,
        max_connections: int,
        peer_timeout: float,
        takeover: bool = False,
        observer: Callable[[str], None] | None = None,
        certificates: Certificates | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.broker = broker
        self._certificates = certificates
        self._guard = guard
        self.connections = Connections(broker, buffer, max_connections, peer_timeout, log, "devices")
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
        self._verbs: Verbs | None = None  # of who sends datagrams
        broker.security.on_change(self._users_changed)
        self._report_timer = self._loop.call_later(REPORT, self._report)

    async def listen(self, host: str, port: int, bound: Bound | None = None) -> tuple[str, int]:
        """Open one more address, for UDP and TCP, or take sockets that are bound to it already; returns it, with the
        port that was chosen where 0 was given."""
        udp, tcp = bound or bind(host, port)
        port = udp.getsockname()[1]
        self._servers.append(
            await self._loop.create_server(
                layered(lambda: Connection(self), self._certificates), sock=tcp, backlog=BACKLOG
            )
        )
        receiver = Receiver(
            udp, self._receive_buffer, lambda received: self._take(receiver, received), self._guard
        )
        self._receivers.append(receiver)
        receiver.start()
        announce(log, f"listening on {Address(host, port)}")
        return host, port

    def figures(self) -> DoorFigures:
        return self.connections.figures(self._certificates, asdict(self.counts))

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
        self._log_counts()

    # --- readings

    def _take(self, receiver: Receiver, received: Received) -> None:
        self._received.append((receiver, received))
        if len(self._received) == 1:
            self._publish()

    def _publish(self) -> None:
        published = 0
        while self._received and not self.broker.congested and not self._share.spent:
            receiver, received = self._received.popleft()
            if received.invalid or received.refused:
                self.counts.invalid += received.invalid
                self.counts.refused += received.refused
                log.debug("datagrams are dropped: %s", received.example)
            ignored = self._share.count(partial(self._publish_readings, received.readings))
            self.counts.ignored += ignored
            published += len(received.readings) - ignored
            receiver.done(received)
        commit = self.broker.commit()
        commit.add_done_callback(partial(self._stored, published))
        if self._received:
            self._share.when_free(self._publish)

    def _publish_readings(self, readings: Sequence[tuple[str, int, bytes, str]]) -> int:
        """Returns how many were left out. Datagrams have no credentials, so that all are the door's own user's."""
        try:
            if self._verbs is None:
                principal = self.broker.security.identify(door="devices", address="")
                self._verbs = self.broker.for_principal(principal)
            return self._verbs.publish_all(readings)
        except NotAuthenticated as error:
            self._verbs = None
            log.debug("datagrams are dropped: %s", error)
            return len(readings)

    def _users_changed(self) -> None:
        self._verbs = None

    def _stored(self, published: int, commit: "asyncio.Future[None]") -> None:
        if commit.exception() is not None:
            self.counts.unstored += published

    def _changed(self) -> None:
        self.counts.changed += 1

    def _report(self) -> None:
        self.counts.lost = sum(receiver.lost for receiver in self._receivers)
        self._log_counts()
        self._report_timer = self._loop.call_later(REPORT, self._report)

    def _log_counts(self) -> None:
        """Log what has been dropped or changed since the last time."""
        now, before = self.counts, self._reported
        self._reported = replace(now)
        dropped = {
            "invalid": now.invalid - before.invalid,
            "refused": now.refused - before.refused,
            "lost": now.lost - before.lost,
            "unstored": now.unstored - before.unstored,
        }
        if any(dropped.values()):
            log.warning("datagrams were dropped", extra=fields(**dropped))
        if now.changed > before.changed:
            count = now.changed - before.changed
            log.warning("messages were cut, or sent as STRING, to fit a device", extra=fields(count=count))
