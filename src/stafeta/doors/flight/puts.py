"""One `do_put`: batches in, answers out.

1. The call's own thread reads and checks batches, has the store write large ones ahead, and queues them for the
   broker's loop, which takes one of each stream in turn, and so much into a group that whoever else publishes does not
   wait for long.
2. A second thread writes the answers, in order, as the batches become durable. It may wait for the client; nothing
   else waits for it.
3. What can be seen to be wrong before it is queued ends the call at once. What is refused later, or could not be
   stored, is sent in place of an answer, since the call's thread may be waiting for a batch; the call ends when it is
   no longer.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from stafeta.columns import ColumnBatch
from stafeta.doors.flight import codec
from stafeta.doors.flight.actions import client_of
from stafeta.doors.flight.codec import Note, Target
from stafeta.doors.flight.decode_batches import apart, check_schema, take
from stafeta.errors import InvalidRequest, LimitReached, StafetaError, StoreError
from stafeta.message import RowBatch
from stafeta.names import check_name

if TYPE_CHECKING:
    from stafeta.broker import Verbs
    from stafeta.doors.flight.server import FlightDoor

log = logging.getLogger("stafeta.flight")

WINDOW: Final = 8 << 20  # bytes that may wait for the loop, before the next batch is left with the client
APART: Final = (
    10_000  # messages of several topics that come together: the broker takes them apart in one turn
)
PAUSE: Final = 0.25  # seconds between two looks at whether a stream that is slowed down is over
LARGE: Final = 64 << 10  # bytes from which on the store is asked to write a batch ahead
UNREAD: Final = 65_536  # answers that a client may leave unread


@dataclass(slots=True)
class Item:
    """A batch on its way to the loop."""

    topic: str
    batch: ColumnBatch
    apart: list[RowBatch] | None
    """The same, where it is of several topics."""
    sequence: int | None
    size: int
    ready: bool = True
    """It is not being written ahead any more."""


class PutStream:
    def __init__(self, door: "FlightDoor", verbs: "Verbs", target: Target, source: str, writer: Any) -> None:
        self._door = door
        self._verbs = verbs
        self._target = target
        self._source = source
        self._writer = writer
        self._failed: StafetaError | None = None
        self._queue: deque[Item | None] = deque()  # for the loop to take; None is the end
        self._called = False  # the loop will look at it
        self._queued = 0  # bytes in it
        self._room = threading.Condition()
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._taken = self._answered = 0  # batches
        self._paid_at = 0.0  # when the client may send more
        self._thread = threading.Thread(target=self._write_answers, name="flight-answers", daemon=True)

    def run(self, reader: Any) -> None:
        """Returns when all that came is durable and answered, or raises why it is not."""
        check_schema(reader.schema)
        topic, producer, stage = self._target
        self._target = Target(
            topic,
            None if producer is None else client_of(producer),
            None if stage is None else stage._replace(producer=client_of(stage.producer)),
        )
        self._thread.start()
        try:
            while self._failed is None:
                self._slow_down()
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    break
                if chunk.data is None:
                    raise InvalidRequest("There is metadata without a batch.")
                self._take(chunk.data, codec.read_note(_bytes(chunk.app_metadata)))
                if self._verbs.pace is not None:
                    self._paid_at = time.monotonic() + self._verbs.pace.wait(
                        chunk.data.get_total_buffer_size()
                    )
        finally:
            # Behind everything that was taken: all of it has been answered when the thread ends.
            self._queue.append(None)
            self._door.loop.call_soon_threadsafe(self._look)
            self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _take(self, data: Any, note: Note) -> None:
        if self._is_over():  # while the batch was read
            return
        topic = note.topic if note.topic is not None else self._target.topic
        stage = self._target.stage
        if topic is None and (stage is None or "topic" not in data.schema.names):
            raise InvalidRequest("Neither the descriptor nor the batch's metadata names a topic.")
        if note.sequence is not None and self._target.producer is None and self._target.stage is None:
            raise InvalidRequest("A sequence needs a producer: name one in the descriptor's command.")
        if self._answers.qsize() > UNREAD:
            raise LimitReached(f"{UNREAD} answers have not been read. Read them while you write.")
        if topic is not None:
            check_name(topic)
        batch = take(data, topic, time.time_ns() // 1000, self._door.max_batch)
        self._verbs.check_longest(batch)
        pieces: list[RowBatch] | None = None
        if topic is None and stage is not None:
            if data.num_rows > APART:
                raise LimitReached(
                    f"The batch has {data.num_rows} messages of several topics; at most {APART} are allowed. Send "
                    "it in several."
                )
            pieces = apart(batch, data.column("topic"), stage.producer, self._source)
            for piece in pieces:
                check_name(piece.topic)
        if self._taken == self._answered and self._target.stage is None:
            # Nothing else is on its way, so it can be seen here, without waiting for the loop.
            if self._is_over():  # that was the last answer, and the client has it
                return
            self._verbs.check_append(batch.topic, self._target.producer or "", note.sequence)
        self._taken += 1
        item = Item(batch.topic, batch, pieces, note.sequence, data.get_total_buffer_size())
        with self._room:
            self._room.wait_for(lambda: self._queued < WINDOW or self._failed is not None)
            self._queued += item.size
        if stage is None:
            self._write_ahead(item)
        self._queue.append(item)
        self._wake()

    def _write_ahead(self, item: Item) -> None:
        if item.batch.size < LARGE:
            return
        # The disk is not for those who may not publish. (In which order batches come the loop sees.)
        self._verbs.check_append(item.topic, self._target.producer or "", None)
        item.ready = False
        if not self._door.broker.write_ahead(item.batch, partial(self._set_ready, item)):
            item.ready = True

    def _set_ready(self, item: Item) -> None:
        """In the store's thread."""
        item.ready = True
        self._wake()

    def _wake(self) -> None:
        if not self._called:
            self._called = True
            self._door.loop.call_soon_threadsafe(self._look)

    def _slow_down(self) -> None:
        """Leave the next batch with a client who has sent more than he may."""
        while (
            not self._is_over() and not self._door.closing and (left := self._paid_at - time.monotonic()) > 0
        ):
            time.sleep(min(left, PAUSE))

    def _is_over(self) -> bool:
        return self._failed is not None

    # --- on the loop

    def _look(self) -> None:
        self._called = False
        if self._has_next():
            self._door.take_turns(self)

    def _has_next(self) -> bool:
        queue = self._queue
        return bool(queue) and (queue[0] is None or queue[0].ready)

    def place_one(self) -> bool:
        """Place the next batch; true where there are more."""
        item = self._queue.popleft()
        if item is None:
            self._verbs.answer(lambda error: self._answers.put(None))
            return False
        if self._failed is None:
            self._place(item)
        with self._room:
            self._queued -= item.size
            self._room.notify()
        return self._has_next()

    def _place(self, item: Item) -> None:
        topic, batch, pieces, sequence = item.topic, item.batch, item.apart, item.sequence
        offset: int | None = None
        stage, producer = self._target.stage, self._target.producer
        try:
            self._door.check_open()
            if stage is not None and pieces is not None:
                self._verbs.stage_apart(*stage[:3], pieces, sequence, stage.attempt)
            elif stage is not None:
                staged = batch.placed(0, 0, 0, stage.producer, self._source, None)
                self._verbs.stage_batch(*stage[:3], topic, staged, sequence, stage.attempt)
            else:
                offset = self._verbs.append(topic, batch, self._source, producer or "", sequence)
        except Exception as problem:  # noqa: BLE001 - whoever waits must get it
            self._fail(problem if isinstance(problem, StafetaError) else _mistake(problem))
            return
        answer = codec.answer(topic, offset, batch.count, staged=stage is not None)
        self._verbs.answer(partial(self._settle, answer))

    def _settle(self, answer: bytes, error: StafetaError | None) -> None:
        if error is None:
            self._answers.put(answer)
        else:
            self._fail(error)

    def _fail(self, error: StafetaError) -> None:
        """The stream is over; the first error is the one that is sent."""
        if self._failed is None:
            self._failed = error
            self._answers.put(codec.write_error(error))
        with self._room:
            self._room.notify()

    # --- in the thread that answers

    def _write_answers(self) -> None:
        writer = self._writer
        while (answer := self._answers.get()) is not None:
            self._answered += 1
            if writer is None:
                continue
            try:
                writer.write(answer)
            except Exception as error:  # noqa: BLE001 - the client has gone; what came from it counts all the same
                log.debug("an answer could not be written: %s", error)
                writer = None


def _mistake(problem: Exception) -> StafetaError:
    log.error("a batch was refused for a reason that it should not have been", exc_info=problem)
    return StoreError(f"The broker could not store this: {problem!r:.200}. Nothing was changed.")


def _bytes(buffer: Any) -> bytes:
    return b"" if buffer is None else buffer.to_pybytes()
