"""Whom a question, and the token that goes with it, is sent to. That a pipeline answers is in test_runner_processes."""

import os
import socket
from pathlib import Path

import pytest

from stafeta.config import Config
from stafeta.pipeline import endpoint

LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not say who listens")


@LINUX
def test_a_port_that_another_user_listens_on_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline was killed, and its port taken over."""
    monkeypatch.setenv("STAFETA_STATE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        port = stranger.getsockname()[1]
        path = endpoint._file(Config(), 1)
        endpoint._write(path, {"connect": port, "sql": port, "token": "secret"})
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert endpoint.found(Config()) is None
        with pytest.raises(BlockingIOError):
            stranger.accept()
        monkeypatch.undo()
        monkeypatch.setenv("STAFETA_STATE", str(tmp_path))
        assert endpoint.found(Config()) == f"sc://localhost:{port}/;token=secret"


def test_nobody_gets_the_port_of_an_endpoint_at_the_other_address_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET6) as other, endpoint._ipv6_taken(port):
            with pytest.raises(OSError, match=r"in use|not available|Cannot assign"):
                other.bind(("::1", port))
            with pytest.raises(OSError, match=r"refused|unreachable|not available|Cannot assign"):
                other.connect(("::1", port))
