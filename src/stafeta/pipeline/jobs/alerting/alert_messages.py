"""What an alert looks like on its topic. (docs/alerts.md)"""

from typing import Final

import orjson

from stafeta.errors import InvalidName
from stafeta.names import check_name
from stafeta.pipeline.jobs.alerting.evaluation import Event
from stafeta.times import iso, time_of

PREFIX: Final = "alerts"


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
        "time": iso(time_of(event.time)),
    }
    if event.since is not None:
        said["since"] = iso(time_of(event.since))
    said["severity"] = rule.severity
    said["message"] = rule.sentence(topic, event.value) if event.raised else f"{topic}: {rule.name} is over."
    return orjson.dumps(said).decode()
