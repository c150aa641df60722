"""A program whose clients are open while it forks: `python -m tests.forking_program ZEROMQ FLIGHT FOLDER`.

Each child does something with the clients that it inherits, and leaves; then the parent goes on with them. What the
children are told is printed, and everything that the parent got."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import stafeta
from stafeta.errors import StafetaError
from tests.waiting import PATIENCE

ROUNDS = 4


def told(what: Callable[[], Any]) -> None:
    try:
        sys.stdout.write(f"{what()!r}\n")
    except StafetaError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


class Clients:
    def __init__(self, zeromq: str, flight: str, folder: str) -> None:
        self._addresses = zeromq, flight
        self.client = stafeta.Client(zeromq, folder)
        self.client.subscribe("z")
        self.queue = stafeta.AsyncClient(zeromq)
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.queue.subscribe("z"))
        self.broker = stafeta.connect(flight, timeout=PATIENCE)
        self.subscription = self.broker.subscribe("f/#", name="forking")
        self.producer = self.broker.producer("f/a", name="forking", linger=0.2)
        self.transaction = self.broker.transaction("forking")

    def use(self, round_: int) -> None:
        """In the parent."""
        self.client.put("z", f"{round_}")
        message = self.client.get("z")
        assert message is not None
        self.client.ack(message)
        other = self.loop.run_until_complete(self.queue.get("z"))
        assert other is not None
        self.loop.run_until_complete(self.queue.ack(other))
        self.transaction.write("f/b", [f"{round_}"])
        self.producer.send(f"{round_}")
        batch = next(self.subscription)
        batch.ack()
        self.subscription.flush()
        sys.stdout.write(f"{message.text} {other.text} {batch.payloads()}\n")
        self.producer.send("left alone")  # which the thread that sends has not yet

    def leave(self) -> None:
        """Ends as programs do."""

    def ask(self) -> None:
        told(lambda: self.client.put("z", "child"))
        told(lambda: asyncio.run(self.queue.put("z", "child")))
        told(lambda: self.broker.publish("f/a", ["child"]))
        told(lambda: self.producer.send("child"))
        told(self.producer.flush)
        told(lambda: next(self.subscription))
        told(lambda: self.transaction.write("f/a", ["child"]))
        told(self.transaction.commit)
        told(lambda: stafeta.connect(self._addresses[1]))

    def close(self) -> None:
        with self.client, self.broker, self.producer, self.subscription:
            pass
        asyncio.run(self.queue.close())

    def drop(self) -> None:
        with stafeta.Client(self._addresses[0]) as another:
            told(lambda: bool(another.topics()))
        vars(self).clear()
        gc.collect()


def main() -> None:
    clients = Clients(*sys.argv[1:])
    for number, what in enumerate((clients.leave, clients.ask, clients.close, clients.drop)):
        clients.use(number)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            what()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0, what.__name__
        assert next(clients.subscription).payloads() == [b"left alone"]
    clients.use(ROUNDS)
    assert clients.transaction.commit()
    clients.broker.close()
    clients.client.close()


if __name__ == "__main__":
    main()
