"""`stafeta check` and `skip`: is everything there, and what to do where it is not."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from stafeta.cli import connection, exits
from stafeta.cli.rendering import say
from stafeta.errors import ConfigError

if TYPE_CHECKING:
    from stafeta.store.sqlite.check import Finding, Report


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = subparsers.add_parser(
        "check",
        help="look whether a data folder is whole",
        description="Looks at everything in a data folder that no broker has open, and prints what is wrong, with "
        "topics and offsets. Exit code 0 says that it is sound, 5 that it is not.",
        allow_abbrev=False,
    )
    check.add_argument(
        "--data", metavar="DIR", default="stafeta-data", help="folder of the log (stafeta-data)"
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="make it whole: what is damaged or left over goes to its folder 'quarantine', and nothing is deleted",
    )
    check.add_argument("--json", action="store_true", help="print what was found as one JSON object")
    check.set_defaults(run=run_check)
    skip = subparsers.add_parser(
        "skip",
        help="go on past messages that are damaged",
        description="Lets everybody who reads a topic pass over messages that are damaged. Messages that can be read "
        "are refused.",
        allow_abbrev=False,
    )
    skip.add_argument("topic", metavar="TOPIC")
    skip.add_argument("offsets", metavar="OFFSETS", help="the first and the last of them: 5-9, or 5")
    skip.add_argument("--json", action="store_true", help="print topic and offsets as JSON")
    connection.add_options(skip)
    skip.set_defaults(run=run_skip)


def run_check(options: argparse.Namespace) -> int:
    return check_folder(Path(options.data), repair=options.repair, as_json=options.json)


def check_folder(folder: Path, *, repair: bool, as_json: bool, more: dict[str, object] | None = None) -> int:
    """Prints what is wrong with a folder, with `more` where it is JSON; returns the exit code."""
    from stafeta.examination import examine
    from stafeta.progress import Progress

    blocks = 1
    with Progress(lambda done: done / blocks, "batches") as progress:

        def advance(done: int, all_: int) -> None:
            nonlocal blocks
            blocks = all_
            progress.advance(done - progress.sent)

        report, lost = examine(folder, repair=repair, advance=advance)
        if lost is not None:
            after, _ = examine(folder, advance=advance)
    sound = report.sound if lost is None else after.sound
    if as_json:
        print(json.dumps({**(more or {}), **_plain(report, lost, sound)}, ensure_ascii=False))
    else:
        _print(report, lost, sound)
    return exits.OK if sound else exits.DATA_FOLDER


def _print(report: "Report", lost: "Report | None", sound: bool) -> None:
    for finding in report.findings:
        print(finding.sentence)
    if lost is not None:
        print("Repaired. The damaged database is in the folder 'quarantine'.")
        for finding in lost.findings:
            print(finding.sentence)
    if not sound:
        print(
            "It is damaged: `stafeta check --repair` keeps what is whole."
            if lost is None
            else "It is damaged still."
        )
        return
    print(
        f"Sound: {report.messages:,} messages of {report.topics:,} topics in {report.blocks:,} batches and "
        f"{report.segments:,} segments."
        if lost is None
        else "Sound."
    )


def _plain(report: "Report", lost: "Report | None", sound: bool) -> dict[str, object]:
    return {
        "sound": sound,
        "repaired": lost is not None,
        "topics": report.topics,
        "messages": report.messages,
        "batches": report.blocks,
        "segments": report.segments,
        "findings": [_plain_finding(one) for one in report.findings],
        "lost": [_plain_finding(one) for one in lost.findings] if lost is not None else [],
    }


def _plain_finding(finding: "Finding") -> dict[str, object]:
    plain: dict[str, object] = {"damage": finding.damage, "sentence": finding.sentence}
    if finding.topic:
        plain |= {"topic": finding.topic, "first": finding.start, "last": finding.stop - 1}
    return plain


def run_skip(options: argparse.Namespace) -> int:
    first, _, last = options.offsets.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise ConfigError(f"{options.offsets!r} are no offsets: write the first and the last, such as 5-9.")
    start, stop = int(first), int(last or first)
    with connection.visitor(options) as client:
        client.skip(options.topic, start, stop)
    say(
        f"Skipped {start} to {stop} of {options.topic}.",
        options.json,
        topic=options.topic,
        first=start,
        last=stop,
    )
    return exits.OK
