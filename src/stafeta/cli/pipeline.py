"""`stafeta pipeline`: runs jobs on Spark, tells how they are, and stops them."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from stafeta.cli.configured import add_configuration, add_own, add_spark, configuration
from stafeta.cli.parser import Parser

_PATIENCE = 60.0


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "pipeline",
        help="run jobs on Spark: archive, rollup, alerts and others",
        description="Runs jobs on Spark, tells how they are, and stops them.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_JobParser
    )
    listing = commands.add_parser("list", help="print the jobs there are", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print one JSON object a line")
    listing.set_defaults(run=_list)
    _register_run(commands)
    _register_sql(commands)
    status = commands.add_parser(
        "status",
        help="print how jobs are",
        description="Prints the last report of each job. One whose runner has said nothing for 10 s is shown so.",
        allow_abbrev=False,
    )
    status.add_argument("--json", action="store_true", help="print one JSON object a line")
    add_configuration(status)
    status.set_defaults(run=_status)
    stop = commands.add_parser(
        "stop",
        help="stop jobs",
        description="Stops jobs, wherever they run, and waits until they have stopped. They go on where they were when "
        "they are run again.",
        allow_abbrev=False,
    )
    stop.add_argument("names", metavar="NAME", nargs="*", help="the jobs to stop (all that run)")
    stop.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=_PATIENCE,
        help=f"how long to wait ({_PATIENCE:g})",
    )
    add_configuration(stop)
    stop.set_defaults(run=_stop)


def _register_run(commands: "argparse._SubParsersAction[_JobParser]") -> None:
    run = commands.add_parser(
        "run",
        help="run jobs, of Stafeta's or your own",
        description="Runs jobs in one Spark session, until SIGTERM or SIGINT: then they stop after the micro-batch "
        "that is being worked on. A job that fails is started again, later and later.",
        epilog="'stafeta pipeline run JOB --help' tells about the options of a job. A second Ctrl-C ends at once.",
        allow_abbrev=False,
    )
    run.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="a job that 'list' has, or a file with jobs of your own: ./my_job.py",
    )
    _add_once(run)
    add_spark(run)
    add_own(run)
    add_configuration(run)
    run.set_defaults(run=_run)


def _register_sql(commands: "argparse._SubParsersAction[_JobParser]") -> None:
    sql = commands.add_parser(
        "sql",
        help="run a continuous query from topics to a topic",
        description="Runs the SELECT in a file over the streams 'messages' and 'readings', and writes its rows to a "
        "topic, exactly once: columns of the sink (payload, kind, timestamp) as they are, others as JSON objects.",
        allow_abbrev=False,
    )
    sql.add_argument("file", metavar="FILE.sql", help="the file with the SELECT")
    sql.add_argument("--into", metavar="TOPIC", required=True, help="the topic that the rows go to")
    sql.add_argument("--name", help="the job's name (the file's)")
    sql.add_argument(
        "--watermark", metavar="DURATION", default="10s", help="how long to wait for late messages (10s)"
    )
    _add_once(sql)
    add_spark(sql)
    add_configuration(sql)
    sql.set_defaults(run=_sql, own=True)


def _add_once(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="do what there is to do now, and end")


class _JobParser(Parser):
    """Has the options of the jobs that are named, too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.prog.endswith(" run") and args:
            self._add_options(args)
        return super().parse_known_args(args, namespace)

    def _add_options(self, words: Sequence[str]) -> None:
        from stafeta.pipeline.jobs.options import OPTIONS

        added: list[str] = []
        for name in dict.fromkeys(_before_options(words)):
            if name in OPTIONS:
                group = self.add_argument_group(f"options of {name}")
                try:
                    OPTIONS[name](group)
                except argparse.ArgumentError:
                    self._refuse(words)
                added += [action.dest for action in group._group_actions]
                self.set_defaults(of_jobs=added)

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        self.error(f"{' and '.join(_before_options(words))} have options of the same name; run one at a time")


def _before_options(words: Sequence[str]) -> list[str]:
    """The names of jobs: the first words that are no options in a row. Options of a job stand behind its name."""
    names: list[str] = []
    for word in words:
        if word.startswith("-") and names:
            break
        if not word.startswith("-"):
            names.append(word)
    return names


def _list(options: argparse.Namespace) -> int:
    from stafeta.cli.pipeline_status import print_jobs

    return print_jobs(options.json)


def _run(options: argparse.Namespace) -> int:
    from stafeta.cli.pipeline_run import jobs_named, run

    arguments = {name: getattr(options, name) for name in getattr(options, "of_jobs", ())}
    return run(configuration(options), lambda: jobs_named(options.names), options, arguments)


def _sql(options: argparse.Namespace) -> int:
    from pathlib import Path

    from stafeta.cli.pipeline_run import run
    from stafeta.errors import ConfigError
    from stafeta.units import parse_duration

    try:
        watermark = parse_duration(options.watermark)
    except ConfigError as error:
        raise ConfigError(f"--watermark: {error}") from None

    def jobs() -> Any:
        from stafeta.pipeline.continuous import continuous

        return [continuous(Path(options.file), options.into, name=options.name, watermark=watermark)]

    return run(configuration(options), jobs, options, {})


def _status(options: argparse.Namespace) -> int:
    from stafeta.cli.pipeline_status import print_status

    return print_status(configuration(options), options.json)


def _stop(options: argparse.Namespace) -> int:
    from stafeta.cli.pipeline_status import stop

    return stop(configuration(options), options.names, options.timeout)
