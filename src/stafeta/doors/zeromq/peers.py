"""Who is at the other end of the connections of the ZeroMQ door.

1. A connection is known by its name. With CURVE each request shows whose it is by its key: names that connections had
   may be claimed by others.
2. What is known is bounded; what was forgotten is found again with the next request.
"""

import zmq

from stafeta import addresses
from stafeta.broker import Gate, Verbs
from stafeta.doors.zeromq.monitor import Connection, Monitor
from stafeta.security import ANYONE

MAX_REMEMBERED = 10_000  # connections, and users at addresses
MAX_KEYS = 100_000  # connections whose keys are remembered
NOBLOCK = int(zmq.NOBLOCK)
OWN_NAME = b"\0"  # what the names begin with that ZeroMQ gives to connections, each once


class Peers:
    """`keyed`: they come with CURVE."""

    def __init__(self, broker: Gate, socket: "zmq.Socket[bytes]", monitor: Monitor, *, keyed: bool) -> None:
        self._broker = broker
        self._socket = socket
        self._monitor = monitor
        self._keyed = keyed
        self.sources: dict[bytes, str] = {}  # addresses
        self.known: dict[bytes, str] = {} if keyed else self.sources  # of which nothing more is to be asked
        self.keys: dict[bytes, str] = {}  # public ones
        self.heard: set[bytes] = set()  # those that have asked for something, since it was last looked at
        self._met: dict[bytes, Connection] = {}
        self._verbs_of: dict[tuple[str, str | None], Verbs] = {}  # by address and key
        self.anyone = None if broker.security.configured else broker.for_principal(ANYONE)  # who is everybody
        monitor.before_sweep = self._report_heard

    def meet(self, connection: bytes) -> bytes:
        """The second frame of a request, which tells the address that a new connection comes from, and its key."""
        delimiter = self._socket.recv(NOBLOCK, copy=False)
        try:
            if self._keyed:
                key = str(delimiter.get("User-Id"))
                if self.keys.get(connection) == key and connection in self.sources:
                    return delimiter.bytes
                if connection[:1] != OWN_NAME:
                    # Another key's connection could come to have the same one, and what is still to be answered.
                    return connection
                if len(self.keys) >= MAX_KEYS:
                    del self.keys[next(iter(self.keys))]
                self.keys[connection] = key
            if len(self.sources) >= MAX_REMEMBERED:
                self.sources.clear()
                self._met.clear()
            self.sources[connection] = addresses.unmapped(str(delimiter.get("Peer-Address")))
            self._met[connection] = self._monitor.connection(int(delimiter.get(zmq.SRCFD)))
        except zmq.ZMQError:
            self.sources[connection] = ""
        return delimiter.bytes

    def source(self, connection: bytes) -> str:
        """The address that it comes from."""
        return self.sources.get(connection, "")

    def verbs(self, connection: bytes) -> Verbs:
        """What its user may do, where there are users: that of its key, or without CURVE the door's own. Raises
        `NotAuthenticated` where there is none."""
        whose = self._whose(connection)
        verbs = self._verbs_of.get(whose)
        if verbs is None:
            address, key = whose
            principal = self._broker.security.identify(door="zeromq", address=address, curve_key=key)
            if len(self._verbs_of) >= MAX_REMEMBERED:
                self._verbs_of.clear()
            verbs = self._verbs_of[whose] = self._broker.for_principal(principal)
        return verbs

    def forget(self) -> list[Connection]:
        """Users have changed. Returns the connections of those who would not be let in any more."""
        alive = self._broker.security.alive
        gone = {whose for whose, verbs in self._verbs_of.items() if not alive(verbs.principal)}
        self._verbs_of.clear()
        return [met for one, met in self._met.items() if self._whose(one) in gone] if gone else []

    def _whose(self, connection: bytes) -> tuple[str, str | None]:
        return self.source(connection), self.keys.get(connection, "") if self._keyed else None

    def _report_heard(self) -> None:
        for connection in self.heard & self._met.keys():
            self._monitor.heard(self._met[connection])
        self.heard.clear()
