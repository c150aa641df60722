"""What a visitor sees: the board on a terminal, again and again; or a few lines now and then, in a pipe."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from examples.demo.board import Alert, Board, Rolled
from examples.demo.fleet import SENSORS, Sensor
from examples.demo.listeners import Listener

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
_FRAME: Final = 0.25  # seconds
_NEWS: Final = 10.0  # seconds between two lines in a pipe
_STEPS: Final = "▁▂▃▄▅▆▇█"
_STALE: Final = 2.0  # seconds after which a sensor is called silent
_COLOURED: Final = sys.stdout.isatty() and "NO_COLOR" not in os.environ
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
_STATES: Final = {"running": GREEN, "starting": YELLOW, "waiting": YELLOW, "failed": RED}
JOBS: Final = ("archive", "rollup", "alerts")


def styled(text: str, *styles: str) -> str:
    return f"\033[{';'.join(styles)}m{text}\033[0m" if _COLOURED else text


def say(text: str = "", *styles: str) -> None:
    print(styled(text, *styles), flush=True)


class Show:
    """Shows the board until it is over."""

    def __init__(self, board: Board, listeners: Sequence[Listener]) -> None:
        self._board = board
        self._listeners = listeners
        self._over = threading.Event()
        self._live = sys.stdout.isatty()
        self._thread = threading.Thread(target=self._draw if self._live else self._tell, daemon=True)

    def __enter__(self) -> None:
        if self._live:
            sys.stdout.write(_ENTER)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._live:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _draw(self) -> None:
        while not self._over.wait(_FRAME):
            size = shutil.get_terminal_size((100, 30))
            with self._board.lock:
                lines = frame(self._board, self._listeners, size.columns, size.lines)
            # Each line ends with "erase to its end", the last with "erase all below": nothing flickers.
            sys.stdout.write("\033[H" + "\033[K\r\n".join(lines) + "\033[J")
            sys.stdout.flush()

    def _tell(self) -> None:
        told = 0
        due = time.monotonic() + _NEWS
        while not self._over.wait(_FRAME):
            with self._board.lock:
                total = self._board.raised + self._board.cleared
                news = list(self._board.alerts)[-(total - told) :] if total > told else []
                told = total
                line = summary(self._board)
            for alert in news:
                say(f"  {_sentence(alert)}")
            if time.monotonic() >= due:
                due += _NEWS
                say(line)


def summary(board: Board) -> str:
    shelf = board.shelf
    jobs = ", ".join(f"{job} {board.jobs.get(job, {}).get('state', 'starts')}" for job in JOBS)
    return (
        f"{time.monotonic() - board.began:3.0f} s: {board.messages:,} readings, {board.rate:.0f}/s; {jobs}; "
        f"{shelf.rows:,} rows in the lake, {shelf.log:,} in the log after it; {board.windows:,} rollups."
    )


def frame(board: Board, listeners: Sequence[Listener], width: int, height: int) -> list[str]:
    """The board as lines that fit."""
    head = [*_title(board, width), styled(f" Dashboard: {board.page}", CYAN) if board.page else ""]
    sensors = [_heading("Sensors", "by UDP; five readings a second each, and a fault now and then")]
    sensors += [_sensor(board, sensor, width) for sensor in SENSORS]
    people = ["", _people(listeners)]
    jobs = ["", _heading("Spark", "reads the topics, and writes to lake and topics, each message once")]
    jobs += [_job(board, job) for job in JOBS]
    shelf = board.shelf
    lake = (
        f"  lake      {shelf.rows:,} messages in {shelf.files:,} files, {shelf.size / 1024:,.0f} KiB;"
        f" {shelf.log:,} in the log after them"
    )
    room = max(2, height - len(head) - len(sensors) - len(people) - len(jobs) - 1 - 4)
    alerts = max(1, room // 2)
    news = ["", _heading("Rollups", f"windows of 5 s; {board.windows:,} so far")]
    news += [_window(one) for one in list(board.rolled)[-(room - alerts) :]]
    news += [_heading("Alerts", f"{board.raised} raised, {board.cleared} cleared")]
    news += [_coloured(alert) for alert in list(board.alerts)[-alerts:]]
    return [_cut(line, width) for line in [*head, *sensors, *people, *jobs, lake, *news]][:height]


def _title(board: Board, width: int) -> list[str]:
    seconds = time.monotonic() - board.began
    limit = "" if board.seconds is None else f" of {board.seconds:.0f}"
    left = f" STAFETA  {board.messages:,} readings, {board.rate:.0f} a second"
    right = f"{board.doing}   {seconds:.0f}{limit} s "
    return [styled(f"{left}{right:>{max(1, width - len(left))}}", BOLD, "7")]


def _heading(text: str, more: str) -> str:
    return f"{styled(f'{text:<9}', BOLD)} {styled(more, DIM)}"


def _sensor(board: Board, sensor: Sensor, width: int) -> str:
    line = board.lines.get(sensor.topic)
    if line is None:
        return styled(f"  {sensor.topic}", DIM)
    silent = time.monotonic() - line.at > _STALE
    alarming = any(topic == sensor.topic for _, topic in board.standing)
    value = styled(f"{line.text:>10} {sensor.unit:<4}", BOLD, *([RED] if alarming else []))
    if board.off:
        more = styled("off", DIM)
    elif silent:
        more = styled("silent", YELLOW)
    else:
        more = styled(sparks(list(line.values), max(0, width - 58)), CYAN)
    return f"  {sensor.topic:<24}{line.kind.upper():<12}{value}  {more}"


def sparks(values: list[float], room: int) -> str:
    """A small picture of the last values."""
    values = values[-room:] if room else []
    if not values:
        return ""
    low, high = min(values), max(values)
    steps = len(_STEPS) - 1
    return "".join(
        _STEPS[round((value - low) / (high - low) * steps) if high > low else 0] for value in values
    )


def _people(listeners: Sequence[Listener]) -> str:
    told = []
    for one in listeners:
        got = f"{one.got.total():,}"
        if not one.is_there:
            told.append(f"{one.name} {styled('is away', YELLOW)}: what comes is kept ({got} so far)")
        elif one.missed > 3:
            told.append(f"{one.name} {styled('is back', GREEN)}, got {one.missed} that were kept ({got})")
        else:
            told.append(f"{one.name} listens ({got})")
    return f"{styled('By TCP', BOLD)}    " + ";  ".join(told)


def _job(board: Board, job: str) -> str:
    said = board.jobs.get(job)
    if said is None:
        return styled(f"  {job:<10}starts with Spark", DIM)
    state = styled(f"{said['state']:<9}", _STATES.get(said["state"], DIM))
    restarts = f", started again ({said['restarts']})" if said.get("restarts") else ""
    error = f"  {said['error']}" if said.get("error") else ""
    return f"  {job:<10}{state} {said['rows']:,} messages, {said['lag']:,} wait{restarts}{error}"


def _window(one: Rolled) -> str:
    values = f"{one.low:>9.2f} to {one.high:>9.2f}, mean {one.mean:>9.2f}"
    return f"  {one.end[11:19]}  {one.topic:<24}{one.readings:>4} readings   {values}"


def _sentence(alert: Alert) -> str:
    return f"{alert.time[11:19]}  {'raised ' if alert.raised else 'cleared'}  {alert.message}"


def _coloured(alert: Alert) -> str:
    sign = styled("▲", RED) if alert.raised else styled("▽", GREEN)
    return f"  {sign} {_sentence(alert)}"


def _cut(line: str, width: int) -> str:
    """As much of a line as fits. Colours take no room."""
    shown = 0
    place = 0
    while place < len(line):
        if line[place] == "\033":
            place = line.index("m", place) + 1
            continue
        if shown == width:
            return line[:place] + ("\033[0m" if _COLOURED else "")
        shown += 1
        place += 1
    return line
