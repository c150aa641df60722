"""Subscribers in a benchmark: each gets what there is, acknowledges it, and gets the next."""

from time import perf_counter

import zmq
from zmq.backend import Socket as RawSocket

from benchmarks.load import LoadFailed, Pace
from benchmarks.percentiles import percentile

_PATIENCE = 120_000


def read(address: str, clients: list[str], topic: str, total: int) -> Pace:
    """Reads and acknowledges so many messages as each of these clients, all at the same time.

    The latency is that of a turn: from a GET to the reply to the ACK of all that it brought.
    """
    with zmq.Context() as context:
        readers = [_Reader(context, address, client, topic, total) for client in clients]
        try:
            start = perf_counter()
            by_socket: dict[RawSocket, _Reader] = {reader.socket: reader for reader in readers}
            for reader in readers:
                reader.get()
            while by_socket:
                ready = zmq.zmq_poll([(socket, zmq.POLLIN) for socket in by_socket], _PATIENCE)
                if not ready:
                    raise LoadFailed("The broker does not answer.")
                for socket, _ in ready:
                    if by_socket[socket].go_on():
                        del by_socket[socket]
            took = perf_counter() - start
        finally:
            for reader in readers:
                reader.socket.close(linger=0)
    turns = sorted(turn for reader in readers for turn in reader.turns)
    return Pace(total * len(clients), took, percentile(turns, 50), percentile(turns, 99))


class _Reader:
    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, client: str, topic: str, total: int
    ) -> None:
        self.socket = context.socket(zmq.REQ)
        self.socket.connect(address)
        self.turns: list[float] = []
        self._aim = f"{client} {topic}".encode()
        self._total = total
        self._last = 0
        self._acknowledging = False
        self._since = 0.0

    def get(self) -> None:
        self._since = perf_counter()
        self.socket.send(b"GET " + self._aim)

    def go_on(self) -> bool:
        """Takes the reply that is there and sends the next request; True when all is read."""
        reply = self.socket.recv()
        if not self._acknowledging:
            ids = _ids(reply)
            self._check(ids, reply)
            self._last = ids[-1]
            self.socket.send(b"ACK %b %b" % (self._aim, b",".join(b"%d" % number for number in ids)))
        elif reply != b"ACK":
            raise LoadFailed(f"The broker answered {reply[:200]!r} to an ACK.")
        else:
            self.turns.append(perf_counter() - self._since)
            if self._last == self._total:
                return True
            self.get()
        self._acknowledging = not self._acknowledging
        return False

    def _check(self, ids: list[int], reply: bytes) -> None:
        if ids != list(range(self._last + 1, self._last + 1 + len(ids))):
            raise LoadFailed(f"After message {self._last} the broker sent {reply[:200]!r}.")


def _ids(reply: bytes) -> list[int]:
    try:
        return [int(entry.partition(b"::")[0]) for entry in reply.split(b":/")]
    except ValueError:
        raise LoadFailed(f"The broker answered {reply[:200]!r} to a GET.") from None
