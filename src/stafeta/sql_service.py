"""SQL for those who ask over HTTP: carried out by the Spark of a pipeline that runs on this machine, if there is one.

1. Which pipeline that is, its jobs say in their reports. Who asks it has to know its token, which is in a file of the
   same user: a pipeline of another user or machine is not asked.
2. A statement only reads (`pipeline/sql/read_only.py`), in a Spark session of its own.
3. The broker imports neither PySpark nor pandas. A thread waits for the answer, which is bounded; whoever stops waiting
   closes its connection, and so cancels what Spark does for it.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import InvalidFrame, InvalidQuery, LimitReached, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from stafeta.metrics.jobs import Jobs
    from stafeta.pipeline.sql.client import RemoteQueries

AT_ONCE: Final = 2  # statements
INTERVAL: Final = 2.0  # seconds between two looks for a pipeline, however many pages want to know
EXACT: Final = 1 << 53  # up to where a browser has all whole numbers
LARGEST: Final = 16 << 20  # bytes of an answer
ABSENT: Final = (
    "No pipeline runs on this machine, as the user of the broker, that could be asked: "
    "'stafeta pipeline run archive' starts one."
)


class SqlService:
    def __init__(self, jobs: "Jobs") -> None:
        self._jobs = jobs
        self._threads = ThreadPoolExecutor(AT_ONCE, "sql")
        self._running = 0
        self._looked = -INTERVAL
        self._there = False

    async def available(self) -> bool:
        """Whether there is a Spark that can be asked."""
        now = monotonic()
        if now - self._looked >= INTERVAL:
            self._looked = now
            connect = await self._connect()
            self._there = bool(connect) and await asyncio.to_thread(_answers, connect)
        return self._there

    async def ask(self, statement: str, limit: int) -> bytes:
        """The result as JSON. Who stops waiting cancels it. Raises what Spark has against it, or `Unavailable`."""
        if self._running >= AT_ONCE:
            raise LimitReached(f"{AT_ONCE} statements are carried out at a time; try again when one is done.")
        self._running += 1
        try:
            notes: list[str] = []
            connect = await self._connect()
            queries = await asyncio.to_thread(_queries, connect, notes) if connect else None
            if queries is None:
                raise Unavailable(ABSENT)
            with closing(queries):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, _carry_out, queries, statement, limit, notes)
        finally:
            self._running -= 1

    async def _connect(self) -> set[str]:
        """Where jobs report that their Spark can be reached."""
        reports = await self._jobs.figures()
        return {str(report.figures["connect"]) for report, _ in reports if "connect" in report.figures}


def _answers(connect: set[str]) -> bool:
    from stafeta.pipeline import endpoint  # only where somebody asks

    return endpoint.answers(connect)


def _queries(connect: set[str], notes: list[str]) -> "RemoteQueries | None":
    from stafeta.pipeline import endpoint

    return endpoint.read_only_queries(connect, notes.append, LARGEST)


def _carry_out(queries: "RemoteQueries", statement: str, limit: int, notes: list[str]) -> bytes:
    import orjson

    from stafeta.pipeline.sql.values import OPTIONS, plain

    began = monotonic()
    rows = _Rows()
    try:
        done = queries.run(statement, rows, limit)
    except InvalidFrame:
        raise _too_large() from None
    found = {
        "columns": rows.columns,
        "rows": rows.rows,
        "cut": done.cut,
        "seconds": round(monotonic() - began, 3),
        "notes": notes,
    }
    return orjson.dumps(found, default=plain, option=OPTIONS)


class _Rows:
    """An output that keeps a result as lists for JSON."""

    shown = False

    def begin(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._size = 0
        self.columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        self.rows: list[tuple[Any, ...]] = []

    def write(self, batch: "pa.RecordBatch") -> None:
        self._size += batch.nbytes
        if self._size > LARGEST:
            raise _too_large()
        columns = [_values(field, column) for field, column in zip(self._schema, batch.columns, strict=True)]
        self.rows += zip(*columns, strict=True)

    def end(self) -> None:
        """All of it is here."""

    def drop(self) -> None:
        """What begins anew begins with `begin`."""


def _values(field: "pa.Field[Any]", column: Any) -> list[Any]:
    """For JSON. Numbers that it does not have, or that a browser would round, are texts."""
    import pyarrow.types as types

    from stafeta.pipeline.sql.values import jsonable

    if types.is_decimal(field.type):
        return [value if value is None else f"{value:f}" for value in column.to_pylist()]
    found = jsonable(field, column)
    if types.is_floating(field.type):
        return [value if value is None or isfinite(value) else str(value) for value in found]
    if types.is_integer(field.type):
        return [value if value is None or abs(value) < EXACT else str(value) for value in found]
    return found


def _too_large() -> InvalidQuery:
    return InvalidQuery(
        f"The result is larger than {LARGEST >> 20} MiB: ask for fewer rows or columns, or with 'stafeta sql'."
    )
