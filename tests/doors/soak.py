"""Makes and drops connections, calls and subscriptions at every door, and watches what that leaves in the broker.

python -m tests.doors.soak [--minutes N] [--seed N] [--plot FILE]

Threads of this program come and go as clients do: some say goodbye, some are cut off in the middle of a message, of a
reply, of a stream. The broker's memory, open files and threads are looked at each second. At the end, when nobody is
connected, there may be at most 5 % more of each than after the first part of the run, or five files and threads.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import pyarrow as pa
import zmq

import stafeta
from benchmarks.picture import OURS, picture
from stafeta.errors import StafetaError
from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Publisher, StructSubscriber, Subscriber
from tests.doors.frames.peers import Peer as Frames
from tests.doors.zeromq.peers import Peer as ZeroMQ
from tests.doors.zeromq.peers import request

DOORS: Final = ("devices", "frames", "flight")
TOPICS: Final = 20
CLIENTS: Final = 50  # names, of each door: what a broker keeps of a client is not a leak
WARM: Final = 0.2  # of the run, in which caches fill; after it nothing may grow
GROWTH: Final = 0.05
FEW: Final = 5  # files or threads: the store opens and closes its own
LULL: Final = 1.0  # seconds, again and again, in which nobody is connected, so that what is left can be seen
SPELL: Final = 10.0  # seconds of load between two of them
WAITING: Final = 10.0  # seconds for anything that should come at once


class Look(NamedTuple):
    """What a broker has, at a time."""

    seconds: float
    memory: float  # MB
    files: int
    threads: int
    quiet: bool  # nobody is connected


def look(pid: int, seconds: float, *, quiet: bool) -> Look:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    )
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Look(seconds, memory, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), quiet)


class Crowd:
    """Those who come and go, until they are told to pause or to end."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._going = threading.Event()
        self._ended = False
        self._here = threading.Semaphore(0)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        kinds = (self._device, self._frames, self._zeromq, self._flight)
        self._threads = [
            threading.Thread(target=self._come_and_go, args=(kind, random.Random(f"{seed} {number}")))
            for number, kind in enumerate(kinds * 2)
        ]
        for thread in self._threads:
            thread.start()

    def let_go(self) -> None:
        self._going.set()

    def pause(self) -> None:
        """Returns when nobody is connected."""
        self._going.clear()
        for _ in self._threads:
            self._here.acquire()

    def end(self) -> None:
        self._ended = True
        self._going.set()
        for thread in self._threads:
            thread.join()

    def _come_and_go(self, visit: Callable[[random.Random], str], chance: random.Random) -> None:
        while True:
            self._going.wait()
            if self._ended:
                return
            while self._going.is_set():
                try:
                    self.done[visit(chance)] += 1
                except Exception as error:  # noqa: BLE001 - told at the end
                    self.wrong.append(f"{visit.__name__}: {error!r}")
            self._here.release()

    def _topic(self, chance: random.Random) -> str:
        return f"t{chance.randrange(TOPICS)}"

    def _device(self, chance: random.Random) -> str:
        place, topic = self._broker.door("devices"), self._topic(chance)
        kind = chance.choice((Subscriber, StructSubscriber))
        with Publisher(place) as publisher:
            device = kind(place, f"D{chance.randrange(CLIENTS)}-{threading.get_ident() % 997}")
            device.socket.settimeout(0.5)
            with suppress(OSError):
                device.subscribe(topic, chance.randrange(2))
            for _ in range(20):
                publisher.send(topic, 3, b"x" * chance.choice((1, 100, 1400)))
            # The id may be connected still, and what was sent before the subscription took effect never comes.
            with suppress(EOFError, OSError):
                device.receive(chance.randrange(5))
                device.unsubscribe(topic)
                if chance.random() < 0.3:
                    device.say(device.subscription(topic)[:3])  # and the rest never comes
            device.reset() if chance.random() < 0.5 else device.close()
        return "devices"

    def _frames(self, chance: random.Random) -> str:
        topic = self._topic(chance)
        with Frames(self._broker.door("frames"), chance.randrange(3)) as peer:
            peer.socket.settimeout(WAITING)
            peer.subscribe(topic)
            peer.publish(topic, *["x" * chance.choice((1, 100, 30_000))] * chance.randrange(10))
            match chance.randrange(3):
                case 0:
                    peer.topics()
                case 1:
                    peer.socket.sendall(peer.framed("publish", topic=topic, message="half")[:-3])
        return "frames"

    def _zeromq(self, chance: random.Random) -> str:
        topic, client = self._topic(chance), f"z{chance.randrange(CLIENTS)}"
        with ZeroMQ(self._broker.address, zmq.DEALER, WAITING) as peer:
            peer.ask(f"SUB {client} {topic}")
            peer.ask(f"PUT {topic} {'x' * chance.choice((1, 100, 100_000))}")
            match chance.randrange(3):
                case 0:
                    peer.send(f"GET {client} {topic}")  # and the reply is never read
                case 1:
                    peer.ask(request("GET", topic, client))
                case 2:
                    peer.send(b"\xff" * 1000)
            peer.ask(f"UNSUB {client} {topic}")
        return "zeromq"

    def _flight(self, chance: random.Random) -> str:
        host, port = self._broker.door("flight")
        topic, name = self._topic(chance), f"f{chance.randrange(CLIENTS)}-{threading.get_ident() % 997}"
        with stafeta.connect(f"grpc://{host}:{port}", timeout=WAITING) as peer:
            match chance.randrange(4):
                case 0:
                    with peer.subscribe(topic, name=name) as named:
                        peer.publish(topic, ["x"] * 100)
                        next(named).ack()
                case 1:
                    with peer.subscribe(topic) as live, suppress(StafetaError):
                        peer.publish(topic, pa.array(["y"] * 1000))
                        next(live)
                case 2:
                    transaction = peer.transaction(name)
                    transaction.write(topic, ["z"] * 10)
                    transaction.abort() if chance.random() < 0.5 else transaction.commit()
                case 3:
                    with peer.producer(topic) as producer:
                        producer.send_many(["p"] * 1000)
            with suppress(StafetaError):
                peer.unsubscribe(topic, name=name)
        return "flight"


