"""What commands print: for people, or one JSON object a line for programs."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stafeta import text_tables
from stafeta.times import iso

if TYPE_CHECKING:
    from stafeta.clients.zeromq.replies import Message, TopicInfo


class Form(NamedTuple):
    """How messages are printed."""

    json: bool = False
    raw: bool = False
    topics: bool = False  # each line begins with its topic

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Form":
        """As the options of `add_forms` say. Where there may be several topics each line says its own."""
        from stafeta.names import is_filter

        several = len(options.topics) > 1 or is_filter(options.topics[0])
        return cls(options.json, options.raw, several and not options.plain)

    def shown(self, message: "Message") -> bytes:
        """A message, with the newline behind it."""
        if self.raw:
            return message.data
        if self.json:
            return message_line(message, as_json=True) + b"\n"
        topic = message.topic.encode() + b" " if self.topics else b""
        return topic + message.data + b"\n"


def add_forms(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Adds the options that say how messages are printed."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=json_help)
    form.add_argument(
        "--plain",
        action="store_true",
        help="leave the topic out, which lines begin with where there may be several",
    )
    form.add_argument(
        "--raw", action="store_true", help="print the bytes as they are, with no newlines between"
    )


def say(sentence: object, as_json: bool, **fields: object) -> None:
    """Prints a result: the sentence, or the fields."""
    write([json_line(fields) if as_json else str(sentence).encode()])


def json_line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def write(lines: Iterable[bytes]) -> None:
    """Prints lines, and returns when they have been handed over."""
    output = sys.stdout.buffer
    for line in lines:
        output.write(line + b"\n")
    output.flush()


def message_line(message: "Message", as_json: bool) -> bytes:
    """A message: its payload, or everything about it."""
    if not as_json:
        return message.data
    fields: dict[str, object] = {
        "topic": message.topic,
        "id": message.id,
        "kind": message.kind,
        "time": iso(message.time),
    }
    try:
        fields["text"] = message.data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        fields |= {"text": b64encode(message.data).decode(), "encoding": "base64"}
    return json_line(fields)


def topic_lines(topics: list["TopicInfo"], as_json: bool) -> list[bytes]:
    """A table of topics."""
    if as_json:
        return [json_line(topic._asdict()) for topic in topics]
    rows = [[one.name, str(one.first), str(one.next), str(one.subscriptions)] for one in topics]
    return table([["TOPIC", "FIRST", "NEXT", "SUBSCRIPTIONS"], *rows], "<>>>")


def table(rows: Sequence[Sequence[str]], sides: str) -> list[bytes]:
    """Lines with columns, each aligned to its side, `<` or `>`."""
    return [line.encode() for line in text_tables.lines(rows, sides)]
