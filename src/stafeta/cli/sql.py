"""`stafeta sql`: questions to lake and log."""

import argparse
import sys
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stafeta.cli.configured import add_configuration, add_own, add_spark, configuration, spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stafeta.cli.interrupts import Interrupts
    from stafeta.config import Config
    from stafeta.pipeline.sql.results import Done, Output, Statements

_ON_A_TERMINAL: Final = 1000  # rows


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "sql",
        help="ask lake and log with SQL",
        description="Carries out SQL on the views messages, readings, rollups and dead: what the pipeline has put "
        "into the lake, and what the broker holds since. Without a statement it is a shell on a terminal, and "
        "otherwise reads standard input.",
        epilog="Several statements have semicolons between. docs/sql.md tells of the views.",
        allow_abbrev=False,
    )
    parser.add_argument("statement", metavar="SQL", nargs="?", help="what to ask; - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object a row")
    form.add_argument("--csv", action="store_true", help="print CSV, with a head")
    form.add_argument(
        "--parquet", metavar="FILE", help="write the result of the last statement to a Parquet file"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        help=f"at most so many rows of each result; 0 for all ({_ON_A_TERMINAL:,} on a terminal, otherwise all)",
    )
    add_spark(parser)
    add_own(parser)
    add_configuration(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config = configuration(options)
    if options.limit is not None and options.limit < 0:
        from stafeta.errors import ConfigError

        raise ConfigError(f"--limit: {options.limit} is not a number of rows; 0 is for all of them.")
    if options.statement is None and sys.stdin.isatty():
        return _converse(options, config)
    return _carry_out(options, config)


def _carry_out(options: argparse.Namespace, config: "Config") -> int:
    import time

    from stafeta.cli import exits
    from stafeta.cli.sql_statements import parted
    from stafeta.errors import ConfigError

    text = options.statement
    statements = parted(sys.stdin.read() if text in (None, "-") else text).all
    if not statements:
        raise ConfigError("There is no statement; write one, such as 'SELECT count(*) FROM messages'.")
    output, limit = _output(options), _limit(options)

    with _queries(options, config, " ".join(statements)) as (queries, interrupts):
        for statement in statements:
            begin = time.monotonic()
            with interrupts.cancelling(queries.cancel):
                done = queries.run(statement, output, limit)
            report(options, done, time.monotonic() - begin)
    return exits.OK


def _converse(options: argparse.Namespace, config: "Config") -> int:
    from stafeta.cli import connection, exits, sql_shell
    from stafeta.errors import ConfigError

    if options.parquet:
        raise ConfigError("--parquet goes with a statement: its result is what is written.")
    output = _output(options)

    def starting() -> None:
        tell(f"Starting Spark on {options.remote or options.master or 'this machine'}.")

    with _queries(options, config, "messages", starting) as (queries, interrupts):
        tell("'help' lists what there is.")
        folder = connection.state_folder(argparse.Namespace(client="default", state=None))
        shell = sql_shell.Shell(queries, output, _limit(options), interrupts)
        shell.run(folder / "sql-history", lambda done, seconds: report(options, done, seconds))
    return exits.OK


@contextmanager
def _queries(
    options: argparse.Namespace,
    config: "Config",
    asked_for: str,
    starting: "Callable[[], None]" = lambda: None,
) -> "Iterator[tuple[Statements, Interrupts]]":
    """Whoever carries out statements, and Ctrl-C in its hands: the Spark of a pipeline that runs, if there is one and
    nothing else is asked for, and otherwise one of its own, which takes a while to start."""
    from stafeta.cli.interrupts import Interrupts
    from stafeta.pipeline import endpoint

    settings = spark_settings(options)
    elsewhere = options.own or options.master or options.remote or settings
    asked = None if elsewhere else endpoint.queries(config, tell)
    if asked is not None:
        with closing(asked), Interrupts() as interrupts:
            yield asked, interrupts
        return
    from stafeta.pipeline.session import end, session
    from stafeta.pipeline.sql.results import VIEWS

    starting()
    about_views = any(view in asked_for.lower() for view in VIEWS)
    spark = session(
        config,
        master=options.master,
        remote=options.remote,
        name="stafeta sql",
        settings=settings,
        verbose=options.verbose,
        quick=True,
        archive=about_views,  # it has most of the classes then
        meanwhile=partial(_prepare, config) if about_views else _import_queries,
    )
    try:
        from stafeta.pipeline.sql.queries import Queries

        with Interrupts() as interrupts:
            yield Queries(spark, config, tell), interrupts
    finally:
        end(spark)


def _prepare(config: "Config") -> None:
    """What a question needs beside Spark: modules, and the lake's catalog."""
    _import_queries()
    import stafeta.pipeline.view  # noqa: F401
    from stafeta.pipeline.lake import Lake

    with suppress(Exception):  # it is looked up again, and then told
        Lake(config.lake).found("messages")


def _import_queries() -> None:
    import pyspark.sql.pandas.types  # noqa: F401

    import stafeta.pipeline.sql.queries  # noqa: F401


def report(options: argparse.Namespace, done: "Done", seconds: float) -> None:
    """Says on standard error how much there was, if somebody reads it there."""
    if done.cut:
        limit = "" if options.limit else "; --limit N shows more, --limit 0 all"
        tell(f"Only the first {done.rows:,} rows are here{limit}.")
    if (options.json or options.csv) and not sys.stderr.isatty():
        return
    count = f"{done.rows:,} row{'' if done.rows == 1 else 's'}" if done.has_columns else "Done"
    tell(f"{count}, {seconds:.1f} s")


def tell(sentence: str) -> None:
    sys.stdout.flush()
    print(sentence, file=sys.stderr, flush=True)


def _limit(options: argparse.Namespace) -> int | None:
    limit: int | None = options.limit
    if limit is None and sys.stdout.isatty() and not options.parquet:
        return _ON_A_TERMINAL
    return limit or None


def _output(options: argparse.Namespace) -> "Output":
    from pathlib import Path

    from stafeta.cli import sql_output
    from stafeta.errors import ConfigError

    if options.json:
        return sql_output.Json()
    if options.csv:
        return sql_output.Csv()
    if options.parquet:
        path = Path(options.parquet)
        if path.is_dir() or not path.parent.is_dir():
            raise ConfigError(f"--parquet: {path} is no place for a file.")
        return sql_output.Parquet(path)
    return sql_output.Table(sql_output.terminal_width())
