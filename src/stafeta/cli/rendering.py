"""What commands print: for people, or one JSON object a line for programs."""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stafeta.doors.zeromq.replies import Message, TopicInfo


def say(sentence: object, as_json: bool, **fields: object) -> None:
    """Prints a result: the sentence, or the fields."""
    write([(json.dumps(fields, ensure_ascii=False) if as_json else str(sentence)).encode()])


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
        "time": message.time.isoformat().replace("+00:00", "Z"),
    }
    try:
        fields["text"] = message.data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        fields |= {"text": b64encode(message.data).decode(), "encoding": "base64"}
    return json.dumps(fields, ensure_ascii=False).encode()


def topic_lines(topics: list["TopicInfo"], as_json: bool) -> list[bytes]:
    """A table of topics."""
    if as_json:
        return [json.dumps(topic._asdict(), ensure_ascii=False).encode() for topic in topics]
    rows = [("TOPIC", "FIRST", "NEXT", "SUBSCRIPTIONS")]
    rows += [(one.name, str(one.first), str(one.next), str(one.subscriptions)) for one in topics]
    name, first, after, _ = (max(len(row[column]) for row in rows) for column in range(4))
    return [f"{row[0]:<{name}}  {row[1]:>{first}}  {row[2]:>{after}}  {row[3]:>13}".encode() for row in rows]
