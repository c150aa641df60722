"""Who asks, and whether a browser asks for somebody who does not know of it.

1. What comes from a page of another site is refused: its `Origin`, or `Sec-Fetch-Site`, says so. A browser sends both
   by itself, with cookies, certificates and passwords that it knows, to wherever a page tells it to.
2. A cookie is worth something only together with one of these headers, and where something is to be changed, with a
   media type that no form can send.
3. Without users, and for whoever is let in by where he is, the `Host` has to be one that the door is known by: a page
   of another site can have its own name lead here (DNS rebinding), but not an IP address or a name of this machine.
"""

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stafeta import addresses
from stafeta.broker import Verbs
from stafeta.doors.http.codec import FORM_TYPES, cookie, host_of, media_type
from stafeta.doors.http.logins import COOKIE
from stafeta.doors.http.problems import HttpProblem
from stafeta.doors.tls import certified_name
from stafeta.errors import NotAuthenticated
from stafeta.security import ANYONE, Principal
from stafeta.security.authorization import credentials_of

if TYPE_CHECKING:
    from stafeta.doors.http.call import Call
    from stafeta.doors.http.server import HttpDoor

SAFE: Final = frozenset({"GET", "HEAD"})
_OWN: Final = frozenset({"same-origin", "none"})


def check_origin(call: "Call") -> None:
    """Refuses what a page of another site has a browser send."""
    site = call.header("sec-fetch-site")
    if site and site not in _OWN:
        if call.method in SAFE and call.header("sec-fetch-mode") == "navigate":
            return  # somebody has followed a link, and sees what comes
        raise HttpProblem(
            403, "A page of another site has sent this request; only pages of the broker's own may."
        )
    origin = call.header("origin")
    if origin and not _same(origin, call.header("host"), secure=call.door.secure):
        raise HttpProblem(
            403, f"A page of {origin[:200]!r} has sent this request; only pages of the broker's own may."
        )


def check_cookie(call: "Call") -> None:
    """Refuses a change that comes with a cookie and may be forged."""
    if call.method in SAFE:
        return
    if not call.header("origin") and not call.header("sec-fetch-site"):
        raise HttpProblem(
            403, "A request with a session's cookie says in the header Origin where it comes from."
        )
    if media_type(call.header("content-type")) in FORM_TYPES:
        raise HttpProblem(
            415, "With a session's cookie a request needs a media type that no form has: application/json."
        )


def _same(origin: str, host: str, *, secure: bool) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port
        place = urlsplit(f"//{host}")
        host_port = place.port
    except ValueError:
        return False
    if parts.scheme != "https" and (
        secure or parts.scheme != "http"
    ):  # TLS may be that of a proxy before the door
        return False
    default = 443 if parts.scheme == "https" else 80
    return (
        parts.hostname is not None
        and parts.hostname == place.hostname
        and (port or default) == (host_port or default)
    )


def known_host(header: str, names: Iterable[str]) -> bool:
    """Whether a `Host` is an IP address, a name of this machine, or one that is configured."""
    host = host_of(header)
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def admit(call: "Call") -> Verbs:
    """What whoever asks may do. Raises `NotAuthenticated`."""
    door = call.door
    principal, ambient = await _principal(door, call)
    if ambient and not known_host(call.header("host"), door.hosts):
        raise HttpProblem(
            421,
            f"The name {host_of(call.header('host'))[:200]!r} is not one that this door is known by; name it in "
            "http.hosts.",
        )
    verbs = door.broker.for_principal(principal)
    if verbs.pace is not None:
        verbs.pace.check(0)  # a body is counted as it comes
    return verbs


async def _principal(door: "HttpDoor", call: "Call") -> tuple[Principal, bool]:
    """Who asks, and whether that needs nothing but to come from here."""
    security = door.broker.security
    if not security.configured:
        return ANYONE, True
    header = call.header("authorization") or None
    host = addresses.split(call.visit.peer).host
    if header is not None:
        known = door.logins.remembered(header, host)
        if known is None:
            password, token = credentials_of(header)
            known = await security.authenticate(
                door="http", address=call.visit.peer, password=password, token=token
            )
            door.logins.remember(header, host, known)
        return known, False
    word = cookie(call.header("cookie"), COOKIE)
    if word is not None:
        found = door.logins.find(word)
        if found is None:
            raise NotAuthenticated("The session has ended; log in again.")
        check_cookie(call)
        return found, False
    if call.visit.principal is None or not security.alive(call.visit.principal):
        call.visit.principal = security.identify(
            door="http", address=call.visit.peer, certificate_name=certified_name(call.visit.transport)
        )
    return call.visit.principal, True
