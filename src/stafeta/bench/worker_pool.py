"""The publishers and subscribers of a run, as the one sees them who has started them."""

import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from stafeta import credentials, errors
from stafeta.bench.plan import Plan
from stafeta.clients.closing import Closing
from stafeta.errors import NoReply, StafetaError
from stafeta.testing.broker import plain_environment

_POLL_INTERVAL: Final = 0.2  # seconds between two looks at something else than what the workers say
_EXIT_TIMEOUT: Final = 30.0  # seconds to end a subscription and leave


class Worker:
    """A process that publishes or subscribes."""

    def __init__(self, plan: Plan, role: str, number: int) -> None:
        self.name = f"{role} {number + 1}"
        self.ready = False
        self.count = 0  # messages published so far
        self.done: dict[str, Any] | None = None
        self._unread = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stafeta.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=plain_environment() | credentials.variables(),
            bufsize=0,
            process_group=0,  # Ctrl-C is for the one who measures, who ends the workers
        )
        self.tell(role=role, number=number, plan=plan.to_plain())

    def tell(self, **order: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its end is noticed when it is listened to
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    def listen(self) -> None:
        """Takes what it says; there is something. Raises what made it fail."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            if self.done is None:
                raise StafetaError(f"A process has ended too early: {self.name}.")
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "failed" in said:
                raise _error(*said["failed"])
            self.ready |= "ready" in said
            self.done = said.get("done", self.done)
            self.count = said.get("count", (self.done or {}).get("published", self.count))

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class WorkerPool(Closing):
    """All of them. Whatever happens, none is left afterwards, nor a subscription."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.publishers: list[Worker] = []
        self.subscribers: list[Worker] = []
        self._selector = selectors.DefaultSelector()

    def wait(
        self, done: Callable[[], bool], meanwhile: Callable[[], None], patience: float = math.inf
    ) -> None:
        """Listens to all until something is true. Raises what made one of them fail, and `NoReply` where they have
        said nothing for so many seconds."""
        heard = time.monotonic()
        while not done():
            if time.monotonic() - heard > patience:
                raise NoReply(
                    f"Nobody at {self._plan.address} answers as the {self._plan.door} door does. Is it that door?"
                )
            for key, _ in self._selector.select(_POLL_INTERVAL):
                heard = time.monotonic()
                worker: Worker = key.data
                worker.listen()
                if worker.done is not None:
                    self._selector.unregister(key.fileobj)
            meanwhile()

    @property
    def workers(self) -> Sequence[Worker]:
        return [*self.subscribers, *self.publishers]

    def __enter__(self) -> Self:
        try:
            for role, workers, count in (
                ("subscriber", self.subscribers, self._plan.subscribers),
                ("publisher", self.publishers, self._plan.publishers),
            ):
                for number in range(count):
                    workers.append(Worker(self._plan, role, number))
                    self._selector.register(_output(workers[-1]), selectors.EVENT_READ, workers[-1])
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._selector.close()
        for worker in self.workers:
            if worker.done is None:
                worker.process.terminate()
        for worker in self.workers:
            try:
                worker.process.wait(_EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.close()


def _output(worker: Worker) -> int:
    assert worker.process.stdout is not None
    return worker.process.stdout.fileno()


def _error(name: str, sentence: str) -> StafetaError:
    kind = getattr(errors, name, StafetaError)
    try:
        error: StafetaError = kind(sentence)
    except TypeError:  # it takes more arguments
        error = StafetaError(sentence)
    return error
