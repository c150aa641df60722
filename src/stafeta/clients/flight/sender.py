"""Carrying batches to the broker: in order, each stored once, over as many `do_put` streams as it takes.

1. A batch stays here until the broker has answered it. When a stream breaks, what has no answer goes again, with the
   same numbers, on the next one: the broker recognises what it has.
2. Writing blocks while the broker does not read, and reading while it has no answer: a thread each. A few rows that
   have waited for an answer the reading one writes itself, while the other sleeps: nothing is on its way, so the broker
   reads.
3. A stream has one schema. Before a batch of another one it is finished, with all answers, and a new one begun.
4. A refusal ends the stream, and does not say which batch is meant. So what was on its way goes again one by one: the
   one that is refused alone is the one. Its whole request is given up, others go on.
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

from stafeta.clients.flight.batching import PublishBatch, PublishQueue, PublishRequest, Source
from stafeta.clients.flight.channel import TROUBLE, Channel, Pauses, log, may_pass, translated
from stafeta.clients.flight.signals import Signal, Waiting
from stafeta.errors import Disconnected, OutOfSequence, Refused, StafetaError

_AGE: Final = 300.0  # seconds after which a stream is finished and another one begun
_DEADLINE: Final = 2 * _AGE  # seconds that a stream can last, also one that hangs
_SMALL: Final = 16 << 10  # bytes of a batch that is written at once where nothing else is on its way
_LOOK: Final = 1.0  # seconds between two looks whether the thread that reads answers has written


class _Stream:
    def __init__(self, schema: pa.Schema, writer: flight.FlightStreamWriter) -> None:
        self.schema = schema
        self.writer = writer
        self.idle = False  # the thread that writes sleeps: gRPC ends the program where two write at a time
        self.answering = False  # the thread that reads answers is writing, what has waited for one
        self.ended = False
        self.broken = False  # nothing that is written or answered on it counts any more
        self.opened = time.monotonic()


class Sender:
    def __init__(
        self,
        channel: Channel,
        descriptor: Mapping[str, object],
        expected: dict[str, int] | None = None,
        source: Source | None = None,
    ) -> None:
        self.channel = channel
        self.signal = Signal()
        self.queue = PublishQueue({} if expected is None else expected)
        self.progress = time.monotonic()
        self._descriptor = flight.FlightDescriptor.for_command(json.dumps(descriptor).encode())
        self._topic = descriptor.get("topic")
        self._source = source
        self._trouble: StafetaError | None = None  # the last thing that went wrong, until something goes well
        self._stream: _Stream | None = None
        self._running = False
        self._turn = 0  # a thread of an earlier turn was left behind, and counts no more
        self._careful = 0  # how many batches are still to go one by one
        self._closing = False

    def add(self, request: PublishRequest, topic: str | None, batch: pa.RecordBatch) -> None:
        """The signal's lock is held, here and in what follows."""
        if not self.queue:
            self.progress = time.monotonic()
        self.queue.add(request, topic, batch)
        if self._stream is None or not self._stream.answering:
            self.wake()

    def wake(self) -> None:
        """There may be something to send."""
        if not self._running and not self._closing:
            self._running = True
            arguments = (self._turn,)
            threading.Thread(target=self._run, args=arguments, name="stafeta-sender", daemon=True).start()
        self.signal.notify_workers()

    def close(self) -> None:
        """Finish the stream, and do nothing more. What is not answered is given up."""
        self._closing = True
        self.signal.notify_all()

    def waiting(
        self, done: Callable[[], bool], request: PublishRequest, timeout: float | None = None
    ) -> Waiting[None]:
        """Wait until something is done. Raises what the request was refused with, and `NoReply` where the broker has
        not answered for the channel's timeout, or it takes more seconds than given."""
        began = time.monotonic()
        while True:
            request.check()
            if done():
                return
            if self._closing:
                raise Disconnected(
                    f"The connection to the broker at {self.channel.address} was closed meanwhile."
                )
            now = time.monotonic()
            quiet = max(began, self.progress) + self.channel.timeout
            if now >= quiet:
                self._leave_behind()
                raise self.channel.no_reply(self._trouble)
            if timeout is not None and now >= began + timeout:
                raise self.channel.no_reply(self._trouble, timeout)
            yield (quiet if timeout is None else min(quiet, began + timeout)) - now

    def _leave_behind(self) -> None:
        """The stream hangs: begin anew on another one."""
        self._turn += 1
        self._stream = None
        self._running = False
        self.queue.written = 0
        log.warning("%s: no answer for %g s; connecting anew.", self.channel.address, self.channel.timeout)
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
            with self.signal.lock:
                if turn == self._turn:
                    self._give_up(Refused(f"The client has failed: {error!r}."))

    def _ship(self, turn: int, pauses: Pauses) -> None:
        """Send over one stream, for as long as there is something to send and it holds."""
        client = self.channel.open()
        try:
            with self.signal.lock:
                if turn != self._turn or not self.queue:
                    return
                schema = self.queue.first.batch.schema
            writer, answers = client.do_put(self._descriptor, schema, self.channel.options(_DEADLINE))
            stream = self._begin(schema, writer, turn)
            if stream is None:
                return
            arguments = (stream, answers, pauses)
            threading.Thread(target=self._listen, args=arguments, name="stafeta-answers", daemon=True).start()
            try:
                while (unsent := self._next(stream, turn)) is not None:
                    self._write(stream, unsent)
            finally:
                with suppress(*TROUBLE):
                    writer.done_writing()
                self._hear_out(stream)
            writer.close()  # raises what the stream has ended with
            with self.signal.lock:
                if stream is self._stream and self.queue.written:
                    raise Disconnected("the stream has ended before everything was answered")
        finally:
            client.close()

    def _write(self, stream: _Stream, unsent: PublishBatch) -> None:
        stream.writer.write_with_metadata(unsent.batch, pa.py_buffer(self._metadata(unsent)))

    def _begin(self, schema: pa.Schema, writer: flight.FlightStreamWriter, turn: int) -> _Stream | None:
        with self.signal.lock:
            if turn != self._turn:
                return None
            self.queue.written = 0
            self._stream = _Stream(schema, writer)
            if self._trouble is not None:
                first = self.queue.first
                log.info(
                    "%s: connected again; %s goes on at row %d.",
                    self.channel.address,
                    first.topic or "what waits",
                    first.sequence,
                )
            return self._stream

    def _next(self, stream: _Stream | None, turn: int) -> PublishBatch | None:
        """The next batch to write on the stream, or without one, any that has to be written; waits for it. None when
        the stream is to be finished, or the thread to end."""
        while True:
            with self.signal.lock:
                while True:
                    if stream is not None and stream.answering:
                        self._sleep(stream, _LOOK)  # the other thread need not wake this one
                        continue
                    if turn != self._turn or (stream is not None and (stream.ended or stream.broken)):
                        return None
                    unsent = self.queue.next if stream is not None else self.queue.oldest
                    if unsent is not None and not (self._careful and self.queue.written):
                        if stream is None:
                            return unsent
                        if unsent.batch.schema is not stream.schema and unsent.batch.schema != stream.schema:
                            return None
                        self.queue.written += 1
                        return unsent
                    due = None if self._source is None or unsent is not None else self._source.due()
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
                    self._sleep(stream, due)
            self._cut()

    def _sleep(self, stream: _Stream | None, seconds: float | None) -> None:
        if stream is not None:
            stream.idle = True
        self.signal.pause(seconds)
        if stream is not None:
            stream.idle = False

    def _cut(self) -> None:
        assert self._source is not None
        try:
            self._source.cut()
        except StafetaError as error:
            with self.signal.lock:
                self._source.fail(error)
                self.signal.notify_all()

    def _metadata(self, unsent: PublishBatch) -> bytes:
        if unsent.topic == self._topic:
            return b'{"sequence": %d}' % unsent.sequence
        return json.dumps({"topic": unsent.topic, "sequence": unsent.sequence}).encode()

    # --- answers, and what comes instead of them

    def _listen(self, stream: _Stream, answers: flight.FlightMetadataReader, pauses: Pauses) -> None:
        try:
            while (answer := answers.read()) is not None:
                answered: dict[str, Any] = json.loads(answer.to_pybytes())
                with self.signal.lock:
                    if stream is not self._stream or stream.broken:
                        continue
                    if "error" in answered or not self.queue.written:  # the stream ends once it is finished
                        stream.broken = True
                        self.signal.notify_all()
                        continue
                    self.queue.answered(answered.get("offset"))
                    self.progress = time.monotonic()
                    self._trouble = None
                    pauses.reset()
                    here = self._tell(stream)
                if here:
                    self._write_on(stream)
        except (*TROUBLE, ValueError):
            pass  # the writer is told the same when it closes the stream, or that answers are missing
        finally:
            with self.signal.lock:
                stream.ended = True
                self.signal.notify_all()

    def _tell(self, stream: _Stream) -> bool:
        """There is an answer. True where rows have waited for it that this thread is to write: to wake the other one
        would take as long."""
        self.signal.notify_waiters()
        source = self._source
        if not self._careful and (source is None or not source.crowded):
            return False
        busy = not stream.idle or self._careful or self._closing or self.queue
        if source is not None and not busy and _is_due(source):
            stream.answering = True
            return True
        self._careful = max(0, self._careful - 1)
        self.signal.notify_workers()
        return False

    def _write_on(self, stream: _Stream) -> None:
        """Write the rows that have waited, if they are few. It does not wait for the broker: nothing is on its way."""
        try:
            self._cut()
            with self.signal.lock:
                unsent = self.queue.next
                if unsent is None or unsent.size > _SMALL or unsent.batch.schema != stream.schema:
                    return
                if stream is not self._stream:
                    return
                self.queue.written += 1
            self._write(stream, unsent)
        finally:
            with self.signal.lock:
                stream.answering = False
                more = self.queue.next is not None or self._closing or stream is not self._stream
                if more or self._source is None or _is_due(self._source):
                    self.signal.notify_workers()

    def _hear_out(self, stream: _Stream) -> None:
        """Waits for the last answer of a stream that nothing more is written on."""
        with self.signal.lock:
            while not stream.ended:
                self.signal.pause(None)

    def _recover(self, error: StafetaError, turn: int, pauses: Pauses) -> bool:
        """Gets ready for another stream; False where this thread is to end."""
        with self.signal.lock:
            if turn != self._turn:
                return False
            self._stream = None
            if not may_pass(error):
                self._refused(error)
                return True
            self.queue.written = 0
            if self._closing or self.channel.closed.is_set():
                self._running = False
                return False
            pause = pauses.longer()
            self._trouble = error
            self.channel.log_trouble(error, pause)
            until = time.monotonic() + pause
            while not self._is_over(turn) and (left := until - time.monotonic()) > 0:
                self.signal.pause(left)
            return turn == self._turn

    def _is_over(self, turn: int) -> bool:
        return self._closing or turn != self._turn

    def _refused(self, error: StafetaError) -> None:
        if self.queue.written > 1:
            self._careful = self.queue.written
            self.queue.written = 0
            return
        self._careful = 0
        if isinstance(error, OutOfSequence):
            error = OutOfSequence(f"{error} Has the broker lost its data?", error.expected)
        if self.queue:
            log.warning("%s: refused: %s", self.channel.address, error)
            self.queue.refuse(error)
        self.signal.notify_all()

    def _give_up(self, error: StafetaError) -> None:
        """Nothing of what is here can be sent."""
        while self.queue:
            self.queue.refuse(error)
        if self._source is not None:
            self._source.fail(error)
        self._turn += 1
        self._running = False
        self.signal.notify_all()


def _is_due(source: Source) -> bool:
    """Whether rows are to be sent now; else those that come are to wait for an answer, or for more of them."""
    due = source.due()
    return due is not None and due <= 0
