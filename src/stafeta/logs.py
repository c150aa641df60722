"""Structured logs on standard error, one line an event, as text or as JSON.

log = logging.getLogger("stafeta.zeromq")
log.info("Listening.", extra=fields(address="127.0.0.1:9001"))
"""

import json
import logging
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, NoReturn, TextIO

from stafeta.errors import EXIT_FATAL
from stafeta.times import iso

_HANDLER = "stafeta"
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_PLAIN = re.compile(r"[^\s\"=\x00-\x1f\x7f-\x9f]+")


def fields(**values: object) -> dict[str, dict[str, object]]:
    """What a log line tells besides its sentence, for the argument `extra`."""
    return {"fields": values}


def announce(log: logging.Logger, sentence: str) -> None:
    """Logs what whoever started the program waits to read, whatever the level is."""
    log.handle(log.makeRecord(log.name, logging.INFO, "", 0, sentence, (), None))


def configure(form: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Sets up the log, or sets it up anew. Other libraries' warnings and errors go through it too."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [*(one for one in root.handlers if one.get_name() != _HANDLER), handler]
    logging.getLogger("stafeta").setLevel(level.upper())


class SeldomLog:
    """A log for what strangers may cause any number of times: the same sentence comes `times` in `interval` seconds,
    with the number of those that were left out before. What is filled in for `%s` does not make it another one."""

    def __init__(self, log: logging.Logger, interval: float = 10.0, times: int = 1) -> None:
        self._log = log
        self._interval = interval
        self._times = times
        self._said: dict[str, tuple[float, int]] = {}  # since when, and how often since

    def warning(self, sentence: str, *filled_in: object, **details: object) -> None:
        self._say(logging.WARNING, sentence, filled_in, details)

    def error(self, sentence: str, *filled_in: object, **details: object) -> None:
        self._say(logging.ERROR, sentence, filled_in, details)

    def _say(
        self, level: int, sentence: str, filled_in: tuple[object, ...], details: dict[str, object]
    ) -> None:
        now = time.monotonic()
        since, said = self._said.get(sentence, (now, 0))
        if now - since >= self._interval:
            if said > self._times:
                details["as_before"] = said - self._times
            since, said = now, 0
        self._said[sentence] = since, said + 1
        if said < self._times:
            self._log.log(level, sentence, *filled_in, extra=fields(**details))


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO  zeromq: sentence key=value`"""

    def format(self, record: logging.LogRecord) -> str:
        # A stranger's bytes may be in the sentence: no line of ours is written by them.
        sentence = "".join(char if char.isprintable() else _escaped(char) for char in record.getMessage())
        line = f"{_time(record)} {_LEVELS.get(record.levelname, record.levelname):<5} {_name(record)}: {sentence}"
        for key, value in _fields(record).items():
            line += f" {key}={_quoted(value)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": _name(record),
            "message": record.getMessage(),
        }
        if found := _fields(record):
            line["fields"] = found
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    return iso(datetime.fromtimestamp(record.created, UTC), "milliseconds")


def _name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("stafeta.")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def fatal(log: logging.Logger, sentence: str) -> NoReturn:
    """Call where an exception is handled that leaves no way to go on. What was acknowledged is on disk, and a start
    finds it there."""
    log.critical("%s; the broker ends", sentence, exc_info=sys.exc_info())
    logging.shutdown()
    os._exit(EXIT_FATAL)
