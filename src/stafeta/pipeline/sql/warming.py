"""The first question to a pipeline takes several times as long as the next: classes are loaded, code is compiled, and
Python processes are started. So statements of no consequence are carried out once, before anybody asks.

1. It waits until the machine has little to do, for a minute at most: jobs that start come first.
2. The statements go the way that those of others go, to the last row, and read nothing of any topic.
3. What goes wrong with them is nobody's concern: whoever asks is told.
"""

import logging
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from stafeta.config import Config
    from stafeta.pipeline.sql.queries import Queries

log = logging.getLogger("stafeta.pipeline")

STATEMENTS: Final = (
    "SELECT topic, count(*) AS count, avg(number) FROM readings WHERE topic = '' GROUP BY topic ORDER BY topic",
    "SELECT count(*) FROM messages WHERE topic = ''",
)
_LATEST: Final = 60.0  # seconds after which it is done on a busy machine, too
_LOOK: Final = 5.0  # seconds between two looks at whether the machine is busy
_END: Final = 5.0  # seconds that it is waited for at the end


class WarmUp:
    """Carries them out while it is entered, at the latest after so many seconds."""

    def __init__(self, spark: "SparkSession", config: "Config", latest: float = _LATEST) -> None:
        self._spark = spark
        self._config = config
        self._latest = latest
        self._ended = threading.Event()
        self._queries: Queries | None = None
        self.done = 0
        self.thread = threading.Thread(target=self._run, name="sql-warm-up", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        deadline = time.monotonic() + _END
        while self.thread.is_alive() and time.monotonic() < deadline:
            if self._queries is not None:
                self._queries.cancel()
            self.thread.join(0.1)

    def _run(self) -> None:
        deadline = time.monotonic() + self._latest
        while not self._ended.wait(min(_LOOK, self._latest)):
            if time.monotonic() >= deadline or os.getloadavg()[0] < (os.cpu_count() or 1) / 2:
                self._carry_out()
                return

    def _carry_out(self) -> None:
        from stafeta.pipeline.runner.queries import activate
        from stafeta.pipeline.sql.queries import Queries

        try:
            session = self._spark.newSession()
            activate(session)
            self._queries = Queries(session, self._config, lambda sentence: None)
            self._queries.read_only = True
            for statement in STATEMENTS:
                if not self._ended.is_set():
                    self._queries.attempt(statement, _Nowhere())
                    self.done += 1
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the latter where it is cancelled
            log.debug("Spark is not warmed up: %s", error)


class _Nowhere:
    """An output of which nothing is kept."""

    shown = False

    def begin(self, schema: "pa.Schema") -> None: ...

    def write(self, batch: "pa.RecordBatch") -> None: ...

    def end(self) -> None: ...

    def drop(self) -> None: ...
