"""Publishing: one message or many, and with an idempotency key once, however often it is sent.

1. Without a key, many messages go in portions: what was stored before something fails stays.
2. With a key they are a transaction: all or none of them. The key is a producer of one transaction, and its label says
   where the messages are and what they were. A retry finds the label, also after a restart of the broker, and is
   answered as the first time; another body under the same key is refused. A key is remembered for an hour.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from stafeta.doors.http.call import LARGE, Call, answer
from stafeta.doors.http.codec import ARROW, LINES, key_name
from stafeta.doors.http.incoming import Rows, many_messages, one_message
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidRequest
from stafeta.message import ROW
from stafeta.names import check_name

if TYPE_CHECKING:
    from stafeta.doors.http.arrow import Columns

REMEMBERED: Final = 3600 * 1_000_000  # microseconds


async def publish(call: Call) -> Response:
    parameters = call.parameters
    kind = parameters.text("kind")
    batch = bool(parameters.flag("batch"))
    keep_last = bool(parameters.flag("keep_last"))
    parameters.end()
    name = call.path("name")
    check_name(name)
    key = call.header("idempotency-key")
    if not call.verbs.may_publish(name):
        call.verbs.check_append(name, "", None)  # which says why
    messages = await _messages(call, name, await call.body(), kind, batch=batch)
    messages.check(call.verbs)
    if key:
        if keep_last:
            raise InvalidRequest("With an idempotency key, keep_last is set by PUT of the topic.")
        return await _once(call, name, key, messages)
    first = last = 0
    commits: dict[asyncio.Future[None], None] = {}
    for add in messages.publishing(call.verbs, name, call.visit.peer, keep_last=keep_last):
        await call.door.room()
        _check_stored(commits)  # nothing comes behind what could not be
        begin, last = call.door.share.count(add)
        first = first or begin
        commits[call.door.broker.commit()] = None
        if last - begin + 1 < messages.count:
            await asyncio.sleep(0)
    await asyncio.wait(commits)
    _check_stored(commits)
    return answer({"topic": name, "first": first, "last": last, "count": messages.count}, 201)


def _check_stored(commits: Iterable[asyncio.Future[None]]) -> None:
    """Raises why a portion could not be stored: a later one may have found the room that it did not."""
    for commit in commits:
        if commit.done():
            commit.result()


async def _messages(call: Call, name: str, body: bytes, kind: str, *, batch: bool) -> "Rows | Columns":
    type_ = call.media_type
    many = batch or type_ in LINES or type_ == ARROW
    if kind and many:
        raise InvalidRequest("Of many messages each names its own kind.")
    if type_ == ARROW:
        from stafeta.doors.http.arrow import taken  # only for those who send it

        door = call.door
        return await door.read(taken, body, name, door.broker.now(), door.max_body)
    read = partial(one_message, body, type_, kind)
    if many:
        read = partial(many_messages, body, lines=type_ in LINES)
    return await call.door.read(read) if len(body) > LARGE else read()


# --- once


class Keys:
    """The idempotency keys for which something is being published: a retry waits for it."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}  # and how many want it

    @asynccontextmanager
    async def taken(self, key: tuple[str, str]) -> AsyncIterator[None]:
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, waiting - 1


async def _once(call: Call, name: str, key: str, messages: "Rows | Columns") -> Response:
    producer = key_name(key, name)
    door = call.door
    async with door.keys.taken((call.verbs.principal.user, producer)):
        large = messages.size + ROW * messages.count > LARGE
        digest = await door.read(messages.digest) if large else messages.digest()
        verbs = call.verbs
        known = verbs.transaction_label(producer, 0) if verbs.is_committed(producer, 0) else None
        repeated = known is not None
        if known is None:
            part = secrets.token_hex(8)
            for stage in messages.staging(verbs, name, call.visit.peer, producer, part):
                await door.room()
                staged = door.share.count(stage)
                await asyncio.wait([staged])
                staged.result()
            await verbs.prepare_transaction(producer, 0, [part])
            known = f"{verbs.next_offset(name)} {messages.count} {digest}"
            verbs.commit_transaction(producer, 0, [part], None, known, REMEMBERED)
        await door.durable()  # also what somebody else has asked for is answered when it is
    first, count, written = known.split()
    if written != digest:
        raise HttpProblem(422, "The idempotency key was used for other messages; take a new one for these.")
    found = {"topic": name, "first": int(first), "last": int(first) + int(count) - 1, "count": int(count)}
    return answer({**found, "repeated": repeated}, 200 if repeated else 201)
