"""`stafeta pipeline list`, `status` and `stop`: what needs no Spark."""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from stafeta import text_tables
from stafeta.cli import exits, rendering
from stafeta.config import Config
from stafeta.errors import ConfigError, NoReply
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.runner.reports import CONTROL, Heard, last_reports
from stafeta.pipeline.runner.status_reporter import order
from stafeta.times import iso

if TYPE_CHECKING:
    from stafeta.clients.flight.connection import Connection

_PATIENCE: Final = 5.0
_POLL_INTERVAL: Final = 0.2
_SIDES: Final = "<<<>>>>><"


def print_jobs(as_json: bool) -> int:
    width = max(map(len, BUILT_IN))
    for name, job in BUILT_IN.items():
        kind = "batch" if job.batch else "stream"
        sentence = f"{name:<{width}}  {kind:<6}  {job.about}"
        rendering.say(sentence, as_json, name=name, kind=kind, about=job.about)
    return exits.OK


def print_status(config: Config, as_json: bool) -> int:
    with _connected(config) as broker:
        heard = last_reports(broker)
    if as_json:
        for one in heard.values():
            plain = {
                **json.loads(one.report.to_json()),
                "heard": iso(one.at, "milliseconds"),
                "silent": one.silent(),
            }
            rendering.write([json.dumps(plain, ensure_ascii=False).encode()])
        return exits.OK
    if not heard:
        rendering.say("No job has run here lately.", False)
        return exits.NOTHING
    rendering.write(line.encode() for line in table(list(heard.values()), datetime.now(UTC)))
    return exits.OK


def table(heard: Sequence[Heard], now: datetime) -> list[str]:
    """How jobs are, as lines of a table."""
    rows = [("JOB", "STATE", "SINCE", "BATCH", "ROWS", "ROWS/S", "LAG", "RESTARTS", "")]
    for one in sorted(heard, key=lambda one: one.report.job):
        report = one.report
        speed = 0.0 if report.ended or one.silent(now) else report.rows_per_second
        rows.append(
            (
                report.job,
                report.state,
                report.since[:19].replace("T", " "),
                str(report.batch) if report.batch >= 0 else "-",
                f"{report.rows:,}",
                f"{speed:,.0f}",
                f"{report.lag:,}",
                str(report.restarts),
                f"not heard of since {iso(one.at, 'milliseconds')[11:19]}"
                if one.silent(now)
                else report.error,
            )
        )
    return text_tables.lines(rows, _SIDES)


def stop(config: Config, names: Sequence[str], timeout: float) -> int:
    with _connected(config) as broker:
        heard = last_reports(broker)
        running = [name for name, one in heard.items() if not one.report.ended and not one.silent()]
        missing = [name for name in names if name not in running]
        if missing:
            others = f"what runs is {', '.join(running)}" if running else "no job does"
            raise ConfigError(
                f"{' and '.join(missing)} {'does' if len(missing) == 1 else 'do'} not run; {others}."
            )
        wanted = list(names) or running
        if not wanted:
            rendering.say("No job runs.", False)
            return exits.NOTHING
        broker.publish(CONTROL, [order(wanted)], kind="json")
        _wait(broker, {name: heard[name].report.runner for name in wanted}, timeout)
    return exits.OK


def _wait(broker: "Connection", runners: dict[str, str], timeout: float) -> None:
    """Waits until all of them say that they have ended, or another runner has them."""
    deadline = time.monotonic() + timeout
    left = dict(runners)
    while left:
        heard = last_reports(broker)
        for name, runner in list(left.items()):
            one = heard.get(name)
            if one is None or one.report.ended or one.report.runner != runner:
                del left[name]
                rendering.say(f"{name}: {one.report.state if one else 'stopped'}.", False)
        if left and time.monotonic() >= deadline:
            raise NoReply(
                f"{' and '.join(left)} {'has' if len(left) == 1 else 'have'} not stopped within {timeout:g} s. A long "
                "micro-batch may be on the way: ask again, or end the runner's process."
            )
        if left:
            time.sleep(_POLL_INTERVAL)


def _connected(config: Config) -> "Connection":
    from stafeta.clients.flight.connection import connect

    return connect(config.pipeline.broker, timeout=_PATIENCE)
