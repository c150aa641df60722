"""Stafeta: a reliable publish/subscribe broker. One durable log, many doors."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stafeta.doors.zeromq.client import AsyncClient, Client, Message

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Message", "__version__"]


def __getattr__(name: str) -> Any:
    # Looked up when first used, so that importing a part of the package does not import the client.
    if name in ("AsyncClient", "Client", "Message"):
        from stafeta.doors.zeromq import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
