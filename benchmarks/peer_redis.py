"""Redis Streams with redis-py and its parser in C."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peer import (
    CLIENT,
    FSYNCED,
    MEMORY,
    PATIENCE,
    TOPIC,
    Peer,
    Timed,
    age,
    expect,
    has_module,
    paced,
    portions,
)
from benchmarks.peer_server import find, running, said_version

PIPELINED = 1000  # XADDs in a pipeline, and messages of one XREADGROUP
_FIELD = "p"
_GROUP = "group"


class Redis(Peer, Timed):
    """A stream with a consumer group."""

    system = "Redis Streams"
    publishing = f"XADD, pipelines of {PIPELINED:,}"
    consuming = f"XREADGROUP of {PIPELINED:,}, XACK"
    timing = "XADD; XREADGROUP BLOCK, XACK"

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        kept = "appendonly yes, appendfsync always" if durable else "appendonly no"
        self.settings = kept
        self.promise = self.remembers = FSYNCED if durable else MEMORY

    def version(self) -> str | None:
        path = find("redis-server")
        return said_version(path, "--version") if path and has_module("redis", "hiredis") else None

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        path = find("redis-server")
        assert path is not None
        kept = ("yes", "always") if self.durable else ("no", "no")

        def command(port: int) -> list[str]:
            options = {
                "bind": "127.0.0.1",
                "port": str(port),
                "dir": str(folder),
                "save": "",
                "appendonly": kept[0],
                "appendfsync": kept[1],
                "auto-aof-rewrite-percentage": "0",  # it would only be in the way
            }
            return [path, *(word for name, value in options.items() for word in (f"--{name}", value))]

        with running(folder, command) as port:
            yield str(port)

    def prepare(self, address: str) -> None:
        with _connect(address) as client:
            client.xgroup_create(TOPIC, _GROUP, id="$", mkstream=True)

    def publish(self, address: str, total: int) -> float:
        with _connect(address) as client, client.pipeline(transaction=False) as pipe:
            client.ping()
            add = pipe.execute_command
            start = perf_counter()
            for portion in portions(total, PIPELINED):
                for payload in portion:
                    add("XADD", TOPIC, "*", _FIELD, payload)
                pipe.execute()
            took = perf_counter() - start
            expect(total, client.xlen(TOPIC), self.system)
            return took

    def consume(self, address: str, total: int) -> float:
        """Acknowledges a portion in the same round trip that asks for the next one."""
        with _connect(address) as client, client.pipeline(transaction=False) as pipe:
            client.ping()
            got = 0
            start = perf_counter()
            pipe.xreadgroup(_GROUP, CLIENT, {TOPIC: ">"}, count=PIPELINED)
            while got < total:
                entries = _entries(pipe.execute()[-1])
                if not entries:
                    break
                got += len(entries)
                pipe.xack(TOPIC, _GROUP, *[number for number, _ in entries])
                if got < total:
                    pipe.xreadgroup(_GROUP, CLIENT, {TOPIC: ">"}, count=PIPELINED)
            pipe.execute()
            took = perf_counter() - start
            expect(total, got, self.system)
            expect(0, client.xpending(TOPIC, _GROUP)["pending"], self.system)
            return took

    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        with _connect(address) as client:
            for payload in paced(begin, rate, total):
                client.execute_command("XADD", TOPIC, "*", _FIELD, payload)

    def receive(self, address: str, total: int) -> "array[int]":
        ages = array("q")
        with _connect(address) as client, client.pipeline(transaction=False) as pipe:
            while len(ages) < total:
                pipe.xreadgroup(_GROUP, CLIENT, {TOPIC: ">"}, count=PIPELINED, block=int(PATIENCE * 1000))
                entries = _entries(pipe.execute()[-1])
                if not entries:
                    break
                ages.extend(age(fields[_FIELD.encode()]) for _, fields in entries)
                pipe.xack(TOPIC, _GROUP, *[number for number, _ in entries])
            pipe.execute()
        expect(total, len(ages), self.system)
        return ages


def _connect(address: str) -> Any:
    import redis

    return redis.Redis(port=int(address), socket_timeout=PATIENCE * 2)


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """What an XREADGROUP of one stream has found: numbers and fields."""
    return answer[0][1] if answer else []
