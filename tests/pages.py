"""A reader who does what a page says, block by block: `python -m tests.pages docs/cli.md`.

1. Blocks run as they stand, on the ports that they name, in a network that belongs to the reader alone where the system
   allows that. Those of a page share a folder, a broker and, if they are Python, their variables.
2. Of what a block shows, `…` may be anything.
3. What goes on for ever is stopped by Ctrl-C once it has shown what the page says, or at the end of the page.
4. What takes a minute, or a JVM, is for `--slow`; what has to be there before, for `FILES`.
"""

import faulthandler
import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.waiting import PATIENCE, wait_until

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SHELLS: Final = ("console", "sh")
DATA: Final = ("json", "toml", "yaml")

_FENCE: Final = re.compile(r" *```(\S*)$")
_SAID: Final = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)
_SPARK: Final = re.compile(r"\bspark\b|iceberg|@job|\.format\(\"stafeta\"\)")
_BROKER: Final = "stafeta serve --set 'topics.\"#\".keep=1d'"
_SERVER: Final = re.compile(r"(\.venv/bin/)?stafeta (serve|devices server)\b")
_LASTING: Final = re.compile(r"stafeta (serve|devices (server|subscriber)|pipeline (run|sql)(?!.* --once))\b")
_SLOW: Final = re.compile(
    r"stafeta (bench|sql|spark .*--shell|pipeline (run|sql|status|stop))\b|--count 60000"
)
_SHELL: Final = re.compile(r"stafeta sql *(#|$)")
_TYPED: Final = re.compile(r"(un)?subscribe |exit$")

FILES: Final = {
    "readings.txt": "".join(f"{number}.5\n" for number in range(100)),
    "readings.jsonl": '{"topic": "hall/door", "kind": "float", "value": 21.50}\n',
    "report.sql": "SELECT 1 AS one; SELECT topic FROM messages;",
    "orders.schema.json": '{"type": "object", "required": ["id"]}',
}
READINGS: Final = {"upb/hall": ["21.00", "21.50"], "upb/lab": ["19.75"]}


class Block(NamedTuple):
    page: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def of_spark(self) -> bool:
        """Whether it is Python that needs a Spark session, or a lake that a job of Spark's has filled."""
        return self.info == "python" and bool(_SPARK.search(self.text))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    begun: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and begun is None:
            begun, lines = (number, fence[1]), []
        elif fence and begun is not None:
            yield Block(page, *begun, "".join(f"{one}\n" for one in lines))
            begun = None
        else:
            lines.append(line)
    assert begun is None, f"{page}: the last block has no end"


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a shell's block, and what each shows: nothing where the block has commands only."""
    if block.info == "sh":
        lines = block.text.replace("\\\n", " ").splitlines()
        return [(line.strip(), []) for line in lines if line.strip()]
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def is_slow(block: Block) -> bool:
    """Whether some of it is for `--slow` only."""
    return block.info in SHELLS and any(_SLOW.search(command) for command, _ in commands(block))


def shows(wanted: list[str], output: str) -> bool:
    """Whether an output has these lines one after the other, with others between, before and after."""
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in wanted]
    rest = iter(output.splitlines())
    return all(any(re.fullmatch(f"{pattern}\\s*", line) for line in rest) for pattern in patterns)


