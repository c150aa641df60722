"""The figures of the whole broker, for its page: once, or each second as server-sent events.

A sample is made and written once for all who watch. One who reads slowly gets the newest when he can take it, and
those between are left out.
"""

from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Send

from stafeta.doors.http import encoding
from stafeta.doors.http.call import Call, plain
from stafeta.doors.http.codec import EVENTS, JSON
from stafeta.doors.http.problems import HttpProblem, problem
from stafeta.errors import StafetaError

HEADERS: Final = [
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Sampler(Protocol):
    async def current(self) -> bytes:
        """The newest sample, as JSON."""

    async def following(self) -> bytes | None:
        """The next one; None where there are no more."""

    def history(self) -> bytes:
        """The rates of the last minutes, as JSON."""

    def close(self) -> None:
        """There are no more."""


async def once(call: Call) -> Response:
    call.verbs.check_sees_all()
    call.parameters.end()
    return plain(await _sampler(call).current(), JSON, {"cache-control": "no-store"})


async def events(call: Call, receive: Receive, send: Send) -> None:
    call.verbs.check_sees_all()
    call.parameters.end()
    sampler = _sampler(call)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    if call.method == "HEAD":
        await send({"type": "http.response.body", "body": b""})
        return
    await _write(send, b"retry: 1000\nevent: history\ndata: " + sampler.history() + b"\n\n")
    while not call.visit.transport.is_closing():
        sample = await sampler.following()
        if sample is None:
            break
        try:
            call.verbs.check_sees_all()  # users change
        except StafetaError as error:
            await _write(send, encoding.event(problem(error), "error"))
            break
        call.visit.has_spoken()
        await _write(send, b"event: sample\ndata: " + sample + b"\n\n")
    await send({"type": "http.response.body", "body": b""})


def _sampler(call: Call) -> Sampler:
    if call.door.overview is None:
        raise HttpProblem(404, "This broker has no overview.")
    return call.door.overview


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
