"""One request: what it says, and what its answer is made of."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope

from stafeta.broker import Verbs
from stafeta.doors.http.codec import JSON, Parameters, media_type, unescaped
from stafeta.doors.http.encoding import dumps
from stafeta.doors.http.problems import MEDIA_TYPE, HttpProblem, encoded, status_of
from stafeta.errors import StafetaError, Unavailable

if TYPE_CHECKING:
    from stafeta.doors.http.connection import Visit
    from stafeta.doors.http.server import HttpDoor

PROGRESS: Final = 64 << 10  # bytes of a body that have to come within limits.peer_timeout
LARGE: Final = 64 << 10  # bytes of a body or an answer that a thread reads or makes
MAX_OBJECT: Final = 1 << 20  # bytes of a body that says what to do, which is read on the loop
MAX_UNUSED: Final = 64 << 10  # bytes of a body that nobody looks at


class Call:
    __slots__ = ("_body", "_headers", "_held", "_receive", "door", "method", "scope", "verbs", "visit")

    verbs: Verbs

    def __init__(self, door: "HttpDoor", scope: Scope, receive: Receive) -> None:
        self.door = door
        self.scope = scope
        self.visit: Visit = scope["state"]["visit"]
        self.method: str = scope.get("method", "GET")
        self._receive = receive
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            # Of a header that is there twice the values belong together, but of these there is one.
            headers[name] = headers[name] + b", " + value if name in headers else value
        self._headers = headers
        self._body: bytes | None = None
        self._held = 0

    def header(self, name: str) -> str:
        """Empty where there is none."""
        return self._headers.get(name.encode(), b"").decode("latin-1")

    @property
    def parameters(self) -> Parameters:
        return Parameters.of_query(self.scope["query_string"])

    def path(self, name: str) -> str:
        """A part of the path, unescaped."""
        return unescaped(self.scope["path_params"][name])

    @property
    def media_type(self) -> str:
        return media_type(self.header("content-type"))

    # --- the body

    async def body(self, most: int | None = None) -> bytes:
        """All of it, as long as it is not too large and does not come too slowly."""
        if self._body is None:
            self._body = await self._read(most)
        return self._body

    async def object(self) -> Parameters:
        """The body, where it is a JSON object."""
        if self.media_type not in (JSON, ""):
            raise HttpProblem(415, f"The body must be {JSON}, not {self.media_type[:100]}.")
        return Parameters.of_body(await self.body(MAX_OBJECT))

    async def no_body(self) -> None:
        """Reads what nobody looks at, so that the connection can go on."""
        await self.body(MAX_UNUSED)

    async def gone(self) -> None:
        """Returns when whoever asked has left. The body has to be read before."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _read(self, at_most: int | None) -> bytes:
        door = self.door
        most = door.max_body if at_most is None else min(at_most, door.max_body)
        length = self.header("content-length")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        began, progress = loop.time(), 0
        try:
            while True:
                async with asyncio.timeout_at(began + door.broker.limits.peer_timeout):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                door.held += len(part)
                self._held += len(part)
                parts.append(part)
                if size > most:
                    raise _too_large(most)
                if door.held > door.max_held and size:
                    raise Unavailable(
                        "The broker has as many bodies of requests in memory as it can; try again."
                    )
                if part:
                    await self._pay(len(part))
                if not message.get("more_body"):
                    self.visit.unread = False
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                if size - progress >= PROGRESS:
                    began, progress = loop.time(), size
        except TimeoutError:
            raise HttpProblem(
                408, "The body came too slowly, or not at all.", {"connection": "close"}
            ) from None

    def release(self) -> None:
        """What the body says is done: it is not in memory any more."""
        self.door.held -= self._held
        self._held, self._body = 0, None

    async def _pay(self, size: int) -> None:
        """Read no further until these bytes are paid for."""
        pace = self.verbs.pace if hasattr(self, "verbs") else None
        wait = 0.0 if pace is None else pace.wait(size, 0)
        if wait:
            await asyncio.sleep(wait)


class ClientGone(Exception):
    """Whoever asked has gone."""


def _too_large(most: int) -> HttpProblem:
    return HttpProblem(
        413,
        f"The body is too large; at most {most} bytes are allowed here (of messages: http.max_body).",
        {"connection": "close"},
    )


# --- answers


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(value), status, dict(headers or {}), JSON)


def plain(data: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(data, 200, dict(headers or {}), media_type)


def nothing() -> Response:
    return Response(status_code=204)


def refusal(error: StafetaError) -> Response:
    status = status_of(error)
    headers = dict(getattr(error, "headers", {}))
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="stafeta"'
    if status in (429, 503, 507):
        headers["retry-after"] = "1"
    return Response(encoded(error), status, headers, MEDIA_TYPE)
