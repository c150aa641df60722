"""From a request to its answer: checks, routes, errors, headers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from stafeta.doors.http import (
    access,
    overview,
    pages,
    publishing,
    sql,
    status,
    streams,
    subscriptions,
    topics,
)
from stafeta.doors.http.call import Call, ClientGone, answer, refusal
from stafeta.doors.http.openapi import document
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import BrokerClosed, StafetaError, StoreError

if TYPE_CHECKING:
    from stafeta.doors.http.server import HttpDoor

log = logging.getLogger("stafeta.http")

Handler = Callable[[Call], Awaitable[Response]]
Stream = Callable[[Call, Receive, Send], Awaitable[None]]

CONTENT: Final = (
    b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    b"frame-ancestors 'none'"
)
HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", CONTENT),
]
_STRICT: Final = (b"strict-transport-security", b"max-age=31536000")


async def _document(call: Call) -> Response:
    call.parameters.end()
    return answer(document())


# Whoever asks for these says nothing about himself.
OPEN: Final[dict[str, Mapping[str, Handler]]] = {
    "/healthz": {"GET": status.healthz},
    "/readyz": {"GET": status.readyz},
    "/api/openapi.json": {"GET": _document},
    "/api/login": {"POST": status.login},
    "/api/session": {"GET": status.session},
    **pages.ROUTES,
}
# Longer paths first: the name of a topic takes all that is left.
CHECKED: Final[dict[str, Mapping[str, Handler]]] = {
    "/api/logout": {"POST": status.logout},
    "/api/stats": {"GET": status.stats},
    "/api/overview": {"GET": overview.once},
    "/api/sql": {"GET": sql.state, "POST": sql.ask},
    "/api/damaged": {"GET": topics.damaged},
    "/api/clients": {"GET": subscriptions.clients},
    "/api/topics": {"GET": topics.listed},
    "/api/topics/{name:path}/messages": {"GET": topics.messages, "POST": publishing.publish},
    "/api/topics/{name:path}": {"GET": topics.info, "PUT": topics.make, "DELETE": topics.empty},
    "/api/subscriptions": {
        "GET": subscriptions.listed,
        "POST": subscriptions.subscribe,
        "DELETE": subscriptions.unsubscribe,
    },
    "/api/subscriptions/cursors": {"GET": subscriptions.cursors},
    "/api/subscriptions/messages": {"GET": subscriptions.messages},
    "/api/subscriptions/ack": {"POST": subscriptions.ack},
    "/api/subscriptions/move": {"POST": subscriptions.move},
}
STREAMS: Final[dict[str, Stream]] = {"/api/events": streams.events, "/api/overview/events": overview.events}
SOCKET: Final = "/api/socket"


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    """Routes are matched here, and called by the application."""


class Application:
    def __init__(self, door: "HttpDoor") -> None:
        self._door = door
        self._routes: list[tuple[Route, Mapping[str, Handler], bool]] = [
            (Route(path, _nobody, methods=None), methods, path in OPEN)
            for path, methods in {**OPEN, **CHECKED}.items()
        ]

    def mount(self, path: str, methods: Mapping[str, Handler], *, checked: bool = True) -> None:
        """One more path, before all others."""
        self._routes.insert(0, (Route(path, _nobody, methods=None), methods, not checked))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        started = False
        call = Call(self._door, scope, receive)
        call.visit.unread = True
        extra = [*HEADERS, (b"date", formatdate(time.time(), usegmt=True).encode())]
        if self._door.secure:
            extra.append(_STRICT)

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                known = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in extra if one[0] not in known)]
            await send(message)

        try:
            await self._answered(call, receive, with_headers)
        except ClientGone:
            pass
        except StafetaError as error:
            if isinstance(error, StoreError):
                self._door.warn(f"a request is refused: {error}", peer=call.visit.peer)
            if not started:
                await self._refuse(call, error, receive, with_headers)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request is not answered, for a reason that it should not have")
            if not started:
                mistake = HttpProblem(500, "The broker has made a mistake; its log says more.")
                await self._refuse(call, mistake, receive, with_headers)
            else:
                call.visit.transport.abort()
        finally:
            call.release()

    async def _answered(self, call: Call, receive: Receive, send: Send) -> None:
        if self._door.closing:
            raise BrokerClosed("The broker is shutting down.")
        scope = call.scope
        # With its escapes: a slash in the name of a topic is not one between parts of the path.
        scope["path"] = scope["raw_path"].decode("ascii")
        stream = STREAMS.get(scope["path"])
        if stream is not None:
            _method(call, {"GET": stream})
            access.check_origin(call)
            call.verbs = await access.admit(call)
            await stream(call, receive, send)
            return
        methods, open_ = self._found(scope)
        handler = _method(call, methods)
        access.check_origin(call)
        if not open_:
            call.verbs = await access.admit(call)
        response = await handler(call)
        if call.visit.unread:
            await _drop_body(call)
        call.release()
        await response(scope, receive, send)

    def _found(self, scope: Scope) -> tuple[Mapping[str, Handler], bool]:
        for route, methods, open_ in self._routes:
            match, child = route.matches(scope)
            if match is not Match.NONE:
                scope.update(child)
                return methods, open_
        raise HttpProblem(404, f"There is nothing at {scope['path'][:200]!r}.")

    async def _refuse(self, call: Call, error: StafetaError, receive: Receive, send: Send) -> None:
        call.release()
        response = refusal(error)
        if call.visit.unread and call.method not in access.SAFE:
            response.headers["connection"] = "close"  # whatever follows may go on for ever
        await response(call.scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._door, scope, receive)
        try:
            if scope["raw_path"].decode("ascii") != SOCKET:
                raise HttpProblem(404, f"WebSockets are at {SOCKET}.")
            if self._door.closing:
                raise BrokerClosed("The broker is shutting down.")
            access.check_origin(call)
            call.verbs = await access.admit(call)
            await streams.sockets(call, receive, send)
        except StafetaError as error:
            response = refusal(error)
            await send(
                {
                    "type": "websocket.http.response.start",
                    "status": response.status_code,
                    "headers": response.raw_headers,
                }
            )
            await send({"type": "websocket.http.response.body", "body": response.body})
        except ClientGone:
            pass
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if type(error).__name__ != "ClientDisconnected":
                log.exception("a WebSocket is closed, for a reason that it should not have")
            call.visit.transport.abort()


def _method(call: Call, methods: Mapping[str, Any]) -> Any:
    handler = methods.get("GET" if call.method == "HEAD" else call.method)
    if handler is None:
        allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
        raise HttpProblem(
            405,
            f"{call.method[:20]} is not done here; {', '.join(allowed)} is.",
            {"allow": ", ".join(allowed)},
        )
    return handler


async def _drop_body(call: Call) -> None:
    """What nobody has asked for: few bytes are read, so that the connection can go on."""
    if call.header("content-length") in ("", "0") and not call.header("transfer-encoding"):
        return
    await call.no_body()
