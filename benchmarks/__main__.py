"""`python -m benchmarks`: runs benchmarks and prints what they have measured."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    beside,
    cli,
    devices_commands,
    devices_drain,
    devices_fanout,
    devices_idle,
    devices_slow,
    devices_udp,
    flight_mixed,
    flight_read,
    get,
    metrics,
    peer_consume,
    peer_latency,
    peer_plot,
    peer_publish,
    pipeline_answers,
    pipeline_archive,
    pipeline_compact,
    pipeline_files,
    pipeline_latency,
    pipeline_plot,
    pipeline_rollup,
    pipeline_sql,
    pipeline_windows,
    put,
    put_json,
    rendering,
    security,
    spark_plot,
    spark_read,
    spark_sink,
    spark_stream,
    spark_tasks,
    stored,
    subscriptions,
    topics,
)
from benchmarks.brokers import BrokerFailed
from benchmarks.load import LoadFailed
from benchmarks.machine import facts
from benchmarks.results import Result, Table, from_plain, to_plain
from benchmarks.setting import Setting

BENCHMARKS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        put,
        put_json,
        get,
        topics,
        subscriptions,
        stored,
        cli,
        metrics,
        devices_udp,
        devices_fanout,
        devices_drain,
        devices_idle,
        devices_slow,
        devices_commands,
        beside,
        flight_mixed,
        flight_read,
        security,
        spark_read,
        spark_stream,
        spark_sink,
        spark_tasks,
        pipeline_archive,
        pipeline_rollup,
        pipeline_windows,
        pipeline_sql,
        pipeline_answers,
        pipeline_latency,
        pipeline_compact,
        pipeline_files,
        peer_publish,
        peer_consume,
        peer_latency,
    )
}


_BREAK = "\f"  # between two pages


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and folders go as well
    if options.list:
        for name, module in BENCHMARKS.items():
            print(f"{name:<18}{module.__doc__}")
        return 0
    results: dict[str, Result] = {}
    if options.begin_with:
        plain = json.loads(options.begin_with.read_text(encoding="utf-8"))
        results = {name: from_plain(one) for name, one in plain.items()}
        for name, result in results.items():
            if name not in options.names:
                _print(name, result)
    names = options.names or ([] if options.begin_with else list(BENCHMARKS))
    try:
        if options.markdown:  # before measuring for long
            rendering.check_places(_text(_pages(options.markdown)), [*results, *names, "bars"])
        for name in names:
            results[name] = _measure(name, BENCHMARKS[name].run, options)
            _print(name, results[name])
            _write(results, options)  # after each, because some take long
    except KeyboardInterrupt:
        return 130
    except (BrokerFailed, LoadFailed, rendering.NoPlace) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if not names:
        _write(results, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures a broker, and prints the figures beside the bars that they have to pass. Each benchmark "
        "starts brokers of its own on a temporary folder. Leave the machine alone meanwhile.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=_name, help=f"which: {', '.join(BENCHMARKS)} (all)"
    )
    parser.add_argument("--list", action="store_true", help="say what each measures, and measure nothing")
    parser.add_argument(
        "--quick", action="store_true", help="only see that they work: the figures say nothing"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there, too")
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        type=Path,
        help="write the tables into a page, and those in the folder of its name, that have markers for them: "
        "docs/benchmarks.md",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw what peer_* have measured, as SVG")
    parser.add_argument(
        "--plot-spark", metavar="FILE", type=Path, help="draw what spark_tasks has measured, as SVG"
    )
    parser.add_argument(
        "--plot-pipeline", metavar="FILE", type=Path, help="draw what pipeline_* have measured, as SVG"
    )
    parser.add_argument(
        "--rows", metavar="N", type=_count, help="so many rows in those of pipeline_* (10,000,000)"
    )
    parser.add_argument(
        "--from",
        dest="begin_with",
        metavar="FILE",
        type=Path,
        help="begin with the results in a file that --json wrote; without any NAME, measure nothing",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        help="a folder on the disk to measure (that of temporary files)",
    )
    return parser


def _name(word: str) -> str:
    if word not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{word!r} is no benchmark; they are {', '.join(BENCHMARKS)}")
    return word


def _count(word: str) -> int:
    try:
        count = int(word.replace(",", "").replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of rows, such as 1000000")
    return count


def _measure(name: str, run: Callable[[Setting], list[Table]], options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="stafeta-bench-", dir=options.folder) as temporary:
        machine = facts(Path(temporary))
        tables = run(Setting(name, Path(temporary), options.quick, options.rows))
    return Result(datetime.now(UTC).isoformat(timespec="seconds"), options.quick, machine, tuple(tables))


def _print(name: str, result: Result) -> None:
    print(rendering.text(name, result), end="\n\n", flush=True)


def _write(results: dict[str, Result], options: argparse.Namespace) -> None:
    ordered = {name: results[name] for name in BENCHMARKS if name in results}
    if options.json:
        plain = {name: to_plain(result) for name, result in ordered.items()}
        options.json.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.markdown:
        pages = _pages(options.markdown)
        for page, text in zip(pages, rendering.page(_text(pages), ordered).split(_BREAK), strict=True):
            page.write_text(text, encoding="utf-8")
    if options.plot:
        peer_plot.draw(ordered, options.plot)
    if options.plot_spark:
        spark_plot.draw(ordered, options.plot_spark)
    if options.plot_pipeline:
        pipeline_plot.draw(ordered, options.plot_pipeline)


def _pages(first: Path) -> list[Path]:
    """The page, and those in the folder of its name, in the order of the benchmarks that they show."""
    names = list(BENCHMARKS)

    def order(page: Path) -> int:
        shown = rendering.places(page.read_text(encoding="utf-8"))
        return min((names.index(name) for name in shown if name in BENCHMARKS), default=len(names))

    return [first, *sorted(first.with_suffix("").glob("*.md"), key=order)]


def _text(pages: list[Path]) -> str:
    return _BREAK.join(page.read_text(encoding="utf-8") for page in pages)


if __name__ == "__main__":
    sys.exit(main())
