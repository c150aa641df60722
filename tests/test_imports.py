"""Dependencies point inwards, and what must start quickly imports nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta

ROOT = Path(stafeta.__file__).parent
INNERMOST = {
    "stafeta.addresses",
    "stafeta.backoff",
    "stafeta.columns",
    "stafeta.credentials",
    "stafeta.curve",
    "stafeta.errors",
    "stafeta.histogram",
    "stafeta.message",
    "stafeta.names",
    "stafeta.ranges",
    "stafeta.text_tables",
    "stafeta.times",
}
# What the modules of a package may import of Stafeta, besides the package itself.
ALLOWED = {
    "stafeta.store": INNERMOST,
    "stafeta.security": {*INNERMOST, "stafeta.config.toml", "stafeta.logs"},
    "stafeta.broker": {
        *INNERMOST,
        "stafeta.config.options",
        "stafeta.security",
        "stafeta.store.port",
        "stafeta.logs",
    },
    "stafeta.pipeline": {
        *INNERMOST,
        "stafeta.config",
        "stafeta.connect",
        "stafeta.clients.flight",
        "stafeta.clients.tls",
        "stafeta.progress",
        "stafeta.state",
        "stafeta.units",
    },
    "stafeta.metrics": {
        *INNERMOST,
        "stafeta.__version__",
        "stafeta.broker",
        "stafeta.doors.figures",
        "stafeta.pipeline.runner.reports",
        "stafeta.security",
        "stafeta.store.port",
    },
    "stafeta.testing": {*INNERMOST, "stafeta.cli.main", "stafeta.clients.closing", "stafeta.store.port"},
    "stafeta.config": {
        "stafeta.addresses",
        "stafeta.credentials",
        "stafeta.errors",
        "stafeta.names",
        "stafeta.units",
    },
    "stafeta.clients": {
        *INNERMOST,
        "stafeta.doors.devices.codec",
        "stafeta.doors.devices.readings",
        "stafeta.doors.devices.signing",
        "stafeta.doors.frames.codec",
        "stafeta.doors.frames.serializers",
    },
    **{
        f"stafeta.doors.{door.name}": {
            *INNERMOST,
            "stafeta.__version__",
            "stafeta.broker",
            "stafeta.config",
            "stafeta.doors.connection",
            "stafeta.doors.delivery",
            "stafeta.doors.figures",
            "stafeta.doors.tls",
            "stafeta.clients.forks",
            "stafeta.logs",
            "stafeta.priority",
            "stafeta.security",
        }
        for door in (ROOT / "doors").iterdir()
        if (door / "__init__.py").exists()
    },
}
# Which have no sockets, and make and take Arrow data.
ALLOWED["stafeta.doors.http"] |= {
    "stafeta.doors.flight.encode_batches",
    "stafeta.doors.flight.decode_batches",
}
# What a command or a client does not wait for.
HEAVY = {"pyarrow", "pyspark", "uvloop", "numpy", "pandas"}
OF_THE_BROKER = {"stafeta.broker", "stafeta.config", "stafeta.server", "stafeta.store"}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_lies_further_in(package: str) -> None:
    allowed = {package, *ALLOWED[package]}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT.parent / Path(*package.split("."))).rglob("*.py")
        for name in imports(path)
        if within(name, {"stafeta"}) and not within(name, allowed)
    ]
    assert not wrong


@pytest.mark.parametrize(
    "command",
    [
        "put",
        "get",
        "sub",
        "unsub",
        "topics",
        "watch",
        "tail",
        "subs",
        "completion",
        "shell",
        "serve",
        "devices",
        "bench",
        "spark",
        "pipeline",
        "sql",
    ],
)
def test_the_command_line_and_the_client_start_without_heavy_imports(command: str) -> None:
    script = (
        "import sys, stafeta.cli.main\n"
        "try: stafeta.cli.main.main(sys.argv[1:])\n"
        "except SystemExit as leaving: assert leaving.code == 0\n"
        "stafeta.Client, stafeta.AsyncClient, stafeta.Message\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command, "--help"], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert "stafeta.clients.zeromq.client" in modules
    configuration = {"stafeta.config"} if command == "serve" else set()  # its help is that of the options
    assert not {name for name in modules if within(name, HEAVY | OF_THE_BROKER - configuration)}


def test_spark_tasks_that_file_messages_import_nothing_of_the_lake_that_they_do_not_need() -> None:
    script = "import sys, stafeta.pipeline.connector.file_source; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {"pyiceberg", "sqlalchemy"}


@pytest.mark.parametrize("command", ["subscriber", "publish"])
def test_a_device_command_imports_only_what_it_needs(command: str) -> None:
    script = f"import sys, stafeta.cli.main, stafeta.cli.devices_{command}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = HEAVY | OF_THE_BROKER | {"asyncio", "zmq", "stafeta.doors.zeromq", "stafeta.doors.frames"}
    assert not {name for name in done.stdout.split() if within(name, others)}


def imports(path: Path) -> Iterator[str]:
    """The full names of the modules, or of what is taken from them, that a file imports anywhere in it."""
    package = path.relative_to(ROOT.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{module}.{name.name}" for name in node.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