def soak(seconds: float, seed: int, folder: Path) -> tuple[list[Look], Crowd]:
    """Looks at a broker while they come and go, at the load's height and in the lulls between."""
    looks: list[Look] = []
    with BrokerProcess(folder / "data", "--log-level", "error", doors=DOORS) as broker:
        crowd = Crowd(broker, seed)
        began = time.monotonic()

        def watch(until: float, *, quiet: bool) -> None:
            while (now := time.monotonic()) < until:
                looks.append(look(broker.pid, now - began, quiet=quiet))
                time.sleep(1.0 if not quiet else LULL / 3)

        try:
            while time.monotonic() - began < seconds:
                crowd.let_go()
                watch(time.monotonic() + min(SPELL, seconds / 10), quiet=False)
                crowd.pause()
                watch(time.monotonic() + LULL, quiet=True)
        finally:
            crowd.end()
    return looks, crowd


def judged(looks: Sequence[Look]) -> dict[str, tuple[float, float]]:
    """What there was in lulls after the first part of the run, and at its end: memory, files, threads."""
    quiet = [one for one in looks if one.quiet]
    whole = looks[-1].seconds
    early = [one for one in quiet if WARM * whole <= one.seconds <= 2 * WARM * whole + SPELL]
    late = [one for one in quiet if one.seconds >= (1 - WARM / 2) * whole - SPELL]
    return {
        field: (median(getattr(one, field) for one in early), median(getattr(one, field) for one in late))
        for field in ("memory", "files", "threads")
    }


def draw(looks: Sequence[Look], path: Path) -> None:
    with picture(path, 4.5, quick=False) as figure:
        panels = {"memory": "Memory, MB", "files": "Open files", "threads": "Threads"}
        for axes, (field, title) in zip(figure.subplots(3, 1, sharex=True), panels.items(), strict=True):
            for quiet, style in ((False, {"alpha": 0.35}), (True, {"marker": ".", "linestyle": ""})):
                chosen = [one for one in looks if one.quiet == quiet]
                times = [one.seconds / 60 for one in chosen]
                axes.plot(times, [getattr(one, field) for one in chosen], color=OURS, linewidth=1, **style)
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_ylim(0)
            axes.grid(alpha=0.3)
        axes.set_xlabel("minutes; dots: nobody is connected")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.doors.soak", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what chance decides (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as SVG")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        looks, crowd = soak(options.minutes * 60, options.seed, Path(folder))
    if options.plot is not None:
        draw(looks, options.plot)
    figures = judged(looks)
    print(json.dumps({"visits": dict(crowd.done), "failed": len(crowd.wrong)}))
    for field, (early, late) in figures.items():
        print(f"{field}: {early:.0f}, at the end {late:.0f}")
    for problem in crowd.wrong[:10]:
        print(problem, file=sys.stderr)
    grown = [
        field for field, (early, late) in figures.items() if late > max(early * (1 + GROWTH), early + FEW)
    ]
    if grown or crowd.wrong:
        print(
            f"Failed: {', '.join([*(f'{one} has grown' for one in grown), *crowd.wrong[:1]])}.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
