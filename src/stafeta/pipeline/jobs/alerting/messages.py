"""What an alert looks like on its topic. (docs/alerts.md)"""

from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from stafeta.errors import InvalidName
from stafeta.names import check_name
from stafeta.pipeline.jobs.alerting.evaluation import Event

PREFIX: Final = "alerts"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def topic_of(rule: str, topic: str) -> str:
    """Where an alert goes: to a topic of its own, or to the rule's, where that would have too long a name."""
    name = f"{PREFIX}/{rule}/{topic}"
    try:
        check_name(name)
    except InvalidName:
        return f"{PREFIX}/{rule}"
    return name


def payload_of(event: Event, topic: str) -> str:
    """The alert as JSON."""
    rule = event.rule
    said = {
        "rule": rule.name,
        "topic": topic,
        "state": "raised" if event.raised else "cleared",
        "kind": rule.kind,
        "value": event.value,
        "limit": rule.limit,
        "offset": event.offset,
        "time": _time(event.time),
    }
    if event.since is not None:
        said["since"] = _time(event.since)
    said["severity"] = rule.severity
    said["message"] = rule.sentence(topic, event.value) if event.raised else f"{topic}: {rule.name} is over."
    return orjson.dumps(said).decode()


def _time(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")
