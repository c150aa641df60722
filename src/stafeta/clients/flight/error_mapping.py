"""What a Flight error means. (docs/protocols/flight.md, Errors)

1. What the door says comes with `extra_info`. Where it names a class of `stafeta.errors`, that one is raised; otherwise
   it is `Refused`. What can be done later is `Unavailable`.
2. Without `extra_info` it was not the door who spoke: either the connection is gone (`Disconnected`), or something
   between the program and the door, Arrow or gRPC, said no (`Refused`).
3. Where TLS is why the connection is gone, it is `Untrusted`, if that can be told.
4. `Disconnected` and `Unavailable` are worth another try, the others are not.
"""

import json
import re
from typing import Any

import pyarrow as pa
from pyarrow import flight

from stafeta import errors
from stafeta.errors import Disconnected, OutOfSequence, Refused, StafetaError, Unavailable, Untrusted

_GONE = (
    flight.FlightUnavailableError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
    OSError,
)
LATE = "no answer came in time"
_WRAPPING = re.compile(
    r"^Flight (returned|cancelled)[^,]*, with message: |\.? (Detail|gRPC client debug context): .*$",
    re.DOTALL,
)
_FIRST_REASON = re.compile(r"^failed to connect to all addresses; last error: (UNKNOWN: )?")
# What gRPC and OpenSSL, or BoringSSL, say where a handshake fails.
_UNTRUSTED = (
    (
        re.compile(r"certificate[ _]verify[ _]failed(?:: )?([^:]*)", re.IGNORECASE),
        r"its certificate is not accepted (\1). The TLS roots say which authorities are trusted",
    ),
    (
        re.compile(r"Peer name (\S+) is not in peer certificate"),
        r"its certificate is not for \1. If it is the broker all the same, the name in it is the TLS hostname to give",
    ),
    (
        re.compile(r"wrong[ _]version[ _]number", re.IGNORECASE),
        "it does not speak TLS. Without that, its address begins with grpc://",
    ),
)


def translated(error: BaseException) -> StafetaError:
    """The error of `stafeta.errors` that an error of pyarrow's stands for."""
    if isinstance(error, StafetaError):
        return error
    said = _said(error)
    if said is not None:
        return _of_the_door(error, said)
    if isinstance(error, flight.FlightTimedOutError):
        return Disconnected(LATE)
    if isinstance(error, _GONE) and not getattr(error, "extra_info", None):
        return _untrusted(error) or Disconnected(sentence(error))
    return Refused(sentence(error))


def may_pass(error: StafetaError) -> bool:
    """Whether the same may go well later."""
    return isinstance(error, Disconnected | Unavailable)


def sentence(error: BaseException) -> str:
    """What an error of Arrow or gRPC says, without what they wrap it in."""
    words = _FIRST_REASON.sub("", _WRAPPING.sub("", str(error))).strip()
    return words.rstrip(".") or type(error).__name__


def _said(error: BaseException) -> dict[str, Any] | None:
    if not isinstance(error, flight.FlightError) or not error.extra_info:
        return None
    try:
        said = json.loads(error.extra_info)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("message"), str) else None


def _untrusted(error: BaseException) -> Untrusted | None:
    for sign, meaning in _UNTRUSTED:
        if (found := sign.search(sentence(error))) is not None:
            return Untrusted(found.expand(meaning))
    return None


def _of_the_door(error: BaseException, said: dict[str, Any]) -> StafetaError:
    message: str = said["message"]
    if isinstance(error, flight.FlightUnavailableError):
        return Unavailable(message)
    if said.get("error") == "OutOfSequence":
        return OutOfSequence(message, int(said.get("expected", 0)))
    kind = getattr(errors, str(said.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, StafetaError):
        return kind(message)
    return Refused(message)


TROUBLE = (pa.ArrowException, OSError)
"""What pyarrow raises where a call does not go well."""
