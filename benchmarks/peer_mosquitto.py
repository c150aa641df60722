"""Mosquitto with paho-mqtt, which is driven by hand: quicker than its thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import peers
from benchmarks.load import LoadFailed
from benchmarks.peer import CLIENT, PATIENCE, TOPIC, UNACKNOWLEDGED, Peer, has_module, messages
from benchmarks.peer_server import said_version

AHEAD = 1000  # QoS 1 messages that are not acknowledged yet
_TURN = 20  # messages between two looks at the connection


class Mosquitto(Peer):
    """A session that persists; with QoS 0 messages are kept for it, too."""

    system = "Mosquitto"
    consuming = "QoS 1, persistent session"

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.settings = f"persistence {str(durable).lower()}"
        self.publishing = "QoS 1" if durable else "QoS 0"
        self.remembers = "in memory; on disk every half an hour"
        self.promise = self.remembers if durable else UNACKNOWLEDGED
        self._qos = int(durable)

    def version(self) -> str | None:
        path = peers.command()
        return said_version(path, "-h") if path and has_module("paho") else None

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        with peers.Mosquitto(folder, persistent=self.durable, queue_qos0=True) as server:
            yield str(server.address[1])

    def prepare(self, address: str) -> None:
        with _connected(address, CLIENT, clean=False) as client:
            granted: list[object] = []
            client.on_subscribe = lambda *_: granted.append(None)
            client.subscribe(TOPIC, qos=1)
            _turn_until(client, lambda: bool(granted))

    def publish(self, address: str, total: int) -> float:
        """The last one is of QoS 1 in any case: its acknowledgement says that all have come."""
        sent = answered = 0

        def answer(*_: object) -> None:
            nonlocal answered
            answered += 1

        def room() -> bool:
            return sent - answered <= AHEAD

        with _connected(address, "publisher", clean=True) as client:
            if self._qos:
                client.on_publish = answer
            start = perf_counter()
            for payload in messages(total - 1):
                client.publish(TOPIC, payload, qos=self._qos)
                sent += 1
                if sent % _TURN == 0:
                    client.loop(0)
                    if self._qos:
                        _turn_until(client, room)
            last = client.publish(TOPIC, next(messages(1)), qos=1)
            _turn_until(client, last.is_published)
            if self._qos:
                _turn_until(client, lambda: answered == total)
            return perf_counter() - start

    def consume(self, address: str, total: int) -> float:
        """What it has handed over paho acknowledges by itself."""
        got = 0

        def take(*_: object) -> None:
            nonlocal got
            got += 1

        with _connected(address, CLIENT, clean=False, handler=take) as client:
            start = perf_counter()
            _turn_until(client, lambda: got >= total)
            return perf_counter() - start


@contextmanager
def _connected(
    address: str, name: str, *, clean: bool, handler: Callable[..., None] | None = None
) -> Iterator[Any]:
    from paho.mqtt.client import CallbackAPIVersion, Client

    client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean)
    client.max_inflight_messages_set(AHEAD)
    client.max_queued_messages_set(0)
    client.on_message = handler
    client.connect("127.0.0.1", int(address))
    _turn_until(client, client.is_connected)
    try:
        yield client
    finally:
        client.disconnect()


def _turn_until(client: Any, done: Callable[[], bool]) -> None:
    deadline = perf_counter() + PATIENCE
    while not done():
        if client.loop(1.0) != 0 or perf_counter() > deadline:
            raise LoadFailed("Mosquitto has ended the connection, or does not answer.")
