"""Answers to questions, in the process and the Spark of a running pipeline.

1. It listens on loopback, and answers who says its token. A connection that has not said it within a moment is closed,
   and so is one that is too many.
2. A connection has a Spark session of its own: views and settings of one are not those of another, nor of the jobs.
3. It has two threads. One carries out statements; the other reads, so that a statement is cancelled when it is to be,
   and when whoever asked is gone.
4. What is cancelled is what the connection's own thread has started, and nothing of the jobs.
"""

import hmac
import logging
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from stafeta.errors import InvalidFrame, LimitReached, StafetaError
from stafeta.pipeline.sql import wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from stafeta.config import Config
    from stafeta.pipeline.sql.results import Statements

log = logging.getLogger("stafeta.pipeline")

CONNECTIONS: Final = 64  # at a time
PATIENCE: Final = 5.0  # seconds in which a connection has to say the token
_TOKEN: Final = 1024  # bytes that a token may have
_STATEMENT: Final = 64 << 20  # bytes that a statement may have
_AGAIN: Final = 0.1  # seconds between two attempts to cancel, since what is only planned yet goes on


class SqlServer:
    """Answers while it is entered. `token` is what those have to say who ask."""

    def __init__(self, spark: "SparkSession", config: "Config", token: str) -> None:
        self._spark = spark
        self._config = config
        self._token = token.encode()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="sql-server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends its wait
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionError:  # of one that has left before it was its turn
                continue
            except OSError:
                return
            with self._lock:
                if len(self._open) >= CONNECTIONS:
                    connection.close()
                    continue
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="sql", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                if self._is_known(connection):
                    _Conversation(connection, self._spark, self._config).go_on()
        except (OSError, StafetaError) as error:
            log.debug("A question ends: %s", error)
        except Exception:
            log.warning("A question ends", exc_info=True)
        finally:
            with self._lock:
                self._open.discard(connection)

    def _is_known(self, connection: socket.socket) -> bool:
        connection.settimeout(PATIENCE)
        said = wire.receive(connection, _TOKEN)
        if said is None or said[0] != wire.TOKEN or not hmac.compare_digest(bytes(said[1]), self._token):
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.send(connection, wire.READY)
        connection.settimeout(None)
        return True


class _Asked(NamedTuple):
    number: int
    statement: str
    limit: int | None
    read_only: bool


class _Conversation:
    def __init__(self, connection: socket.socket, spark: "SparkSession", config: "Config") -> None:
        self._connection = connection
        self._spark = spark
        self._config = config
        self._waiting: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._read_only = False
        self._running = 0  # the number of the statement that is carried out
        self._cancel: Callable[[], None] = lambda: None

    def go_on(self) -> None:
        """Answers until whoever asks has left."""
        answering = threading.Thread(target=self._answer_all, name="sql-answers", daemon=True)
        answering.start()
        try:
            self._read()
        finally:
            self._waiting.put(None)
            while not self._ended.wait(_AGAIN):
                self._cancel()
            answering.join()

    def _read(self) -> None:
        while (frame := wire.receive(self._connection, _STATEMENT)) is not None:
            kind, body = frame
            said = wire.fields(body)
            if kind == wire.STATEMENT:
                self._waiting.put(_asked(said, read_only=self._read_only))
            elif kind == wire.READ_ONLY:
                self._read_only = True
            elif kind != wire.CANCEL:
                raise InvalidFrame(f"A frame of the kind {kind!r} is none that a question has.")
            elif said.get("number") == self._running:
                self._cancel()

    def _answer_all(self) -> None:
        from stafeta.pipeline.runner.queries import activate
        from stafeta.pipeline.sql.queries import Queries

        try:
            session = self._spark.newSession()
            activate(session)
            queries = Queries(session, self._config, self._tell)
            self._cancel = queries.cancel
            while (asked := self._waiting.get()) is not None:
                self._running = asked.number
                queries.read_only = asked.read_only
                self._answer(queries, asked)
                self._running = 0
        except _Left:
            log.debug("Whoever asked has left.")
        except Exception:
            log.warning("A question ends", exc_info=True)
        finally:
            self._ended.set()
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, queries: "Statements", asked: _Asked) -> None:
        try:
            done = queries.attempt(asked.statement, _Sender(self._send), asked.limit)
        except _Left:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, (StafetaError, KeyboardInterrupt)):
                log.warning("A question fails", exc_info=True)
            told = {"kind": type(error).__name__, "sentence": str(error) or type(error).__name__}
            self._send(wire.ERROR, told)
        else:
            self._send(wire.DONE, done._asdict())

    def _tell(self, sentence: str) -> None:
        self._send(wire.SENTENCE, {"sentence": sentence})

    def _send(self, kind: bytes, body: wire.Body) -> None:
        try:
            wire.send(self._connection, kind, body)
        except OSError:
            raise _Left from None


class _Left(Exception):
    """Whoever asked is gone."""


class _Sender:
    """An output that sends results as they come."""

    shown = False

    def __init__(self, send: Callable[[bytes, wire.Body], None]) -> None:
        self._send = send

    def begin(self, schema: "pa.Schema") -> None:
        self._send(wire.SCHEMA, memoryview(schema.serialize()))

    def write(self, batch: "pa.RecordBatch") -> None:
        data = memoryview(batch.serialize())
        if len(data) > wire.MOST:
            raise LimitReached(f"A batch of {len(data):,} bytes is more than can be sent: {wire.MOST:,}.")
        self._send(wire.BATCH, data)

    def end(self) -> None:
        """Whoever reads is told with how much there was."""

    def drop(self) -> None:
        """Whoever reads is told with the error."""


def _asked(said: dict[str, Any], *, read_only: bool) -> _Asked:
    match said:
        case {"number": int(number), "statement": str(statement), "limit": int(limit)}:
            return _Asked(number, statement, limit, read_only)
        case {"number": int(number), "statement": str(statement), "limit": None}:
            return _Asked(number, statement, None, read_only)
    raise InvalidFrame("A question has a number, a statement and a limit.")