class Lasting:
    """A command that goes on until it is stopped."""

    def __init__(self, command: str, folder: Path) -> None:
        self.command = command
        self._folder = folder
        self._output = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - lives as long as the program
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command.removesuffix('&')}"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
        )

    @property
    def output(self) -> str:
        return os.pread(self._output.fileno(), 1 << 20, 0).decode()

    def enter(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def wait_for(self, *lines: str) -> None:
        """Waits until it has shown these lines."""
        wait_until(lambda: shows(list(lines), self.output) or self.process.poll() is not None)
        assert shows(list(lines), self.output), f"{self.command} does not show {lines}:\n{self.output}"

    def stop(self) -> None:
        ended = self.process.poll()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        expected = (0, 130, -signal.SIGINT) if ended is None else (0,)
        assert code in expected, f"{self.command} ends with {code}:\n{self.output}"


class Reader:
    """Works through the blocks of a page in a folder of its own."""

    def __init__(self, folder: Path, *, slow: bool) -> None:
        self._folder = folder
        self._slow = slow
        self._lasting: list[Lasting] = []
        self._variables: dict[str, Any] = {"__name__": "__main__"}
        for path in ROOT.iterdir():
            if path.name not in (".git", ".hypothesis", ".pytest_cache"):
                (folder / path.name).symlink_to(path)
        if not (folder / ".venv").exists():
            (folder / ".venv").symlink_to(sys.prefix)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        home = folder / "home"
        home.mkdir()
        os.environ.update(HOME=str(home), XDG_STATE_HOME=str(home), PYTHONUNBUFFERED="1")
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    def work(self, block: Block) -> None:
        if block.info in SHELLS:
            self._shell(block)
        elif block.info == "python" and not block.of_spark:
            self._need_broker()
            self._python(block)
        elif block.info in DATA:
            self._data(block)

    def finish(self) -> None:
        with ExitStack() as stopping:  # all of them, also where one has gone wrong
            for lasting in self._lasting:
                stopping.callback(lasting.stop)

    # --- shells

    def _shell(self, block: Block) -> None:
        done = commands(block)
        if any(_SERVER.match(command) for command, _ in done):
            self._stop(_SERVER)
        elif not all(command.startswith("make") for command, _ in done):
            self._need_broker()
        for command, wanted in done:
            if self._slow or not _SLOW.search(command):
                self._run(command, wanted)
        self._stop(re.compile("stafeta devices server"))

    def _run(self, command: str, wanted: list[str]) -> None:
        if command.startswith("make "):  # the tests are one of them
            command = f"make --dry-run {command.removeprefix('make ')}"
        if _LASTING.search(command):
            self._start(command, wanted)
            return
        terminal, typed = pty.openpty()
        os.write(terminal, b"\x04")  # Ctrl-D, for a shell
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            stdin=typed if _SHELL.match(command) else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        os.close(terminal)
        os.close(typed)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}ends with {done.returncode}"
        assert shows(wanted, done.stdout), f"$ {command}\n{done.stdout}does not show {wanted}"

    def _start(self, command: str, wanted: list[str]) -> None:
        lasting = Lasting(command, self._folder)
        self._lasting.append(lasting)
        if server := _SERVER.match(command):
            last = "flight" if server[2] == "serve" else "devices"
            lasting.wait_for(f"… {last}: listening on …")
        elif "stafeta pipeline" in command:
            lasting.wait_for("…: running.")
        for line in wanted:
            if _TYPED.match(line):
                lasting.enter(line)
            else:
                lasting.wait_for(line)

    def _need_broker(self) -> None:
        if not any(_SERVER.match(lasting.command) for lasting in self._lasting):
            self._start(_BROKER, [])
            if self._slow:
                self._publish()

    def _publish(self) -> None:
        import stafeta

        with stafeta.connect() as broker:
            for topic, values in READINGS.items():
                broker.publish(topic, values, kind="float")

    def _stop(self, which: "re.Pattern[str]") -> None:
        """Stops a server, and first whatever was started after it."""
        while any(which.match(lasting.command) for lasting in self._lasting):
            self._lasting.pop().stop()

    # --- Python

    def _python(self, block: Block) -> None:
        said = _SAID.findall(block.text)
        endless = ".messages(" in block.text and "break" not in block.text
        output = _Output(said if endless else None)
        code = compile(block.text, str(block), "exec", dont_inherit=True)
        with redirect_stdout(output), suppress(KeyboardInterrupt):
            exec(code, self._variables)
            assert not endless, "it does not go on for ever"
        shown = output.getvalue()
        assert shows(said, shown), f"it shows\n{shown}instead of {said}"

    # --- data

    def _data(self, block: Block) -> None:
        match block.info:
            case "json":
                decoder, rest = json.JSONDecoder(), block.text.strip()
                while rest:
                    _, end = decoder.raw_decode(rest)
                    rest = rest[end:].lstrip()
            case "yaml":
                import yaml  # type: ignore[import-untyped]

                assert yaml.safe_load(block.text)
            case _:
                _load(self._folder / f"{block.line}.toml", block.text)


def _load(path: Path, text: str) -> None:
    """Takes a TOML file as what its first table says that it is."""
    path.write_text(text)
    tables = tomllib.loads(text)
    if "rule" in tables:
        from stafeta.pipeline.jobs.alerting import rules

        assert rules.load(path)
        path.with_name("alerts.toml").write_text(text)
    elif "users" in tables:
        from stafeta.security.users import read

        assert read(text, path.name).users
    elif "schema" in tables:
        from stafeta.pipeline.jobs import schemas

        assert schemas.load(path)
    else:
        from stafeta.config import load

        load(path, environment={})


class _Output(io.StringIO):
    """Takes what is printed, and stops the program once that is what it is waited for."""

    def __init__(self, enough: list[str] | None) -> None:
        super().__init__()
        self._enough = enough

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._enough and shows(self._enough, self.getvalue()):
            self._enough = None
            signal.raise_signal(signal.SIGINT)
        return count


def main(name: str, *flags: str) -> int:
    _raise_loopback()
    page = ROOT / name
    with tempfile.TemporaryDirectory(prefix="stafeta-page-", ignore_cleanup_errors=True) as folder:
        reader = Reader(Path(folder), slow="--slow" in flags)
        os.chdir(folder)
        for block in blocks(page):
            if block.info == "sql":
                Path("means.sql").write_text(block.text)
        for example in ("my_job.py", "alerts.toml"):
            shutil.copy(f"examples/{example}", folder)
        try:
            for block in blocks(page):
                faulthandler.dump_traceback_later(3 * PATIENCE, exit=True)
                try:
                    reader.work(block)
                except BaseException:
                    print(f"{block}\n{block.text}", file=sys.stderr)
                    raise
        finally:
            reader.finish()
            faulthandler.cancel_dump_traceback_later()
    return 0


def _raise_loopback() -> None:
    """In a new network the loopback device is down. (SIOCSIFFLAGS of netdevice(7))"""
    with suppress(OSError), socket.socket() as any_:
        fcntl.ioctl(any_, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # up, running


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
