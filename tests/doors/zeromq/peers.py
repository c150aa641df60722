"""Clients as other people write them: plain ZeroMQ sockets, and what the protocol's page says."""

import json
import re
from typing import Any

import zmq

from stafeta import Curve
from stafeta.clients.closing import Closing
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE

GET_REPLY = 4096  # of the broker that the fixture `small` starts


class Peer(Closing):
    """A socket on a broker's ZeroMQ door. `ask` waits for the reply; a DEALER may `send` ahead and `receive` later."""

    def __init__(
        self,
        address: str,
        kind: int = zmq.DEALER,
        patience: float = PATIENCE,
        *,
        deaf: bool = False,
        curve: Curve | None = None,
    ) -> None:
        self._delimiter: list[bytes] = [] if kind == zmq.REQ else [b""]
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 1 if deaf else 0)  # replies it takes in unread; 0 is any number
        if deaf:
            self.socket.setsockopt(zmq.RCVBUF, 1 << 16)
        self.socket.setsockopt(zmq.RCVTIMEO, int(patience * 1000))
        self.socket.setsockopt(zmq.IPV6, "[" in address)
        if curve is not None:
            curve.secure(self.socket)
        self.socket.connect(address)

    def ask(self, request: str | bytes) -> str:
        self.send(request)
        return self.receive()

    def send(self, request: str | bytes) -> None:
        body = request.encode() if isinstance(request, str) else request
        self.socket.send_multipart([*self._delimiter, body])

    def receive(self) -> str:
        *delimiter, reply = self.socket.recv_multipart()
        assert delimiter == self._delimiter
        return reply.decode()

    def told(self, kind: str, topic: str = "", client: str = "", /, **body: object) -> dict[str, Any]:
        """The reply to a request of the JSON dialect."""
        reply: dict[str, Any] = json.loads(self.ask(request(kind, topic, client, **body)))
        return reply

    def acked(self, kind: str, topic: str = "", client: str = "", /, **body: object) -> dict[str, Any]:
        """The body of the ACK to a request of the JSON dialect."""
        return ack_body(self.told(kind, topic, client, **body))

    def refused(self, kind: str, topic: str = "", client: str = "", /, **body: object) -> str:
        """The error message of the NAK to a request of the JSON dialect."""
        reply = self.told(kind, topic, client, **body)
        assert reply["type"] == "NAK", reply
        return str(reply["body"]["error_message"])

    def got(self, client: str, topic: str) -> list[tuple[int, str]]:
        """The messages that a GET of the text dialect gives."""
        return read_get(self.ask(f"GET {client} {topic}"))

    def close(self) -> None:
        self.socket.close()


def request(kind: str, topic: str = "", client: str = "", /, **body: object) -> str:
    return json.dumps({"type": kind, "topic": topic, "client_id": client, "body": body})


def ack_body(reply: dict[str, Any]) -> dict[str, Any]:
    assert reply["type"] == "ACK", reply
    body: dict[str, Any] = reply.get("body", {})
    return body


def read_get(reply: str) -> list[tuple[int, str]]:
    """Reads a GET reply of the text dialect from left to right: `::` is a colon, `:/` a boundary."""
    if reply == "NO_MESSAGES":
        return []
    entries = [""]
    signs: list[str] = re.findall(r"::|:/|[^:]+|:", reply)
    for sign in signs:
        assert sign != ":", f"a colon stands alone: {reply[:200]}"
        if sign == ":/":
            entries.append("")
        else:
            entries[-1] += ":" if sign == "::" else sign
    messages = [entry.partition(":") for entry in entries]
    return [(int(id_), text) for id_, _, text in messages]


def put(peer: Peer, topic: str, client: str, counter: int, text: str) -> int:
    body = peer.acked("PUT", topic, client, counter=counter, publication=text)
    assert body.keys() == {"current_publication_id"}
    return int(body["current_publication_id"])


def texts(peer: Peer, topic: str, client: str, after: int = 0) -> list[str]:
    """All messages after an id, read one by one."""
    found = []
    while (one := peer.acked("GET", topic, client, last_publication_id=after))["publication_id"] != -1:
        assert one["publication_id"] > after
        after = one["publication_id"]
        found.append(one["publication"])
    return found


def first_kept(peer: Peer, topic: str) -> int:
    """The lowest id that the topic still holds."""
    (line,) = peer.acked("TOPICS", filter=topic)["topics"]
    return int(line["first"])


def sequence(peer: Peer, topic: str, client: str, number: int, *publications: str) -> tuple[int, int]:
    body = peer.acked("PUT", topic, client, sequence=number, publications=publications)
    assert body.keys() == {"first_publication_id", "current_publication_id"}
    return body["first_publication_id"], body["current_publication_id"]


class LazyPirate(Closing):
    """Asks until it is answered: where no reply comes in time, again on a new socket."""

    def __init__(self, address: str, timeout: float = 5.0, tries: int = 6) -> None:
        self._address = address
        self._timeout = timeout
        self._tries = tries
        self._peer: Peer | None = None
        self.retries = 0

    def ask(self, body: str) -> str:
        for _ in range(self._tries):
            if self._peer is None:
                self._peer = Peer(self._address, zmq.REQ, self._timeout)
            try:
                return self._peer.ask(body)
            except zmq.Again:
                self.retries += 1
                self.close()
        raise AssertionError(f"no reply to {body[:200]}")

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


def works(broker: BrokerProcess, topic: str) -> bool:
    """Whether a client that comes now is served: subscribes, puts, gets, acknowledges, leaves."""
    with Peer(broker.address, zmq.REQ) as peer:
        id_ = peer.ask("LOGIN").removeprefix("LOGIN:")
        assert peer.ask(f"SUB {id_} {topic}") == "ACK"
        assert peer.ask(f"PUT {topic} does it work?") == "ACK"
        ((message, text),) = peer.got(id_, topic)
        assert text == "does it work?"
        assert peer.ask(f"ACK {id_} {topic} {message}") == "ACK"
        return peer.ask(f"UNSUB {id_} {topic}") == "ACK"
