"""What `stafeta spark --shell` has at hand. The session's settings `spark.stafeta.…` tell what it was opened for."""

import sys
import traceback
from pathlib import Path
from types import CodeType, TracebackType

from pyspark.sql import DataFrame, SparkSession


def topics(filter: str | None = None, **options: str | int | bool) -> DataFrame:
    """The messages of topics, as a DataFrame: `topics("upb/+", columns="topic,number", minPartitions=4)`.

    The options are those of `format("stafeta")`. Where nothing else is said the broker is the shell's, and messages
    are decoded.
    """
    defaults = {"broker": _setting("broker"), "decode": "true", "subscribe": filter or _setting("subscribe")}
    reader = SparkSession.active().read.format("stafeta")
    return reader.options(**(defaults | options)).load()


def greet() -> None:
    print(
        f"Messages of {_setting('subscribe')} at {_setting('broker')} available as 'messages', "
        "those of another filter as topics('FILTER')."
    )


def behave_in_a_pipe() -> None:
    """Where nobody types, there is no prompt, and the first error ends it as it ends a script."""
    if not sys.stdin.isatty():
        sys.ps1 = sys.ps2 = ""
        sys.excepthook = _fail


def own_startup() -> CodeType | str:
    """The user's own startup file, in the place of which ours has come."""
    path = _setting("startup")
    return compile(Path(path).read_bytes(), path, "exec") if path and Path(path).is_file() else ""


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    raise SystemExit(1)


def _setting(name: str) -> str:
    return SparkSession.active().conf.get(f"spark.stafeta.{name}", "") or ""
