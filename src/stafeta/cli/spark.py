"""`stafeta spark`: what a Spark session needs to read topics, to be pasted or in a shell."""

import argparse
from typing import TYPE_CHECKING, Final, NoReturn

from stafeta.cli import credentials

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS: Final = "grpc://127.0.0.1:8815"
_EVERYTHING: Final = "#"
_MASTER: Final = "local[*]"
# Spark looks for sources, and runs its workers, with the python3 of the PATH unless another is set.
_LINES: Final = """\
import os, sys; from pyspark.sql import SparkSession; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
messages = spark.read.format("stafeta").options(broker={broker}, subscribe={subscribe}, decode="true").load()"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "spark",
        help="read topics with Spark",
        usage="stafeta spark [-h] [--broker ADDRESS] [--subscribe FILTER] [--shell [--master URL] [-- ARGS]]",
        description="Prints the three lines with which a script or notebook reads topics as a Spark DataFrame; or "
        "opens PySpark's shell, with that DataFrame at hand.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--broker",
        metavar="ADDRESS",
        default=_ADDRESS,
        help=f"where the broker's Flight door is ({_ADDRESS})",
    )
    parser.add_argument(
        "--subscribe",
        metavar="FILTER",
        default=_EVERYTHING,
        help=f"the topics to read: one, a filter, or several with commas between ({_EVERYTHING})",
    )
    credentials.add_flight(parser)
    parser.add_argument("--shell", action="store_true", help="open pyspark instead of printing")
    parser.add_argument("--master", metavar="URL", help=f"with --shell: where Spark runs ({_MASTER})")
    parser.add_argument("arguments", metavar="ARGS", nargs="*", help="with --shell: what pyspark is given")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from stafeta.errors import ConfigError

    broker, subscribe = _address(options.broker), _filters(options.subscribe)
    if options.shell:
        _open(broker, subscribe, options.master or _MASTER, options.arguments)
    if options.master is not None or options.arguments:
        what = "--master" if options.master is not None else options.arguments[0]
        raise ConfigError(f"{what} goes with --shell; what is printed is for a session of your own.")
    return _print(broker, subscribe)


def _print(broker: str, subscribe: str) -> int:
    import sys

    from stafeta.cli import exits, rendering
    from stafeta.errors import StafetaError

    rendering.write([_LINES.format(broker=_quoted(broker), subscribe=_quoted(subscribe)).encode()])
    try:
        _check()
    except StafetaError as error:  # the lines may be for another machine
        print(f"stafeta: {error}", file=sys.stderr)
    return exits.OK


def _open(broker: str, subscribe: str, master: str, arguments: list[str]) -> NoReturn:
    """Becomes pyspark. What it is given comes after what we set, and so goes before it."""
    import os
    import signal
    import sys
    from pathlib import Path

    from stafeta.errors import ConfigError
    from stafeta.pipeline.session import python_path

    home = _check()
    on_terminal = os.isatty(0)
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Without -i Python takes a pipe for a script, and runs no startup file: there would be no session.
        "PYSPARK_DRIVER_PYTHON_OPTS": "" if on_terminal else "-i -q",
        "PYTHONSTARTUP": str(Path(__file__).with_name("spark_startup.py")),
        "PYTHONPATH": python_path(),
    }
    if master.startswith("local"):
        # Otherwise Spark's pages about the session are open to the network.
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": str(on_terminal and os.isatty(2)).lower(),
        "spark.stafeta.broker": broker,
        "spark.stafeta.subscribe": subscribe,
        "spark.stafeta.startup": os.environ.get("PYTHONSTARTUP", ""),
    }
    script = str(home / "bin" / "pyspark")
    command = [script, "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and a new program would go on to
    try:
        os.execve(script, [*command, *arguments], environment)  # noqa: S606 - the user's own arguments
    except OSError as error:
        raise ConfigError(f"{script} cannot be run: {error.strerror}.") from None


def _check() -> "Path":
    """Where Spark is. Raises where it is not, or has no Java."""
    import os
    from importlib.util import find_spec
    from pathlib import Path

    from stafeta.errors import ConfigError
    from stafeta.pipeline.java import check_java

    found = find_spec("pyspark")  # which does not import it
    if found is None or found.origin is None:
        raise ConfigError("Spark needs PySpark, which is missing: pip install 'stafeta[spark]'.")
    # The package has all of Spark in it, unless it is itself a part of a Spark that was installed otherwise.
    homes = [Path(found.origin).parent, Path(os.environ.get("SPARK_HOME") or Path(found.origin).parents[2])]
    home = next((home for home in homes if (home / "bin" / "pyspark").exists()), None)
    if home is None:
        raise ConfigError("The PySpark that is installed has no Spark in it: pip install 'stafeta[spark]'.")
    check_java()
    return home


def _address(text: str) -> str:
    from stafeta.addresses import read_flight
    from stafeta.errors import ConfigError

    try:
        return read_flight(text)
    except ConfigError as error:
        raise ConfigError(f"--broker: {error}") from None


def _filters(text: str) -> str:
    from stafeta.errors import ConfigError, InvalidName
    from stafeta.names import check_filter

    names = [name.strip() for name in text.split(",")]
    try:
        for name in names:
            check_filter(name)
    except InvalidName as error:
        raise ConfigError(f"--subscribe: {error}") from None
    return ",".join(names)


def _quoted(text: str) -> str:
    """A literal of Python, in the quotes that the rest of the line has if it can be."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in text else literal
