"""`stafeta backup` and `restore`: copies of a data folder, made while its broker runs."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from stafeta.cli import exits
from stafeta.errors import ConfigError
from stafeta.units import parse_count, parse_size

if TYPE_CHECKING:
    from stafeta.backup.destination import Destination
    from stafeta.backup.points import Point
    from stafeta.store.sqlite.rebuilding import Resumed


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    backup = subparsers.add_parser(
        "backup",
        help="copy what a broker holds, while it runs",
        description="Copies a data folder as it is at one moment, whether or not a broker has it open; of what is at "
        "the destination already, nothing is copied again. Run it on the broker's machine, as its user.",
        allow_abbrev=False,
    )
    backup.add_argument(
        "to", metavar="TO", help="a folder, or a URL such as s3://bucket/path, gs://… or hdfs://…"
    )
    backup.add_argument(
        "--data", metavar="DIR", default="stafeta-data", help="folder of the log (stafeta-data)"
    )
    backup.add_argument(
        "--keep", metavar="N", help="remove all points but the last N, and what only they need"
    )
    backup.add_argument("--rate", metavar="SIZE", help="copy no more than this in a second, such as 50MB")
    what = backup.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print the points that there are, and make none")
    what.add_argument(
        "--verify",
        action="store_true",
        help="read every file of a point, and look whether it is what was written",
    )
    backup.add_argument(
        "--at", metavar="POINT", help="the point to verify, or how its name begins (the last)"
    )
    backup.add_argument("--json", action="store_true", help="print what was done as one JSON object")
    backup.set_defaults(run=run_backup)
    restore = subparsers.add_parser(
        "restore",
        help="make a data folder of a backup",
        description="Makes a data folder of a backup, and looks whether it is whole, as `stafeta check` does. A broker "
        "that is started on it goes on where no offset, client id or counter has been before.",
        allow_abbrev=False,
    )
    restore.add_argument("source", metavar="FROM", help="where backups are: a folder, or a URL")
    restore.add_argument(
        "--data", metavar="DIR", required=True, help="the folder to make; it has to be empty"
    )
    restore.add_argument("--at", metavar="POINT", help="the point, or how its name begins (the last)")
    restore.add_argument("--json", action="store_true", help="print what was done as one JSON object")
    restore.set_defaults(run=run_restore)


def run_backup(options: argparse.Namespace) -> int:
    from stafeta.backup.destination import Destination

    if options.at is not None and not options.verify:
        raise ConfigError("--at goes with --verify: a backup is made of what there is now.")
    destination = Destination.of(options.to)
    if options.list:
        return _list(destination, options.json)
    if options.verify:
        return _verify(destination, options.at, options.json)
    return _back_up(destination, options)


def _back_up(destination: "Destination", options: argparse.Namespace) -> int:
    from stafeta.backup.taking import take
    from stafeta.progress import Progress

    keep = None if options.keep is None else parse_count(options.keep)
    if keep == 0:
        raise ConfigError("--keep 0 would remove the point that was just made; write 1 or more.")
    rate = 0 if options.rate is None else parse_size(options.rate)
    with Progress(lambda done: None, "bytes") as progress:
        made = take(Path(options.data), destination, rate=rate, keep=keep, advance=progress.advance)
    point = made.point
    if options.json:
        print(json.dumps({**_plain(point), "copied": made.copied, "removed": made.points_removed}))
    else:
        print(
            f"Point {point.name}: {point.topics:,} topics, {_size(point.size)}, of which {_size(made.copied)} were "
            "copied now."
        )
        if made.points_removed or made.files_removed:
            print(f"Removed {made.points_removed:,} points and {made.files_removed:,} files.")
    return exits.OK


def _list(destination: "Destination", as_json: bool) -> int:
    from stafeta.backup.points import all_points
    from stafeta.text_tables import lines

    known, wrong = all_points(destination)
    if as_json:
        print(
            json.dumps({"points": [_plain(point) for point in known], "damaged": wrong}, ensure_ascii=False)
        )
    else:
        rows = [(point.name, point.time, f"{point.topics:,}", _size(point.size)) for point in known]
        found = (
            lines([("POINT", "TIME", "TOPICS", "SIZE"), *rows], "<<>>") if rows else ["There is no backup."]
        )
        for line in (*found, *wrong):
            print(line)
    return exits.DATA_FOLDER if wrong else exits.OK


def _verify(destination: "Destination", wanted: str | None, as_json: bool) -> int:
    from stafeta.backup.points import find
    from stafeta.backup.restoring import verify
    from stafeta.progress import Progress

    point = find(destination, wanted)
    with Progress(lambda done: done / max(point.size, 1), "bytes") as progress:
        wrong = verify(destination, point, progress.advance)
    if as_json:
        print(json.dumps({**_plain(point), "sound": not wrong, "findings": wrong}, ensure_ascii=False))
    else:
        for sentence in wrong:
            print(sentence)
        said = "It cannot be restored." if wrong else "Whole."
        print(f"Point {point.name}: {len(point.files):,} files, {_size(point.size)}. {said}")
    return exits.DATA_FOLDER if wrong else exits.OK


def run_restore(options: argparse.Namespace) -> int:
    from stafeta.backup.destination import Destination
    from stafeta.backup.points import find
    from stafeta.backup.restoring import restore
    from stafeta.cli.upkeep import check_folder
    from stafeta.progress import Progress

    destination = Destination.of(options.source)
    point = find(destination, options.at)
    with Progress(lambda done: done / max(point.size, 1), "bytes") as progress:
        resumed = restore(destination, point, Path(options.data), progress.advance)
    if not options.json:
        print(_sentence(point, resumed))
    went_on: dict[str, object] = {"point": point.name, "restored": resumed._asdict()}
    return check_folder(Path(options.data), repair=False, as_json=options.json, more=went_on)


def _sentence(point: "Point", resumed: "Resumed") -> str:
    return (
        f"Restored point {point.name}. Topics go on at offset {resumed.offset:,}, new clients at id "
        f"{resumed.client_id + 1:,}: nothing that was given out after the backup comes again."
    )


def _plain(point: "Point") -> dict[str, object]:
    return {"point": point.name, "time": point.time, "topics": point.topics, "bytes": point.size}


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
