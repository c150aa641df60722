"""The broker that Stafeta is measured beside: Mosquitto, started for the benchmark and configured to be quick."""

import getpass
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from time import perf_counter, sleep
from typing import Self

from benchmarks.brokers import BrokerFailed
from stafeta.clients.closing import Closing

MISSING = "Mosquitto was not there to compare with; `make peers` installs it."
_PATIENCE = 10.0
_ATTEMPTS = 5  # at a port that nobody else takes meanwhile


def command() -> str | None:
    """The path of `mosquitto`; Debian has it where not everybody looks."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("mosquitto", path=places)


def about() -> str:
    """A sentence for the notes: which Mosquitto it is and how it is configured, or that there is none."""
    path = command()
    if path is None:
        return MISSING
    said = subprocess.run([path, "-h"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\S+)", said)
    return (
        f"Mosquitto {version[1] if version else '(of unknown version)'}, with no limit to what it queues, "
        "set_tcp_nodelay, and no log."
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
        self.address = ("127.0.0.1", 0)
        self._folder = folder
        self._inflight = inflight
        self._persistent = persistent
        self._queue_qos0 = queue_qos0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "Mosquitto does not run"
        return self._process.pid

    def __enter__(self) -> Self:
        path = command()
        if path is None:
            raise BrokerFailed(MISSING)
        self._folder.mkdir(parents=True, exist_ok=True)
        said = self._folder / "stderr"
        for _ in range(_ATTEMPTS):
            self.address = ("127.0.0.1", free_port())
            settings = self._folder / "mosquitto.conf"
            settings.write_text(self._settings(), encoding="utf-8")
            with said.open("wb") as file:
                self._process = subprocess.Popen(
                    [path, "-c", str(settings)], stdin=subprocess.DEVNULL, stderr=file
                )
            if self._listens(self._process):
                return self
            self.close()
        raise BrokerFailed(f"Mosquitto has not started:\n{said.read_text(encoding='utf-8')}")

    def _settings(self) -> str:
        host, port = self.address
        lines = [
            f"listener {port} {host}",
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
        return "\n".join(lines) + "\n"

    def _listens(self, process: "subprocess.Popen[bytes]") -> bool:
        deadline = perf_counter() + _PATIENCE
        while perf_counter() < deadline and process.poll() is None:
            try:
                socket.create_connection(self.address).close()
            except ConnectionRefusedError:
                sleep(0.01)
            else:
                return True
        return False

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
