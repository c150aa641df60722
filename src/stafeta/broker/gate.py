"""What doors hold of the broker, and what they may do with it.

1. A door holds a `Gate`: how groups grow and when they are durable, and `for_principal`, the only way to a verb.
2. `for_principal` returns the verbs that somebody may use. Where no users are configured that is the broker itself, so
   that nothing costs anything; else every verb is checked, in `guarded.py` and nowhere else.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from stafeta.broker.commits import Pending, Share
from stafeta.config.options import Limits
from stafeta.errors import StafetaError
from stafeta.security import Principal, Security

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker
    from stafeta.broker.guarded import GuardedBroker
    from stafeta.columns import ColumnBatch

Verbs: TypeAlias = "Broker | GuardedBroker"


class Gate(Protocol):
    security: Security
    now: Callable[[], int]

    def for_principal(self, principal: Principal) -> Verbs:
        """The verbs, as this principal may use them."""

    def commit(self) -> "asyncio.Future[None]": ...

    def answer(self, answer: Callable[[StafetaError | None], object]) -> None: ...

    def share(self) -> Share: ...

    def set_bulk_source(self, fill: Callable[[], bool]) -> None: ...

    def bulk_ready(self) -> None: ...

    def write_ahead(self, batch: "ColumnBatch", done: Callable[[], None]) -> bool: ...

    def not_ready(self) -> str | None: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def group(self) -> Pending: ...

    @property
    def congested(self) -> bool: ...
