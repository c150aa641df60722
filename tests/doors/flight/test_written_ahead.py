"""Large batches are written before their commit: nobody else waits for that, and their order stays."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import uvloop

import stafeta
from stafeta.broker import Broker
from stafeta.priority import BEHIND
from stafeta.store.sqlite import SqliteStore
from stafeta.store.sqlite.segments import FOLDER
from tests.brokers import BrokerProcess
from tests.doors.opened import DOORS
from tests.waiting import PATIENCE, comes_true

LARGE = [b"%06d" % number + bytes(994) for number in range(500)]  # half a megabyte
SMALL = [b"%06d" % number for number in range(500, 505)]


class HeldDisk:
    """Syncs of segments wait until they may go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.began, self.free = threading.Event(), threading.Event()
        self._real: Callable[[int], None] = os.fdatasync
        patch.setattr(os, "fdatasync", self._fdatasync)

    def _fdatasync(self, file: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).parent.name == FOLDER:
            self.began.set()
            assert self.free.wait(PATIENCE)
        self._real(file)


def test_others_are_stored_while_a_large_batch_is_written_and_what_comes_behind_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk(monkeypatch)

    async def work() -> list[bytes]:
        broker = await Broker.open(SqliteStore(tmp_path, durability="os"))
        for name in ("bulk", "single"):
            broker.subscribe("keeper", name)
        door, (host, port) = await DOORS["flight"](broker)
        try:
            writing = asyncio.create_task(asyncio.to_thread(_publish, f"grpc://{host}:{port}"))
            assert await asyncio.to_thread(disk.began.wait, PATIENCE)
            broker.publish("single", b"x")
            await broker.commit()  # which would hang where it waited for the disk
            assert broker.topic("bulk").visible == 1, "neither the large batch nor the one behind it"
            disk.free.set()
            await writing
            await comes_true(lambda: broker.topic("bulk").visible == len(LARGE) + len(SMALL) + 1)
            found = await broker.read(broker.topic("bulk"), 1, 10 << 20)
            return [payload for batch in found for payload in batch.payloads]
        finally:
            disk.free.set()
            await door.close()
            await broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == LARGE + SMALL


def _publish(place: str) -> None:
    with stafeta.connect(place) as peer, peer.producer("bulk") as producer:
        for payloads in (LARGE, SMALL):
            producer.write(pa.record_batch({"payload": pa.array(payloads, pa.binary())}))
        producer.flush()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_threads_that_move_bulk_go_behind_the_loop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, doors=("flight",)) as broker:
        _publish(broker.flight)
        niceness: dict[str, set[int]] = {}  # by name
        for thread in Path(f"/proc/{broker.pid}/task").iterdir():
            with suppress(OSError):  # it has ended meanwhile
                name = "loop" if thread.name == str(broker.pid) else (thread / "comm").read_text()[:6]
                niceness.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
        (loop,) = niceness["loop"]
        assert niceness["grpcpp"] == {min(loop + BEHIND, 19)}
