"""RabbitMQ with pika's callbacks (SelectConnection), which do not wait for one confirm before the next message."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.load import LoadFailed
from benchmarks.peer import (
    FSYNCED,
    MEMORY,
    PATIENCE,
    TOPIC,
    UNACKNOWLEDGED,
    Peer,
    expect,
    has_module,
    messages,
)
from benchmarks.peer_server import find, free_port, running

AHEAD = 2000  # messages that are not confirmed yet
PREFETCH = 2000  # messages that the server sends ahead of acknowledgements
ACKED = 500  # messages that one acknowledgement stands for
_SETTINGS = "listeners.tcp.1 = 127.0.0.1:{port}\nlog.console.level = error\n"


class Rabbit(Peer):
    """A queue: a quorum queue with persistent messages and publisher confirms, or a classic one with neither."""

    system = "RabbitMQ"
    consuming = f"prefetch {PREFETCH:,}, one ack for {ACKED:,}"

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.settings = "quorum queue" if durable else "classic queue, not durable"
        self.publishing = "persistent, confirms" if durable else "transient, no confirms"
        self.promise = FSYNCED if durable else UNACKNOWLEDGED
        self.remembers = "in the log; not confirmed" if durable else MEMORY

    def version(self) -> str | None:
        """As the folder it is in is named: to ask it takes seconds."""
        path = find("rabbitmq-server")
        if path is None or find("epmd") is None or not has_module("pika"):
            return None
        found = re.search(r"rabbitmq_server-([\d.]+)", os.path.realpath(path))
        return found[1] if found else "of unknown version"

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        """Nodes of Erlang find each other through epmd: it has one of its own, which goes with it."""
        server, names = find("rabbitmq-server"), find("epmd")
        assert server is not None
        assert names is not None

        def command(port: int) -> list[str]:
            (folder / "rabbitmq.conf").write_text(_SETTINGS.format(port=port), encoding="utf-8")
            return [server]

        with (
            running(
                folder / "epmd", lambda port: [names, "-address", "127.0.0.1", "-port", str(port)]
            ) as epmd,
            running(folder, command, _environment(folder, epmd)) as port,
        ):
            yield str(port)

    def prepare(self, address: str) -> None:
        kind = "quorum" if self.durable else "classic"

        def begin(channel: Any) -> None:
            channel.queue_declare(
                TOPIC,
                durable=self.durable,
                arguments={"x-queue-type": kind},
                callback=lambda _: channel.connection.close(),
            )

        _converse(address, begin)

    def publish(self, address: str, total: int) -> float:
        publisher = _Publisher(total, durable=self.durable)
        _converse(address, publisher.begin)
        return publisher.took

    def consume(self, address: str, total: int) -> float:
        start = got = 0.0
        took = 0.0

        def begin(channel: Any) -> None:
            nonlocal start
            channel.basic_qos(prefetch_count=PREFETCH)
            start = perf_counter()
            channel.basic_consume(TOPIC, take)

        def take(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            nonlocal got
            got += 1
            if got == total or got % ACKED == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if got == total:
                channel.queue_declare(TOPIC, passive=True, callback=lambda answer: done(channel, answer))

        def done(channel: Any, answer: Any) -> None:
            """The channel is served in order: the acknowledgements have come before this question."""
            nonlocal took
            took = perf_counter() - start
            channel.connection.close()
            expect(0, answer.method.message_count, self.system)

        _converse(address, begin)
        return took


class _Publisher:
    """Keeps so many messages on their way until all are confirmed."""

    def __init__(self, total: int, *, durable: bool) -> None:
        import pika

        self.took = 0.0
        self._durable = durable
        self._total = total
        self._messages = messages(total)
        self._properties = pika.BasicProperties(delivery_mode=2 if durable else 1)
        self._start = 0.0
        self._sent = 0
        self._confirmed = 0  # all up to this number
        self._early: set[int] = set()  # confirmed beyond it

    def begin(self, channel: Any) -> None:
        self._channel = channel
        if self._durable:
            channel.confirm_delivery(self._answered, callback=lambda _: self._begin())
        else:
            self._begin()

    def _begin(self) -> None:
        self._start = perf_counter()
        self._fill()

    def _fill(self) -> None:
        channel, properties = self._channel, self._properties
        for payload in islice(self._messages, AHEAD - (self._sent - self._confirmed)):
            self._sent += 1
            channel.basic_publish("", TOPIC, payload, properties)
        if not self._durable:
            self._confirmed = self._sent
            if self._sent < self._total:
                channel.connection.ioloop.call_later(0, self._fill)
            else:
                self._count()

    def _answered(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            raise LoadFailed("RabbitMQ has not taken a message.")
        if method.multiple:
            self._confirmed = max(self._confirmed, method.delivery_tag)
        else:
            self._early.add(method.delivery_tag)
        while self._confirmed + 1 in self._early:
            self._confirmed += 1
            self._early.discard(self._confirmed)
        if self._confirmed == self._total:
            self._done()
        elif self._sent - self._confirmed <= AHEAD // 2:
            self._fill()

    def _count(self) -> None:
        """Without confirms they are there when the queue says so, which may be a little after the last was sent."""

        def counted(answer: Any) -> None:
            if answer.method.message_count == self._total:
                self._done()
            elif perf_counter() - self._start < PATIENCE:
                self._count()
            else:
                expect(self._total, answer.method.message_count, "RabbitMQ")

        self._channel.queue_declare(TOPIC, passive=True, callback=counted)

    def _done(self) -> None:
        self.took = perf_counter() - self._start
        self._channel.connection.close()


def _converse(address: str, begin: Callable[[Any], None]) -> None:
    """Calls `begin` with a channel; comes back when the connection is closed."""
    import pika

    trouble: list[BaseException] = []

    def closed(connection: Any, reason: BaseException) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            trouble.append(reason)
        connection.ioloop.stop()

    def failed(connection: Any, reason: BaseException) -> None:
        trouble.append(reason)
        connection.ioloop.stop()

    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", int(address), blocked_connection_timeout=PATIENCE),
        on_open_callback=lambda connection: connection.channel(on_open_callback=begin),
        on_open_error_callback=failed,
        on_close_callback=closed,
    )
    connection.ioloop.start()
    if trouble:
        raise LoadFailed(f"RabbitMQ: {trouble[0]!r}")


def _environment(folder: Path, epmd: int) -> dict[str, str]:
    """Nothing of it outside of the folder, and nothing that other machines can reach."""
    return {
        "HOME": str(folder),  # where Erlang's cookie goes
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RUNNING_UNDER_SYSTEMD": "true",  # so that the script becomes the server instead of its parent
    }
