"""Carrying batches to the broker: in order, each stored once, over as many `do_put` streams as it takes.

1. A batch stays here until the broker has answered it. When a stream breaks, what has no answer goes again, with the
   same numbers, on the next one: the broker recognises what it has.
2. Writing blocks while the broker does not read, and reading while it has no answer: a thread each.
3. A stream has one schema. Before a batch of another one it is finished, with all answers, and a new one begun.
4. A refusal ends the stream, and does not say which batch is meant. So what was on its way goes again one by one: the
   one that is refused alone is the one. Its whole order is given up, others go on.
5. A stream that hangs cannot be ended from here. It is left behind with its threads, which end when its deadline comes.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from stafeta.clients.flight.bell import Bell, Waiting
from stafeta.clients.flight.link import Link, Pauses, log
from stafeta.clients.flight.orders import Order, Parcel, Parcels, Source
from stafeta.clients.flight.refusals import TROUBLE, may_pass, translated
from stafeta.errors import Disconnected, OutOfSequence, Refused, StafetaError

_AGE: Final = 300.0  # seconds after which a stream is finished and another one begun
_DEADLINE: Final = 2 * _AGE  # seconds that a stream can last, also one that hangs


class _Stream:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.ended = False
        self.broken = False  # nothing that is written or answered on it counts any more
        self.opened = time.monotonic()


class Shipper:
    def __init__(
        self,
        link: Link,
        descriptor: Mapping[str, object],
        expected: dict[str, int] | None = None,
        source: Source | None = None,
    ) -> None:
        self.link = link
        self.bell = Bell()
        self.parcels = Parcels({} if expected is None else expected)
        self.progress = time.monotonic()
        self._descriptor = flight.FlightDescriptor.for_command(json.dumps(descriptor).encode())
        self._topic = descriptor.get("topic")
        self._source = source
        self._trouble: StafetaError | None = None  # the last thing that went wrong, until something goes well
        self._stream: _Stream | None = None
        self._running = False
        self._turn = 0  # a thread of an earlier turn was left behind, and counts no more
        self._careful = 0  # how many parcels are still to go one by one
        self._closing = False

    def add(self, order: Order, topic: str, batch: pa.RecordBatch) -> None:
        """The bell is held, here and in what follows."""
        if not self.parcels:
            self.progress = time.monotonic()
        self.parcels.add(order, topic, batch)
        self.wake()

    def wake(self) -> None:
        """There may be something to send."""
        if not self._running and not self._closing:
            self._running = True
            arguments = (self._turn,)
            threading.Thread(target=self._run, args=arguments, name="stafeta-shipper", daemon=True).start()
        self.bell.rouse()

    def close(self) -> None:
        """Finish the stream, and do nothing more. What is not answered is given up."""
        self._closing = True
        self.bell.ring()

    def waiting(self, done: Callable[[], bool], order: Order, timeout: float | None = None) -> Waiting[None]:
        """Wait until something is done. Raises what the order was refused with, and `NoReply` where the broker has not
        answered for the link's timeout, or it takes more seconds than given."""
        began = time.monotonic()
        while True:
            order.check()
            if done():
                return
            if self._closing:
                raise Disconnected(
                    f"The connection to the broker at {self.link.address} was closed meanwhile."
                )
            now = time.monotonic()
            quiet = max(began, self.progress) + self.link.timeout
            if now >= quiet:
                self._leave_behind()
                raise self.link.no_reply(self._trouble)
            if timeout is not None and now >= began + timeout:
                raise self.link.no_reply(self._trouble, timeout)
            yield (quiet if timeout is None else min(quiet, began + timeout)) - now

    def _leave_behind(self) -> None:
        """The stream hangs: begin anew on another one."""
        self._turn += 1
        self._stream = None
        self._running = False
        self.parcels.written = 0
        log.warning("%s: no answer for %g s; connecting anew.", self.link.address, self.link.timeout)
        self.wake()

    # --- the thread that writes

    def _run(self, turn: int) -> None:
        pauses = Pauses()
        try:
            while self._next(None, turn) is not None:
                try:
                    self._ship(turn, pauses)
                except (*TROUBLE, StafetaError) as error:
                    if not self._recover(translated(error), turn, pauses):
                        return
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            log.exception("The producer has failed.")
            with self.bell.lock:
                if turn == self._turn:
                    self._give_up(Refused(f"The client has failed: {error!r}."))

    def _ship(self, turn: int, pauses: Pauses) -> None:
        """Send over one stream, for as long as there is something to send and it holds."""
        client = self.link.open()
        try:
            with self.bell.lock:
                if turn != self._turn or not self.parcels:
                    return
                schema = self.parcels.first.batch.schema
            writer, answers = client.do_put(self._descriptor, schema, self.link.options(_DEADLINE))
            stream = self._begin(schema, turn)
            if stream is None:
                return
            arguments = (stream, answers, pauses)
            threading.Thread(target=self._listen, args=arguments, name="stafeta-answers", daemon=True).start()
            try:
                while (parcel := self._next(stream, turn)) is not None:
                    writer.write_with_metadata(parcel.batch, pa.py_buffer(self._metadata(parcel)))
            finally:
                with suppress(*TROUBLE):
                    writer.done_writing()
                self._hear_out(stream)
            writer.close()  # raises what the stream has ended with
            with self.bell.lock:
                if stream is self._stream and self.parcels.written:
                    raise Disconnected("the stream has ended before everything was answered")
        finally:
            client.close()

    def _begin(self, schema: pa.Schema, turn: int) -> _Stream | None:
        with self.bell.lock:
            if turn != self._turn:
                return None
            self.parcels.written = 0
            self._stream = _Stream(schema)
            if self._trouble is not None:
                first = self.parcels.first
                log.info(
                    "%s: connected again; %s goes on at row %d.",
                    self.link.address,
                    first.topic,
                    first.sequence,
                )
            return self._stream

    def _next(self, stream: _Stream | None, turn: int) -> Parcel | None:
        """The next parcel to write on the stream, or without one, any that has to be written; waits for it. None when
        the stream is to be finished, or the thread to end."""
        while True:
            with self.bell.lock:
                while True:
                    if turn != self._turn or (stream is not None and (stream.ended or stream.broken)):
                        return None
                    parcel = self.parcels.next if stream is not None else self.parcels.oldest
                    if parcel is not None and not (self._careful and self.parcels.written):
                        if stream is None:
                            return parcel
                        if parcel.batch.schema is not stream.schema and parcel.batch.schema != stream.schema:
                            return None
                        self.parcels.written += 1
                        return parcel
                    due = None if self._source is None or parcel is not None else self._source.due()
                    if due is not None and due <= 0:
                        break
                    if self._closing:
                        self._running = False
                        return None
                    if stream is not None:
                        age = max(0.0, stream.opened + _AGE - time.monotonic())
                        if not age:
                            return None
                        due = age if due is None else min(due, age)
                    self.bell.pause(due)
            assert self._source is not None
            try:
                self._source.cut()
            except StafetaError as error:
                with self.bell.lock:
                    self._source.fail(error)
                    self.bell.ring()

    def _metadata(self, parcel: Parcel) -> bytes:
        if parcel.topic == self._topic:
            return b'{"sequence": %d}' % parcel.sequence
        return json.dumps({"topic": parcel.topic, "sequence": parcel.sequence}).encode()

    # --- answers, and what comes instead of them

    def _listen(self, stream: _Stream, answers: flight.FlightMetadataReader, pauses: Pauses) -> None:
        try:
            while (answer := answers.read()) is not None:
                told: dict[str, Any] = json.loads(answer.to_pybytes())
                with self.bell.lock:
                    if stream is not self._stream or stream.broken:
                        continue
                    if "error" in told or not self.parcels.written:  # the stream ends once it is finished
                        stream.broken = True
                        self.bell.ring()
                        continue
                    self.parcels.answered(told.get("offset"))
                    self.progress = time.monotonic()
                    self._trouble = None
                    pauses.reset()
                    self._tell()
        except (*TROUBLE, ValueError):
            pass  # the writer is told the same when it closes the stream, or that answers are missing
        finally:
            with self.bell.lock:
                stream.ended = True
                self.bell.ring()

    def _tell(self) -> None:
        """There is an answer."""
        self.bell.tell()
        if self._careful or (self._source is not None and self._source.crowded):
            self._careful = max(0, self._careful - 1)
            self.bell.rouse()

    def _hear_out(self, stream: _Stream) -> None:
        """Waits for the last answer of a stream that nothing more is written on."""
        with self.bell.lock:
            while not stream.ended:
                self.bell.pause(None)

    def _recover(self, error: StafetaError, turn: int, pauses: Pauses) -> bool:
        """Gets ready for another stream; False where this thread is to end."""
        with self.bell.lock:
            if turn != self._turn:
                return False
            self._stream = None
            if not may_pass(error):
                self._refused(error)
                return True
            self.parcels.written = 0
            if self._closing or self.link.closed.is_set():
                self._running = False
                return False
            pause = pauses.longer()
            self._trouble = error
            self.link.log_trouble(error, pause)
            until = time.monotonic() + pause
            while not self._is_over(turn) and (left := until - time.monotonic()) > 0:
                self.bell.pause(left)
            return turn == self._turn

    def _is_over(self, turn: int) -> bool:
        return self._closing or turn != self._turn

    def _refused(self, error: StafetaError) -> None:
        if self.parcels.written > 1:
            self._careful = self.parcels.written
            self.parcels.written = 0
            return
        self._careful = 0
        if isinstance(error, OutOfSequence):
            error = OutOfSequence(f"{error} Has the broker lost its data?", error.expected)
        if self.parcels:
            log.warning("%s: refused: %s", self.link.address, error)
            self.parcels.refuse(error)
        self.bell.ring()

    def _give_up(self, error: StafetaError) -> None:
        """Nothing of what is here can be sent."""
        while self.parcels:
            self.parcels.refuse(error)
        if self._source is not None:
            self._source.fail(error)
        self._turn += 1
        self._running = False
        self.bell.ring()
