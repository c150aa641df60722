"""StreamReader from the broker, ahead of the program, over as many `do_get` streams as it takes.

1. A thread reads, and puts what it gets into an inbox of a bounded size. When that is full it does not read, and the
   broker does not send.
2. When a stream breaks the next one goes on where the program's view of the log ends: nothing is missed, and nothing
   comes twice.
3. A stream that follows may be silent for long. While the program waits on one, the broker is asked now and then if it
   is there.
"""

import json
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import pyarrow as pa
from pyarrow import flight

from stafeta.clients import forks
from stafeta.clients.flight.channel import TROUBLE, Channel, Pauses, log, may_pass, spawn, translated
from stafeta.clients.flight.read_position import ReadPosition
from stafeta.clients.flight.signals import Signal, Waiting
from stafeta.errors import Disconnected, Refused, StafetaError

_AHEAD: Final = 16 << 20  # bytes in the inbox above which nothing more is read
_BATCHES: Final = 256  # and so many batches, since small ones take more than their bytes


class StreamReader:
    def __init__(self, channel: Channel, position: ReadPosition) -> None:
        self.signal = Signal()
        self.position = position
        self._channel = channel
        self._inbox: deque[pa.RecordBatch] = deque()
        self._size = 0
        self._schema: pa.Schema | None = None
        self._failure: StafetaError | None = None
        self._trouble: StafetaError | None = None
        self._ended = False
        self._running = False
        self._turn = 0  # a thread of an earlier turn counts no more
        self._reader: flight.FlightStreamReader | None = None
        self._probe: Future[None] | None = None
        self._progress = time.monotonic()

    def opening(self) -> Waiting[pa.Schema]:
        """Wait for the stream; what is published from here on is read."""
        began = time.monotonic()
        self._start()
        while self._schema is None:
            self._check()
            self._channel.check()
            left = max(began, self._progress) + self._channel.timeout - time.monotonic()
            if left <= 0:
                self._leave_behind()
                raise self._channel.no_reply(self._trouble)
            yield left
        return self.position.schema(self._schema)

    def next(self) -> Waiting[pa.RecordBatch | None]:
        """The next batch, with all its columns; waits for it. None at the end."""
        began = time.monotonic()
        while True:
            if self._inbox:
                batch = self._inbox.popleft()
                self._size -= batch.nbytes
                self.signal.notify_workers()
                return batch
            if self._ended:
                return None
            self._check()
            self._channel.check()
            self._start()
            yield self._patience(began)

    def restart(self) -> None:
        """Begin anew, as if nothing had been read. The signal's lock is not held."""
        with self.signal.lock:
            self._inbox.clear()
            self._size = 0
            self._schema = self._failure = None
            self.position.restart()
            self._leave_behind()

    def close(self) -> None:
        """End the stream. The signal's lock is not held."""
        if forks.is_forked():
            return
        with self.signal.lock:
            self._ended = True
            self._inbox.clear()
            self._leave_behind()

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _patience(self, began: float) -> float:
        """How long to wait for a batch before looking again."""
        now = time.monotonic()
        since = max(began, self._progress)
        timeout = self._channel.timeout
        if self.position.follow and self._reader is not None and self._schema is not None:
            if self._probe is None and now < since + timeout / 2:
                return since + timeout / 2 - now
            if self._probe is None:
                self._probe = spawn(self._channel.ping, timeout / 2)
                self._probe.add_done_callback(self._probed)
            return timeout
        if now < since + timeout:
            return since + timeout - now
        self._leave_behind()
        raise self._channel.no_reply(self._trouble)

    def _probed(self, probe: "Future[None]") -> None:
        error = probe.exception()
        with self.signal.lock:
            self._probe = None
            if error is None:
                self._progress = time.monotonic()
            elif self._reader is not None:
                log.warning("%s: no answer: %s.", self._channel.address, error)
                self._cancel()
            self.signal.notify_all()

    def _cancel(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(*TROUBLE):
                reader.cancel()

    def _leave_behind(self) -> None:
        self._turn += 1
        self._running = False
        self._cancel()
        self.signal.notify_all()

    # --- the thread that reads

    def _start(self) -> None:
        if not self._running and not self._ended:
            self._running = True
            threading.Thread(
                target=self._run, args=(self._turn,), name="stafeta-reading", daemon=True
            ).start()

    def _run(self, turn: int) -> None:
        pauses = Pauses()
        try:
            while True:
                try:
                    if self._read(turn, pauses):
                        return
                except (*TROUBLE, StafetaError) as error:
                    if not self._recover(translated(error), turn, pauses):
                        return
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            log.exception("StreamReader has failed.")
            self._recover(Refused(f"The client has failed: {error!r}."), turn, pauses)

    def _read(self, turn: int, pauses: Pauses) -> bool:
        """Read one stream to its end; whether that is the end of all."""
        if self.position.latest and not self.position.has_begun:
            self._begin_at_the_end(turn)
        client = self._channel.open()
        try:
            reader = client.do_get(flight.Ticket(self.position.ticket()), self._channel.options())
            if not self._opened(reader, turn, pauses):
                return True
            while not self.position.done:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    break
                if chunk.data is not None and not self._put(chunk.data, _mark(chunk.app_metadata), turn):
                    return True
            else:
                reader.cancel()
        finally:
            client.close()
        if self.position.follow and not self.position.done:
            raise Disconnected("the broker has ended the stream")
        with self.signal.lock:
            if turn == self._turn:
                self._ended = True
                self._reader = None
                self.signal.notify_all()
        return True

    def _begin_at_the_end(self, turn: int) -> None:
        """Where nothing has been read yet, the end of the log as it is now is the mark."""
        if self.position.one_topic:
            found = self._channel.insist("topics", {"filter": self.position.what})
            end = found[0]["next"] if found else 1
        else:
            end = self._channel.insist("stats", {})[0]["position"]
        with self.signal.lock:
            if turn == self._turn:
                self.position.mark = end - 1

    def _opened(self, reader: flight.FlightStreamReader, turn: int, pauses: Pauses) -> bool:
        """Take note of a stream once it has begun."""
        with self.signal.lock:
            if turn != self._turn:
                reader.cancel()
                return False
            self._reader = reader
        schema = reader.schema
        with self.signal.lock:
            if turn != self._turn:
                return False
            self.position.has_begun = True
            self.position.log = (schema.metadata or {}).get(b"mark", b"").decode()
            self._schema = schema.remove_metadata()
            self._progress = time.monotonic()
            if self._trouble is not None:
                mark = self.position.mark
                place = (
                    "at the start"
                    if mark is None
                    else f"after {'offset' if self.position.one_topic else 'position'} {mark}"
                )
                log.info(
                    "%s: connected again; %s goes on %s.", self._channel.address, self.position.what, place
                )
                self._trouble = None
            pauses.reset()
            self.signal.notify_all()
        return True

    def _put(self, batch: pa.RecordBatch, mark: str, turn: int) -> bool:
        """Put a batch into the inbox when there is room; False where nobody wants it any more."""
        with self.signal.lock:
            self._progress = time.monotonic()
            while turn == self._turn and (self._size > _AHEAD or len(self._inbox) >= _BATCHES):
                self.signal.pause(None)
            if turn != self._turn:
                return False
            fresh = self.position.fresh(batch)
            self.position.log = mark
            self._progress = time.monotonic()
            if fresh is not None:
                self._inbox.append(fresh)
                self._size += fresh.nbytes
                self.signal.notify_waiters()
            return True

    def _recover(self, error: StafetaError, turn: int, pauses: Pauses) -> bool:
        """Gets ready for another stream; False where this thread is to end."""
        with self.signal.lock:
            if turn != self._turn:
                return False
            self._reader = None
            if not may_pass(error) or self._channel.closed.is_set():
                self._failure = error
                self._running = False
                self.signal.notify_all()
                return False
            self._trouble = error
            pause = pauses.longer()
            self._channel.log_trouble(error, pause)
            until = time.monotonic() + pause
            self.signal.notify_all()
            while turn == self._turn and (left := until - time.monotonic()) > 0:
                self.signal.pause(left)
            return turn == self._turn


def _mark(metadata: pa.Buffer | None) -> str:
    """The mark of the log that came with a batch."""
    return "" if metadata is None else str(json.loads(metadata.to_pybytes())["mark"])
