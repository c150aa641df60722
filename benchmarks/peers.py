"""The broker that Stafeta is measured beside: Mosquitto, started for the benchmark and configured to be quick."""

import getpass
import os
from pathlib import Path
from typing import Self

from benchmarks.brokers import BrokerFailed
from benchmarks.peer_server import Server, find, said_version, started
from stafeta.clients.closing import Closing

MISSING = "Mosquitto was not there to compare with; `make peers` installs it."


def command() -> str | None:
    """The path of `mosquitto`."""
    return find("mosquitto")


def about() -> str:
    """A sentence for the notes: which Mosquitto it is and how it is configured, or that there is none."""
    path = command()
    if path is None:
        return MISSING
    return (
        f"Mosquitto {said_version(path, '-h')}, with no limit to what it queues, set_tcp_nodelay, and no log."
    )


class Mosquitto(Closing):
    """`mosquitto` on a folder of its own, on a free port of this machine, with nothing in its way.

    `inflight`: QoS 1 messages that a session may have unacknowledged; 0: any number.
    `persistent`: whether it would save sessions on its way (every half an hour by default) and at its end.
    `queue_qos0`: whether it keeps QoS 0 messages for sessions that are away, as it does those of QoS 1.
    """

    def __init__(
        self, folder: Path, *, inflight: int = 0, persistent: bool = False, queue_qos0: bool = False
    ) -> None:
        self._folder = folder
        self._inflight = inflight
        self._persistent = persistent
        self._queue_qos0 = queue_qos0
        self._server: Server | None = None

    def __enter__(self) -> Self:
        path = command()
        if path is None:
            raise BrokerFailed(MISSING)
        self._server = started(self._folder, lambda port: [path, "-c", str(self._settings(port))])
        return self

    def close(self) -> None:
        self._running.close()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._running.port

    @property
    def _running(self) -> Server:
        assert self._server is not None, "Mosquitto does not run"
        return self._server

    def _settings(self, port: int) -> Path:
        lines = [
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            f"max_inflight_messages {self._inflight}",
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            "sys_interval 0",
            "log_type none",
            f"queue_qos0_messages {str(self._queue_qos0).lower()}",
            f"persistence {str(self._persistent).lower()}",
            f"persistence_location {self._folder}/",
        ]
        if os.geteuid() == 0:  # else it becomes somebody who may not write here
            lines.append(f"user {getpass.getuser()}")
        settings = self._folder / "mosquitto.conf"
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return settings
