"""Who is logged in, and how the broker does."""

from typing import Final

from starlette.responses import Response

from stafeta import __version__
from stafeta.doors.http.access import admit
from stafeta.doors.http.call import Call, answer
from stafeta.doors.http.codec import cookie
from stafeta.doors.http.logins import COOKIE
from stafeta.doors.http.problems import HttpProblem
from stafeta.doors.http.sql import may as may_ask
from stafeta.errors import InvalidRequest, NotAuthenticated
from stafeta.security import Principal

_NO_STORE: Final = {"cache-control": "no-store"}


async def healthz(call: Call) -> Response:
    """The process is there, and its loop does something."""
    return answer({"status": "alive"}, headers=_NO_STORE)


async def readyz(call: Call) -> Response:
    """Messages can be stored."""
    why = call.door.broker.not_ready()
    if why is None:
        return answer({"status": "ready"}, headers=_NO_STORE)
    # Strangers are told no more than that: why, the log says.
    return answer({"status": "not ready"}, 503, {**_NO_STORE, "retry-after": "1"})


async def login(call: Call) -> Response:
    """user and password, or token: begins a session, whose cookie scripts cannot read."""
    body = await call.object()
    user, password, token = body.text("user"), body.text("password"), body.text("token")
    body.end()
    door = call.door
    security = door.broker.security
    if not security.configured:
        return answer(_who(call, None))
    if bool(token) == bool(user):
        raise InvalidRequest("A login has a user and a password, or a token.")
    principal = await security.authenticate(
        door="http",
        address=call.visit.peer,
        password=(user, password) if user else None,
        token=token or None,
    )
    word = door.logins.open(principal)
    return answer(
        _who(call, principal), headers={"set-cookie": _cookie(call, word, round(door.logins.lasts))}
    )


async def logout(call: Call) -> Response:
    """Ends the session."""
    word = cookie(call.header("cookie"), COOKIE)
    if word is not None:
        call.door.logins.close(word)
    return answer({}, headers={"set-cookie": _cookie(call, "", 0)})


async def session(call: Call) -> Response:
    """Who asks, for the page to know whether to ask for a password."""
    try:
        call.verbs = verbs = await admit(call)
        verbs.check_alive()
    except (NotAuthenticated, HttpProblem):
        return answer({**_who(call, None), "authenticated": False}, headers=_NO_STORE)
    return answer(
        {**_who(call, verbs.principal), "sees_all": verbs.sees_all(), "sql": may_ask(call)}, headers=_NO_STORE
    )


def _who(call: Call, principal: Principal | None) -> dict[str, object]:
    configured = call.door.broker.security.configured
    return {
        "authenticated": True,
        "users": configured,
        "user": principal.user if principal is not None and configured else None,
        "version": __version__,
    }


def _cookie(call: Call, word: str, seconds: int) -> str:
    secure = "; Secure" if call.door.secure else ""
    return f"{COOKIE}={word}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


async def stats(call: Call) -> Response:
    """What the broker has to do."""
    call.parameters.end()
    return answer(current(call), headers=_NO_STORE)


def current(call: Call) -> dict[str, object]:
    found: dict[str, object] = {"version": __version__, **call.verbs.stats()}
    if "topics" in found:
        door = call.door
        found["http"] = {
            "connections": len(door.connections.all),
            "streams": len(door.streams),
            "sessions": len(door.logins),
        }
    return found
