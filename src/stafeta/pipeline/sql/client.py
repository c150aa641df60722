"""Questions to the Spark of a running pipeline: who asks imports neither PySpark nor pandas, nor needs Java."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stafeta import errors
from stafeta.errors import Disconnected, InvalidFrame, StafetaError
from stafeta.pipeline.sql import wire
from stafeta.pipeline.sql.results import Done, Output, Statements

_PATIENCE: Final = 5.0  # seconds in which a pipeline has to say that it answers


class RemoteQueries(Statements):
    """Statements that the pipeline on this port of this machine carries out, in a session of their own. `tell` takes
    sentences for whoever asks. With `read_only` the pipeline refuses what does more than read. An answer has frames of
    `most` bytes at most."""

    def __init__(
        self,
        port: int,
        token: str,
        tell: Callable[[str], None],
        *,
        read_only: bool = False,
        most: int = wire.MOST,
    ) -> None:
        """Raises `OSError` or `InvalidFrame` where nobody answers there who knows the token."""
        self._tell = tell
        self._most = most
        self._sending = threading.Lock()
        self._number = 0
        self._socket = socket.create_connection(("127.0.0.1", port), _PATIENCE)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.send(self._socket, wire.TOKEN, token.encode())
            answer = wire.receive(self._socket, 0)
            if answer is None or answer[0] != wire.READY:
                raise InvalidFrame("Who answers there is no pipeline.")
            if read_only:
                wire.send(self._socket, wire.READ_ONLY, {})
            self._socket.settimeout(None)  # an answer takes as long as it takes
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Ends it, and what runs."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also while another thread reads
        self._socket.close()

    def attempt(self, statement: str, output: Output, limit: int | None = None) -> Done:
        self._number += 1
        try:
            with self._sending:
                wire.send(
                    self._socket,
                    wire.STATEMENT,
                    {"number": self._number, "statement": statement, "limit": limit},
                )
            return self._answer(output)
        except OSError as error:
            raise _ended(error.strerror or str(error)) from None

    def cancel(self) -> None:
        with self._sending:
            wire.send(self._socket, wire.CANCEL, {"number": self._number})

    def _answer(self, output: Output) -> Done:
        import pyarrow as pa

        schema: pa.Schema | None = None
        while (frame := wire.receive(self._socket, self._most)) is not None:
            kind, body = frame
            if kind == wire.SENTENCE:
                self._tell(str(wire.fields(body)["sentence"]))
            elif kind == wire.SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(body))
                output.begin(schema)
            elif kind == wire.BATCH:
                assert schema is not None
                output.write(pa.ipc.read_record_batch(pa.py_buffer(body), schema))
            elif kind == wire.ERROR:
                raise _error(**wire.fields(body))
            elif kind == wire.DONE:
                output.end()
                return Done(**wire.fields(body))
            else:
                raise InvalidFrame(f"A frame of the kind {kind!r} is none that an answer has.")
        raise _ended("its connection is closed")


def _ended(why: str) -> Disconnected:
    return Disconnected(
        f"The pipeline whose Spark was asked has ended ({why}). Ask again: then another is asked, or one is started."
    )


def _error(kind: str, sentence: str) -> BaseException:
    """What the other side has raised."""
    if kind == KeyboardInterrupt.__name__:
        return KeyboardInterrupt()
    known: Callable[[str], StafetaError] | None = getattr(errors, kind, None)
    if (
        isinstance(known, type)
        and issubclass(known, StafetaError)
        and not issubclass(known, errors.OutOfSequence)
    ):
        return known(sentence)
    return StafetaError(sentence)
