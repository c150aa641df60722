"""One subscriber's connection to the devices door. (docs/protocols/devices.md)

1. A client is known by its id, and only one connection has it; its subscriptions outlive the connection.
2. There is nothing in the protocol to say no with. A command that is wrong is logged and skipped; bytes that are no
   command, or a subscription that cannot be stored, end the connection.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stafeta.doors.connection import PushedConnection
from stafeta.doors.devices.codec import Command, Commands, Identify, Refused, Subscribe, Unsubscribe
from stafeta.errors import AlreadyConnected, InvalidCommand, NotAuthenticated, StafetaError
from stafeta.logs import fields
from stafeta.names import DEVICES_PREFIX

if TYPE_CHECKING:
    from stafeta.doors.devices.server import DevicesDoor

log = logging.getLogger("stafeta.devices")


class Connection(PushedConnection):
    __slots__ = ("_commands", "_door", "_id")

    def __init__(self, door: "DevicesDoor") -> None:
        super().__init__(door.connections)
        self._door = door
        self._commands = Commands()
        self._id = ""

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._commands.take(data)
        except InvalidCommand as error:
            self._carry_out(error.before)
            self._connections.rejected["invalid"] += 1
            self._refuse("the connection is closed: %s", error)
            self.transport.abort()
            return
        self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self.transport.is_closing():
                return
            self.has_spoken()
            try:
                self._do(command)
            except NotAuthenticated as error:
                self._connections.rejected["authentication"] += 1
                self._refuse("the connection is closed: %s", error)
                self.transport.abort()
            except AlreadyConnected:
                self._connections.rejected["already_connected"] += 1
                self._door.observer(f"Client {self._id} already connected.")
                self._id = ""
                self.transport.close()
            except StafetaError as error:
                self._refuse("a command is skipped: %s", error)
        if self.session is not None:
            self._door.broker.commit().add_done_callback(self._stored)

    def _do(self, command: Command) -> None:
        match command:
            case Identify(client):
                self._id = client
                self._enter(DEVICES_PREFIX + client)
            case Subscribe(topic, sf) if self.session is not None:
                self.session.consumer.subscribe(topic, durable=sf, persistent=True)
            case Unsubscribe(topic) if self.session is not None:
                self.session.consumer.unsubscribe(topic)
            case Refused(why):
                self._refuse("a command is skipped: %s", why)

    def _enter(self, client: str) -> None:
        verbs = self.verbs
        older = verbs.session_holder(client)
        if self._door.takeover and isinstance(older, Connection) and older is not self:
            older.end()
        verbs.open_session(client, self)
        session = self.deliver(client, self._door.struct if self._commands.struct else self._door.text)
        self._door.observer(f"New client {self._id} connected from {self.peer}.")
        session.consumer.resume()

    def _stored(self, commit: "asyncio.Future[None]") -> None:
        if commit.exception() is not None and not self.transport.is_closing():
            self._connections.rejected["not_stored"] += 1
            self._refuse("the connection is closed, its commands could not be stored: %s", commit.exception())
            self.transport.abort()

    def _refuse(self, sentence: str, why: object) -> None:
        log.warning(sentence, why, extra=fields(client=self._id or None, peer=self.peer))

    def end(self) -> None:
        """Give the id up, at once."""
        if self.session is not None:
            self.session.settle()  # what it has got does not come again
        self.transport.abort()
        self._left()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._left()

    def _left(self) -> None:
        if self.session is None:
            return
        self.session.close()
        if self.verbs.close_session(DEVICES_PREFIX + self._id, self) and not self._door.closed:
            self._door.observer(f"Client {self._id} disconnected.")
