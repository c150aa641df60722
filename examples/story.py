"""A short story through a real broker, told with the real command line.

Two people subscribe, one of them leaves, the broker is killed and comes back, and nothing is lost or told twice.
Whatever is started here runs in a temporary folder and ends with the story. The exit code is 0 if all went as it
should.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

PATIENCE = 20.0  # seconds for anything to happen
NOTHING = 3  # exit code of `stafeta get` where there is nothing to get
LISTENING = re.compile(r"zeromq: listening on (tcp://\S+:(\d+))")

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ
BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"

_T = TypeVar("_T")


class Unexpected(Exception):
    """Something went another way than the story has it."""


class Interrupted(BaseException):
    """A signal asked to end the story."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main() -> int:
    for number in INTERRUPTIONS:
        signal.signal(number, interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="stafeta-demo-") as folder, Stage(Path(folder)) as stage:
            play(stage)
    except Unexpected as what:
        show(f"\nThis was not expected: {what}", RED)
        return 1
    except Interrupted as interrupted:
        show("\nInterrupted. Nothing is left behind.", DIM)
        return 128 + interrupted.number
    return 0


def interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)


def play(stage: "Stage") -> None:
    tell("A broker starts. It keeps its log in a folder.")
    stage.start_broker()

    tell("Alice and Bob subscribe to the same topic.")
    expect(stage.run("sub", "race", "--client", "alice"), "Subscribed to race, after message 0.")
    expect(stage.run("sub", "race", "--client", "bob"), "Subscribed to race, after message 0.")

    tell("Alice stays, and follows the race.")
    alice = stage.follow("alice", "race")

    tell("A message is put. It is on disk before its number is printed.")
    expect(stage.run("put", "race", "The race begins"), "1")
    alice.got(1)

    tell("Bob gets it, too. Then he leaves: nothing of his runs any more.")
    expect(stage.run("get", "race", "--client", "bob"), "The race begins")

    tell("The race goes on without him.")
    expect(stage.run("put", "race", "Ana hands over to Ion"), "2")
    expect(stage.run("put", "race", "Ion hands over to Rui"), "3")
    alice.got(3)

    tell("The broker is killed. It cannot save anything on its way out.")
    stage.kill_broker()

    tell("It starts again on the same folder, and the race ends.")
    stage.start_broker()
    expect(stage.run("put", "race", "Rui crosses the line"), "4")

    tell("Alice was there all the time. She has found the broker again by herself.")
    alice.got(4)

    tell("Bob comes back. What he missed was kept for him, in order.")
    missed = "Ana hands over to Ion\nIon hands over to Rui\nRui crosses the line"
    expect(stage.run("get", "race", "--client", "bob", "--all"), missed)

    tell("He got it once: there is nothing more (exit code 3).")
    expect(stage.run("get", "race", "--client", "bob", "--all", code=NOTHING), "")
    expect("\n".join(alice.lines), f"The race begins\n{missed}")

    show("\nFour messages, two subscribers, one crash: each got all of them, in order, once.\n", BOLD, GREEN)


class Stage:
    """Runs commands and the broker in a folder, and ends what still runs when the story is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = ExitStack()
        # Signals interrupt the main thread only: here a process is never started without being remembered.
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._port = 0
        self._broker: subprocess.Popen[str] | None = None
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")
        }
        self._environment["STAFETA_STATE"] = str(folder / "clients")

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for number in INTERRUPTIONS:
            signal.signal(number, signal.SIG_IGN)
        self._starter.shutdown()
        self._ending.close()

    def start_broker(self) -> None:
        """Starts it: on any free port, and the second time on the same one."""
        doors = (
            "--zeromq",
            str(self._port),
            "--devices",
            "off",
            "--frames",
            "off",
            "--flight",
            "off",
            "--http",
            "off",
        )
        broker = self._start("serve", "--data", "log", *doors, background=True)
        log = Lines(broker.stderr)
        listening = log.wait(lambda lines: next(filter(None, map(LISTENING.search, lines)), None))
        if listening is None:
            raise Unexpected("the broker does not listen.\n" + "\n".join(log.lines))
        reveal(f"listening on {listening[1]}")
        self._broker, self._port = broker, int(listening[2])
        self._environment["STAFETA_BROKER"] = listening[1]

    def kill_broker(self) -> None:
        """SIGKILL."""
        assert self._broker is not None, "it runs"
        show(f"  $ kill -9 {self._broker.pid}", CYAN)
        self._broker.kill()
        self._broker.wait()

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs a command to its end, shows what it prints, and returns that."""
        process = self._start(*arguments)
        try:
            printed, complaint = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Unexpected(f"this takes longer than {PATIENCE:g} s.") from None
        for line in (printed + complaint).splitlines():
            reveal(line)
        if process.returncode != code:
            raise Unexpected(f"the exit code is {process.returncode}, not {code}.")
        return printed.removesuffix("\n")

    def follow(self, client: str, topic: str) -> "Follower":
        """Lets a client get messages until the story is over."""
        # With a second's patience it soon notices that a broker is gone, and tries again for long.
        patience = ["--timeout", "1", "--retries", "20"]
        process = self._start("get", topic, "--client", client, "--follow", *patience, background=True)
        return Follower(client, process)

    def _start(self, *arguments: str, background: bool = False) -> "subprocess.Popen[str]":
        show(f"  $ stafeta {shlex.join(arguments)}{' &' if background else ''}", CYAN)
        return self._starter.submit(self._spawn, arguments).result()

    def _spawn(self, arguments: Sequence[str]) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "stafeta", *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the others
        )
        self._ending.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


class Lines:
    """The lines that a process prints, as they come."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None, "it is a pipe"
        self.lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def wait(self, find: Callable[[list[str]], _T | None]) -> _T | None:
        """Waits until something is found among the lines; None if it does not come."""
        with self._news:
            self._news.wait_for(lambda: self._ended or find(self.lines), PATIENCE)
            return find(self.lines)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Follower(Lines):
    """Someone whose messages are shown."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        super().__init__(process.stdout)
        self._complaints = Lines(process.stderr)
        self._name = name
        self._shown = 0

    def got(self, total: int) -> None:
        """Waits until so many messages have come in all, and shows the new ones."""
        if not self.wait(lambda lines: len(lines) >= total):
            complaints = "\n".join(self._complaints.lines)
            raise Unexpected(f"{self._name} has {len(self.lines)} messages, not {total}.\n{complaints}")
        for line in self.lines[self._shown :]:
            reveal(f"{self._name} gets: {line}")
        self._shown = len(self.lines)


def expect(got: str, wanted: str) -> None:
    if got != wanted:
        raise Unexpected(f"the output should have been\n{wanted}\nand was\n{got}")


def tell(sentence: str) -> None:
    show(f"\n{sentence}", BOLD)


def reveal(line: str) -> None:
    show(f"    {line}", DIM)


def show(text: str, *styles: str) -> None:
    print(f"\033[{';'.join(styles)}m{text}\033[0m" if COLOURED else text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
