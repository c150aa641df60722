"""Errors as problem details (RFC 9457): each class of `stafeta.errors` has a status, and its name as its type."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson

from stafeta import errors
from stafeta.errors import DataLoss, OutOfSequence, StafetaError, StoreDamaged

MEDIA_TYPE: Final = "application/problem+json"
_BASE: Final = "/api/docs#"  # where a reader finds what the type means
_STATUS: Final[tuple[tuple[type[StafetaError], int], ...]] = (  # the first that fits
    (errors.NotAuthenticated, 401),
    (errors.NotPermitted, 403),
    (errors.NoSuchTopic, 404),
    (errors.NotSubscribed, 404),
    (errors.NoSuchOffset, 409),
    (errors.OutOfSequence, 409),
    (errors.AlreadyConnected, 409),
    (errors.TakenOver, 409),
    (errors.DataLoss, 410),
    (errors.Lagging, 410),
    (errors.LimitReached, 429),
    (errors.RateLimited, 429),
    (errors.InvalidName, 400),
    (errors.InvalidMessage, 400),
    (errors.InvalidRequest, 400),
    (errors.InvalidSchema, 400),
    (errors.InvalidQuery, 400),
    (errors.ConfigError, 400),
    (errors.BrokerClosed, 503),
    (errors.StoreFull, 507),
    (errors.StoreDamaged, 500),
    (errors.StoreError, 503),
    (errors.Unavailable, 503),
    (errors.Disconnected, 503),
)


class HttpProblem(StafetaError):
    """What only this protocol can say: a status of its own, and headers that go with it."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


def status_of(error: StafetaError) -> int:
    if isinstance(error, HttpProblem):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem(error: StafetaError) -> dict[str, Any]:
    """The members of a problem."""
    status = status_of(error)
    name = (
        HTTPStatus(status).phrase.replace(" ", "") if isinstance(error, HttpProblem) else type(error).__name__
    )
    found: dict[str, Any] = {
        "type": _BASE + name,
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error).encode(errors="backslashreplace").decode(),
    }
    if isinstance(error, OutOfSequence):
        found["expected"] = error.expected
    if isinstance(error, StoreDamaged) and error.topic:
        found["damaged"] = {"topic": error.topic, "first": error.start, "last": error.stop - 1}
    if isinstance(error, DataLoss):
        found["lost"] = True
    return found


def encoded(error: StafetaError) -> bytes:
    return orjson.dumps(problem(error))
