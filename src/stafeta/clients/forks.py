"""What becomes of clients in a process that is forked from theirs: nothing.

1. The connections and files are the parent's, and so is whoever waits for them: a client says so when it is used.
2. It is never taken apart in the child, not even when that ends: to close a copy of its database would delete what the
   parent has written last, and to close a copy of its connection would end the parent's.
3. gRPC's own threads are missing in the child: once it was used before, no connection of it can be made there.
"""

import os
from typing import Any
from weakref import WeakSet

from stafeta.errors import Forked

_clients: WeakSet[Any] = WeakSet()
_grpc: set[int] = set()  # the process that has used it


def guard(client: Any) -> None:
    """See that nothing becomes of a client in a child. Where it has a method `_forked`, that is called there."""
    _clients.add(client)


def check(process: int) -> None:
    """Raises where this is not the process that has made a client."""
    if os.getpid() != process:
        raise Forked(
            f"This client was made by process {process}, which this one was forked from, and belongs to it. Make "
            "another one here."
        )


def use_grpc() -> None:
    """Call before gRPC does anything."""
    check_grpc()
    _grpc.add(os.getpid())


def check_grpc() -> None:
    """Raises where gRPC does not work any more."""
    if is_forked():
        raise Forked(
            f"This process was forked from {min(_grpc)}, which had used Arrow Flight, and that works only there. Fork "
            "before the first connection is made, or start processes by spawn or forkserver (multiprocessing)."
        )


def is_forked() -> bool:
    """Whether gRPC was used before this process was forked."""
    return bool(_grpc) and os.getpid() not in _grpc


def _in_child() -> None:
    clients = tuple(_clients)
    _clients.clear()
    if clients:
        from ctypes import py_object, pythonapi

        for client in clients:
            pythonapi.Py_IncRef(py_object(client))  # so that it is not taken apart
            if hasattr(client, "_forked"):
                client._forked()


os.register_at_fork(after_in_child=_in_child)
