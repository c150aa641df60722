"""A client that kills itself. Run as a program by test_client_killed.

killed_client.py put|get ADDRESS FOLDER TOPIC TOTAL POINT CALL [FILE]

kills itself when it comes to POINT, a point of `POINTS`, for the CALL-th time. What it has to do, it does from where an
earlier run left it: put the numbers up to TOTAL, or write TOTAL messages to FILE, each before it is acknowledged.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from stafeta import Client
from stafeta.clients.zeromq import batching as batches
from stafeta.clients.zeromq.client_state import ClientState
from stafeta.clients.zeromq.request_channel import RequestChannel

# Where, and whether to die before it is done or after.
POINTS: dict[str, tuple[type, str, bool]] = {
    "before the folder is made": (ClientState, "_prepare", False),
    "after the folder is made": (ClientState, "_prepare", True),
    "before the outbox is written": (ClientState, "add", False),
    "after the outbox is written": (ClientState, "add", True),
    "before something is sent": (RequestChannel, "_transmit", False),
    "after something is sent": (RequestChannel, "_transmit", True),
    "after a reply has come": (RequestChannel, "_receive", True),
    "before an answered put is done with": (ClientState, "done", False),
    "after an answered put is done with": (ClientState, "done", True),
    "before a commit": (ClientState, "_commit", False),
    "after a commit": (ClientState, "_commit", True),
    "before an acknowledgement is kept": (ClientState, "acknowledge", False),
    "after an acknowledgement is kept": (ClientState, "acknowledge", True),
    "before the folder is closed": (ClientState, "close", False),
}


def die_at(point: str, call: int) -> None:
    kind, name, after = POINTS[point]
    original: Callable[..., Any] = getattr(kind, name)
    calls = 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **options) if after else None
        # Looking for a reply in vain is not yet a reply that has come.
        if result is not False:
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
        return result if after else original(*arguments, **options)

    setattr(kind, name, deadly)


def put(client: Client, topic: str, total: int) -> None:
    batches._MAX_COUNT = 3  # several batches on their way, with few messages
    while (number := client.count(topic)) < total:
        if number % 3:
            client.put(topic, str(number))
        else:
            client.put_many(topic, map(str, range(number, min(number + 10, total))))
    client.flush()


def get(client: Client, topic: str, total: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    client.subscribe(topic)
    for message in client.get_many(topic, limit=3):
        os.write(file, message.data + b"\n")
        client.ack(message)
    if client.get(topic) is None:
        return
    for message in client.messages(topic):
        os.write(file, message.data + b"\n")
        if message.id == total:
            client.ack(message)
            return


def main() -> None:
    job, address, folder, topic, total, point, call, *path = sys.argv[1:]
    die_at(point, int(call))
    with Client(address, folder) as client:
        if job == "put":
            put(client, topic, int(total))
        else:
            get(client, topic, int(total), *path)


if __name__ == "__main__":
    main()
