"""A small PUT by ZeroMQ while bulk comes in through each of the doors, as fast as it is taken."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import zmq

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.flight_mixed import Puts, put
from benchmarks.frames import TOPIC, Subs
from benchmarks.load import Load, pace
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

QUICK_ENOUGH: Final = Bar("p99_ms", "<", 50, " ms")
RATE: Final = 20  # PUTs a second
LARGE: Final = 60_000  # bytes of a message, where bulk comes in messages
AHEAD: Final = 8  # of them on their way from each ZeroMQ client
PUBLISHERS: Final = 3
_BULK: Final = "bulk"


def run(setting: Setting) -> list[Table]:
    rounds = setting.sized(3, 1)
    measures: dict[str, list[Puts]] = {name: [] for name in _BESIDES}
    for number in range(rounds):
        for name, measured in measures.items():
            setting.say(f"round {number + 1} of {rounds}, beside {name}")
            measured.append(_measure(setting, _BESIDES[name]))
    return [_table(measures)]


def _measure(setting: Setting, besides: Sequence[Callable[..., None]]) -> Puts:
    seconds, lead = setting.sized((10.0, 1.0), (0.3, 0.2))
    doors = ("flight", "frames", "devices")
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(dir=setting.folder))
        broker = stack.enter_context(Broker(Path(folder), *doors))
        putter = stack.enter_context(Load())
        putter.run(pace, broker.address, Subs(1, "keeper", TOPIC))
        putter.run(pace, broker.address, Subs(1, "keeper", _BULK))
        places = {name: broker.door(name) for name in doors}
        loads = [stack.enter_context(Load()) for _ in besides]
        started = [
            load.start(work, broker.address, places, lead + seconds + lead)
            for load, work in zip(loads, besides, strict=True)
        ]
        time.sleep(lead)  # until they run flat out
        puts = putter.run(put, broker.address, RATE, seconds)
        for ended in started:
            ended()
    return puts


def flight(address: str, places: dict[str, tuple[str, int]], seconds: float) -> None:
    host, port = places["flight"]
    bulk.write(f"grpc://{host}:{port}", _BULK, seconds=seconds)


def frames(address: str, places: dict[str, tuple[str, int]], seconds: float) -> None:
    """Three publishers of large frames."""
    body = json.dumps({"command": "publish", "topic": _BULK, "message": "x" * LARGE}).encode()
    frame = struct.pack(">BH", 0, len(body)) + body

    def publish() -> None:
        with socket.create_connection(places["frames"], timeout=seconds + 60) as line:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                line.sendall(frame)

    _together(publish)


def devices(address: str, places: dict[str, tuple[str, int]], seconds: float) -> None:
    """One sender of datagrams; what the broker has no room for is lost."""
    datagram = _BULK.encode().ljust(50, b"\0") + bytes([3]) + b"x" * PAYLOAD
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(places["devices"])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError):
                for _ in range(100):
                    line.send(datagram)


def zeromq(address: str, places: dict[str, tuple[str, int]], seconds: float) -> None:
    """Three clients with large PUTs, several on their way at once."""
    request = f"PUT {_BULK} {'x' * LARGE}".encode()
    context = zmq.Context()

    def publish() -> None:
        with context.socket(zmq.DEALER) as line:
            line.linger = 0
            line.rcvtimeo = 120_000
            line.connect(address)
            until = time.monotonic() + seconds
            for _ in range(AHEAD):
                line.send_multipart([b"", request])
            while time.monotonic() < until:
                line.recv_multipart()
                line.send_multipart([b"", request])
            for _ in range(AHEAD):
                line.recv_multipart()

    _together(publish)
    context.term()


def _together(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


_BESIDES: Final[dict[str, tuple[Callable[..., None], ...]]] = {
    "nothing": (),
    "ZeroMQ": (zeromq,),
    "frames": (frames,),
    "devices": (devices,),
    "Flight": (flight, flight),
}


def _table(measures: dict[str, list[Puts]]) -> Table:
    rows = []
    for name, rounds in measures.items():
        middle = sorted(rounds, key=lambda each: each.p99)[(len(rounds) - 1) // 2]
        values: dict[str, Value] = {
            "beside": name,
            "rate": middle.rate,
            "p50_ms": middle.p50 * 1000,
            "p99_ms": middle.p99 * 1000,
            "max_ms": max(each.largest for each in rounds) * 1000,
        }
        rows.append(Row(values, (QUICK_ENOUGH,) if name != "nothing" else ()))
    return Table(
        f"PUT of {PAYLOAD} bytes by ZeroMQ, beside bulk through each door",
        f"One client, text dialect, {RATE} PUTs a second; latency is from when a PUT was due. The round in the middle "
        f"by p99 of {len(rounds)}; the slowest PUT of all rounds. Bulk is held for a subscriber: {PUBLISHERS} ZeroMQ "
        f"clients with {AHEAD} PUTs of {LARGE:,} bytes each on their way; {PUBLISHERS} publishers of frames of "
        f"{LARGE:,} bytes; one sender of datagrams of {PAYLOAD} bytes; two Flight producers of batches of "
        f"{bulk.ROWS:,} messages.",
        (
            Column("beside", "bulk through"),
            Column("rate", "PUTs/s"),
            Column("p50_ms", "p50 ms", 2),
            Column("p99_ms", "p99 ms", 2),
            Column("max_ms", "max ms", 2),
        ),
        tuple(rows),
        labels=1,
    )
