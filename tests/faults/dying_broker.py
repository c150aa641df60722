"""A broker that kills itself at a named point, once a file tells it to. Arguments: point, file, those of `stafeta`."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stafeta.broker import Broker
from stafeta.cli.main import main
from stafeta.doors.zeromq import verbs
from stafeta.doors.zeromq.server import ZeroMQDoor
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.writer import Writer

Function = Callable[..., Any]

# Where: whose function, its name, and whether to die before or after it.
POINTS: dict[str, tuple[object, str, str]] = {
    "request read": (verbs, "act", "before"),
    "changed in memory": (verbs, "act", "after"),
    "group sealed": (Writer, "commit", "before"),
    "transaction begun": (Writer, "_stage", "before"),
    "messages written": (Writer, "_insert", "after"),
    "state written": (Writer, "_state", "after"),
    "before the commit": (Checkpoint, "write_slice", "after"),
    "committed": (Writer, "commit", "after"),
    "before the receipt": (Broker, "_committed", "before"),
    "before the reply": (ZeroMQDoor, "_reply", "before"),
    "reply sent": (ZeroMQDoor, "_reply", "after"),
    "checkpoint slice": (Checkpoint, "wrote", "after"),
    "checkpoint written": (Checkpoint, "finish", "after"),
    "checkpoint done": (Checkpoint, "finished", "before"),
}


def dying(function: Function, when: str, armed: Path) -> Function:
    def wrapped(*args: Any, **options: Any) -> Any:
        if when == "before":
            die(armed)
        result = function(*args, **options)
        if when == "after":
            die(armed)
        return result

    return wrapped


def die(armed: Path) -> None:
    if armed.exists():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    point, file, *arguments = sys.argv[1:]
    owner, name, when = POINTS[point]
    setattr(owner, name, dying(getattr(owner, name), when, Path(file)))
    sys.argv[1:] = arguments
    sys.exit(main())
