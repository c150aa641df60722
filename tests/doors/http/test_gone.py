"""Clients that are gone before their stream has begun: nothing of them is left, and nothing goes wrong."""

import socket
import struct
from urllib.parse import quote

from tests.brokers import BrokerProcess
from tests.doors.http.peers import Peer
from tests.waiting import wait_until

TRIES = 50  # before, every second one went wrong
RESET = struct.pack("ii", 1, 0)


def test_a_client_that_is_gone_when_its_stream_begins_leaves_nothing_behind(
    serving: BrokerProcess, peer: Peer, topic: str
) -> None:
    host, port = serving.door("http")
    for _ in range(TRIES):
        with socket.create_connection((host, port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            path = f"/api/events?filter={quote(topic, safe='')}"
            gone.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    wait_until(lambda: not peer.get("/api/subscriptions", filter=topic)["subscriptions"])
    assert "for a reason that it should not have" not in serving.stderr
