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
