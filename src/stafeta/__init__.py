"""Stafeta: a reliable publish/subscribe broker. One durable log, many doors."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stafeta.clients.curve import Curve
    from stafeta.clients.flight.async_connection import connect_async
    from stafeta.clients.flight.connection import connect
    from stafeta.clients.tls import Tls
    from stafeta.clients.zeromq.client import AsyncClient, Client, Message

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Curve", "Message", "Tls", "__version__", "connect", "connect_async"]


def __getattr__(name: str) -> Any:
    # Looked up when first used, so that importing a part of the package does not import a client.
    if name in ("AsyncClient", "Client", "Message"):
        from stafeta.clients.zeromq import client

        return getattr(client, name)
    if name == "connect":
        from stafeta.clients.flight.connection import connect

        return connect
    if name == "connect_async":
        from stafeta.clients.flight.async_connection import connect_async

        return connect_async
    if name == "Curve":
        from stafeta.clients.curve import Curve

        return Curve
    if name == "Tls":
        from stafeta.clients.tls import Tls

        return Tls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
