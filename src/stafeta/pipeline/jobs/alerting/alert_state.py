"""The state of all topics, micro-batch by micro-batch. No Spark, no clock: what it needs is given.

1. Of each topic there are the bytes of its state (`evaluation`), and when its next deadline is. Only the topics of a
   micro-batch, and those whose deadlines have passed, are looked into.
2. Deadlines are looked at after the readings: a topic that has some is not silent. All of them are where the clock was
   set back.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from stafeta.pipeline.jobs.alerting.alert_messages import payload_of, topic_of
from stafeta.pipeline.jobs.alerting.evaluation import (
    TOLERANCE,
    Evaluation,
    Readings,
    State,
    due,
    dump,
    evaluate,
    expire,
    load,
)
from stafeta.pipeline.jobs.alerting.rules import Rule


class Known(NamedTuple):
    """What is known of a topic."""

    due: int
    """Its next deadline, in milliseconds since 1970; 0: there is none."""
    state: bytes


States: TypeAlias = Mapping[str, Known]
Messages: TypeAlias = Sequence[tuple[str, str]]
"""Topics and payloads of alerts, in their order."""

_TEXT: Final[pa.DataType] = pa.string()
_STATES: Final = pa.schema({"topic": _TEXT, "due": pa.int64(), "state": pa.binary()})
_MESSAGES: Final = pa.schema({"topic": _TEXT, "payload": _TEXT})


class Advanced(NamedTuple):
    states: States
    messages: Messages
    late: int
    ahead: int


def advanced(
    rules: Sequence[Rule], states: States, readings: Mapping[str, Readings], now: int, before: int = 0
) -> Advanced:
    """What comes of states and readings by topic, at this time (milliseconds since 1970), and at that of the
    micro-batch before."""
    after = dict(states)
    messages: list[tuple[str, str]] = []
    late = ahead = 0

    def note(topic: str, mine: Sequence[Rule], found: Evaluation) -> None:
        after[topic] = known(mine, found.state)
        messages.extend(
            (topic_of(event.rule.name, topic), payload_of(event, topic)) for event in found.events
        )

    for topic in sorted(readings):
        mine = [rule for rule in rules if rule.matches(topic)]
        state = load(after[topic].state) if topic in after else State()
        found = evaluate(mine, state, readings[topic], now)
        late, ahead = late + found.late, ahead + found.ahead
        note(topic, mine, found)
    all_of_them = is_set_back(before, now)
    for topic in sorted(topic for topic, one in after.items() if one.due and (one.due <= now or all_of_them)):
        mine = [rule for rule in rules if rule.matches(topic)]
        note(topic, mine, expire(mine, load(after[topic].state), now))
    return Advanced(after, messages, late, ahead)


def is_set_back(before: int, now: int) -> bool:
    """Whether the clock was, between two times that it had."""
    return before > now + TOLERANCE


def known(rules: Sequence[Rule], state: State) -> Known:
    """What is kept of a topic, which these rules are about."""
    return Known(due(rules, state) or 0, dump(state))


def next_due(states: States) -> int:
    """When the first deadline of all is, in milliseconds since 1970; 0: there is none."""
    return min((one.due for one in states.values() if one.due), default=0)


def pack(states: States, messages: Messages) -> bytes:
    """States and messages as bytes, which `unpack` reads."""
    sink = pa.BufferOutputStream()
    rows = [(topic, *one) for topic, one in states.items()]
    for schema, found in ((_STATES, rows), (_MESSAGES, messages)):
        columns = zip(*found, strict=True) if found else [()] * len(schema)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


def unpack(content: bytes) -> tuple[States, Messages]:
    source = pa.BufferReader(content)
    states, messages = (pa.ipc.open_stream(source).read_all() for _ in range(2))
    columns = (states.column(name).to_pylist() for name in _STATES.names)
    rows = (messages.column(name).to_pylist() for name in _MESSAGES.names)
    found = {topic: Known(due, state) for topic, due, state in zip(*columns, strict=True)}
    return found, list(zip(*rows, strict=True))
