"""SQL on lake and log, as far as the Spark of a pipeline is at hand: `POST /api/sql`."""

import asyncio
from typing import Final, Protocol

from starlette.responses import Response

from stafeta import addresses
from stafeta.doors.http.call import Call, ClientGone, answer, plain
from stafeta.doors.http.codec import JSON
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidRequest, NotPermitted

LONGEST: Final = 16 << 10  # characters of a statement
ROWS: Final = 1000  # where nothing else is asked for
MOST_ROWS: Final = 10_000
TIMEOUT: Final = 60  # seconds
LONGEST_TIMEOUT: Final = 600
_NO_STORE: Final = {"cache-control": "no-store"}


class Sql(Protocol):
    async def available(self) -> bool:
        """Whether there is a Spark that can be asked."""

    async def ask(self, statement: str, limit: int) -> bytes:
        """The result as JSON. Who stops waiting cancels it."""


async def state(call: Call) -> Response:
    """Whether SQL can be asked here."""
    call.parameters.end()
    check(call)
    return answer({"available": await _service(call).available()}, headers=_NO_STORE)


async def ask(call: Call) -> Response:
    """Carry out a statement that only reads."""
    check(call)
    body = await call.object()
    statement = body.needed_text("statement")
    limit = body.number("limit", 1, MOST_ROWS, ROWS) or ROWS
    timeout = body.number("timeout", 1, LONGEST_TIMEOUT, TIMEOUT) or TIMEOUT
    body.end()
    if len(statement) > LONGEST:
        raise InvalidRequest(f"The statement is longer than {LONGEST:,} characters.")
    call.verbs.record_query(statement)
    asked = asyncio.ensure_future(_service(call).ask(statement, limit))
    gone = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait((asked, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return plain(asked.result(), JSON, _NO_STORE)
        if gone.done():
            raise ClientGone
        raise HttpProblem(504, f"The statement has taken longer than {timeout} s, and was cancelled.")
    finally:
        for task in (asked, gone):
            task.cancel()
        await asyncio.wait((asked, gone))


def check(call: Call) -> None:
    """Refuses who may not read everything; without users, who is not on this machine."""
    if call.door.broker.security.configured:
        call.verbs.check_may_query()
    elif not _is_here(call):
        raise NotPermitted("SQL reads every topic: where there are no users, it is for this machine alone.")


def may(call: Call) -> bool:
    """Whether whoever asks would not be refused. He has not tried: no refusal is counted."""
    return call.verbs.may_query() if call.door.broker.security.configured else _is_here(call)


def _is_here(call: Call) -> bool:
    return addresses.split(call.visit.peer).loopback


def _service(call: Call) -> Sql:
    if call.door.sql is None:
        raise HttpProblem(404, "This broker asks no Spark.")
    return call.door.sql
