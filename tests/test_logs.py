import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from stafeta import logs

log = logging.getLogger("stafeta.zeromq")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("stafeta")
    handlers, level = root.handlers, ours.level
    yield io.StringIO()
    root.handlers = handlers
    ours.setLevel(level)


def test_a_text_line_is_time_level_logger_sentence_and_fields(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream)
    log.info("Listening.", extra=logs.fields(address="127.0.0.1:9001", doors=1))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  zeromq: Listening\. address=127\.0\.0\.1:9001 doors=1\n",
        stream.getvalue(),
    )


def test_a_json_line_is_one_object(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    log.warning("Closed %s.", "it", extra=logs.fields(reason="a\nb", size=3))
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "logger": "zeromq",
        "message": "Closed it.",
        "fields": {"reason": "a\nb", "size": 3},
    }


def test_nobody_else_can_write_a_line(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream)
    log.info("Client a\nb left.", extra=logs.fields(client='c\r\nd="e"', topic="caffè"))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'Client a\nb left. client="c\r\nd=\"e\"" topic=caffè')


def test_a_fault_brings_its_traceback(stream: io.StringIO) -> None:
    for form in ("text", "json"):
        logs.configure(form, "info", stream)
        try:
            raise ValueError("wrong")
        except ValueError:
            log.exception("Failed.")
    text, _, last = stream.getvalue().rstrip().rpartition("\n")
    assert "Traceback" in text
    assert json.loads(last)["exception"].endswith("ValueError: wrong")


def test_the_log_can_be_set_up_anew(stream: io.StringIO) -> None:
    logs.configure("text", "warning", stream)
    log.info("Unheard.")
    logs.configure("json", "debug", stream)
    log.debug("Heard.")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "Heard."


def test_other_libraries_are_heard_from_warnings_up(stream: io.StringIO) -> None:
    logs.configure("text", "debug", stream)
    logging.getLogger("asyncio").info("Unheard.")
    logging.getLogger("asyncio").error("Heard.")
    assert "ERROR asyncio: Heard." in stream.getvalue()
    assert "Unheard" not in stream.getvalue()


def test_what_strangers_cause_is_said_so_often_and_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    seldom = logs.SeldomLog(logging.getLogger("stafeta.strangers"), times=3)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            seldom.warning("a command is skipped: %s", f"number {number}")
        assert [record.getMessage()[-1] for record in caplog.records] == ["0", "1", "2"]
        clock[0] = 10.0
        seldom.warning("a command is skipped: %s", "more")
    assert caplog.records[3].fields == {"as_before": 997}  # type: ignore[attr-defined]


@pytest.mark.parametrize("hostile", ["a\nb", "\x1b[2J", "\x9b2J", "\u202egpj", "a\u2028b", "\x7f"])
def test_a_field_of_a_line_is_printable_whatever_strangers_have_sent(hostile: str) -> None:
    told = {"name": "stafeta.x", "levelname": "WARNING", "msg": hostile, "fields": {"topic": hostile}}
    record = logging.makeLogRecord(told)
    assert logs.TextFormatter().format(record).isprintable()
    assert logs.JsonFormatter().format(record).isprintable()
