"""Publishing: one message or many, and with an idempotency key once, however often it is sent.

1. Without a key, many messages go in portions: what was stored before something fails stays.
2. With a key they are a transaction: all or none of them. The key is a producer of one transaction, and its label says
   where the messages are and what they were. A retry finds the label, also after a restart of the broker, and is
   answered as the first time; another body under the same key is refused. A key is remembered for an hour.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final

from starlette.responses import Response

from stafeta.doors.http.call import LARGE, Call, answer
from stafeta.doors.http.codec import ARROW, Message, is_lines, key_name, many_messages, one_message
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidRequest
from stafeta.names import check_name

PORTION: Final = 256  # messages before others get their turn
PORTION_SIZE: Final = 64 << 10  # and bytes of them
REMEMBERED: Final = 3600 * 1_000_000  # microseconds
STAGED: Final = 1 << 20  # bytes that are put aside together


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
    body = await call.body()
    messages = await _messages(call, body, kind, batch=batch)
    call.verbs.check_lengths([payload for _, payload in messages])
    if key:
        if keep_last:
            raise InvalidRequest("With an idempotency key, keep_last is set by PUT of the topic.")
        return await _once(call, name, key, messages)
    first = last = 0
    for portion in _portions(messages, PORTION, PORTION_SIZE):
        await call.door.room()
        begin, last = call.door.share.count(lambda some=portion: _add(call, name, some, keep_last))  # type: ignore[misc]
        first = first or begin
        if len(messages) > len(portion):
            call.door.broker.commit()
            await asyncio.sleep(0)
    await call.door.durable()
    return answer({"topic": name, "first": first, "last": last, "count": len(messages)}, 201)


async def _messages(call: Call, body: bytes, kind: str, *, batch: bool) -> list[Message]:
    type_ = call.media_type
    lines = is_lines(type_)
    if type_ == ARROW:
        raise HttpProblem(415, "Arrow streams are published through the Flight door.")
    if not lines and not batch:
        if len(body) > LARGE:
            return [await asyncio.to_thread(one_message, body, type_, kind)]
        return [one_message(body, type_, kind)]
    if kind:
        raise InvalidRequest("Of many messages each names its own kind.")
    if len(body) > LARGE:
        return await asyncio.to_thread(many_messages, body, lines=lines)
    return many_messages(body, lines=lines)


def _add(call: Call, name: str, messages: Sequence[Message], keep_last: bool) -> tuple[int, int]:
    source, publish_one = call.visit.peer, call.verbs.publish
    offsets = [
        publish_one(name, payload, kind, source, create=True, keep_last=keep_last)
        for kind, payload in messages
    ]
    return offsets[0], offsets[-1]


def _portions(messages: list[Message], most: int, size: int) -> list[list[Message]]:
    found: list[list[Message]] = [[]]
    room = size
    for message in messages:
        if found[-1] and (len(found[-1]) >= most or room < len(message[1])):
            found.append([])
            room = size
        found[-1].append(message)
        room -= len(message[1])
    return found


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


async def _once(call: Call, name: str, key: str, messages: list[Message]) -> Response:
    producer = key_name(key, name)
    door = call.door
    async with door.keys.taken((call.verbs.principal.user, producer)):
        size = sum(len(payload) for _, payload in messages)
        digest = await asyncio.to_thread(_digest, messages) if size > LARGE else _digest(messages)
        verbs = call.verbs
        known = verbs.transaction_label(producer, 0) if verbs.is_committed(producer, 0) else None
        repeated = known is not None
        if known is None:
            part = secrets.token_hex(8)
            for portion in _portions(messages, 10_000, STAGED):
                await door.room()
                staged = door.share.count(
                    lambda some=portion: verbs.stage(producer, 0, part, name, some, call.visit.peer)  # type: ignore[misc]
                )
                await asyncio.wait([staged])
                staged.result()
            await verbs.prepare_transaction(producer, 0, [part])
            known = f"{verbs.next_offset(name)} {len(messages)} {digest}"
            verbs.commit_transaction(producer, 0, [part], None, known, REMEMBERED)
        await door.durable()  # also what somebody else has asked for is answered when it is
    first, count, written = known.split()
    if written != digest:
        raise HttpProblem(422, "The idempotency key was used for other messages; take a new one for these.")
    found = {"topic": name, "first": int(first), "last": int(first) + int(count) - 1, "count": int(count)}
    return answer({**found, "repeated": repeated}, 200 if repeated else 201)


def _digest(messages: Sequence[Message]) -> str:
    digest = sha256()
    for kind, payload in messages:
        digest.update(b"%d %d\n" % (kind, len(payload)))
        digest.update(payload)
    return digest.hexdigest()[:32]
