"""The schemas of the OpenAPI document, and what they are made of."""

from typing import Any, Final

from stafeta.doors.http.sql import LONGEST, LONGEST_TIMEOUT, MOST_ROWS, ROWS, TIMEOUT
from stafeta.message import Kind

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
BOOL: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"], "minimum": 0}
MAYBE_NUMBER: Final[Schema] = {"type": ["number", "null"], "minimum": 0}
NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 255}
KIND: Final[Schema] = {"type": "string", "enum": [kind.word for kind in Kind]}
TIME: Final[Schema] = {"type": "string", "examples": ["2026-11-16T08:00:00Z", "1763280000000"]}


def object_(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def closed_(required: str = "", **properties: Schema) -> Schema:
    return {**object_(required, **properties), "additionalProperties": False}


def all_(**properties: Schema) -> Schema:
    return object_(" ".join(properties), **properties)


def list_(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def ref_(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": {
        **object_("type title status detail", type=TEXT, title=TEXT, status={"type": "integer"}, detail=TEXT),
        "description": "RFC 9457. The type ends with the name of a class of `stafeta.errors`.",
    },
    "Message": object_(
        "topic offset position time kind payload",
        topic=TEXT,
        offset=COUNT,
        position={**COUNT, "description": "Its place in the whole log."},
        time={"type": "string", "format": "date-time"},
        kind=KIND,
        payload={**TEXT, "description": "Text, or base64 where `encoding` says so."},
        encoding={"type": "string", "enum": ["base64"]},
        source=TEXT,
        producer=TEXT,
        counter={"type": "integer"},
    ),
    "NewMessage": {
        "oneOf": [
            closed_("payload", payload=TEXT, kind=KIND, encoding={"type": "string", "enum": ["base64"]}),
            closed_("value", value={"description": "Any JSON: a message of the kind json."}),
        ]
    },
    "Topic": all_(topic=TEXT, first=COUNT, next=COUNT, messages=COUNT, subscriptions=COUNT, keeps_last=BOOL),
    "Keep": {
        **closed_("", seconds=MAYBE_NUMBER, bytes=MAYBE_COUNT, messages=MAYBE_COUNT),
        "type": ["object", "null"],
        "description": "How long messages stay that nobody waits for: until the first of these limits is passed.",
    },
    "Subscription": all_(
        client=TEXT,
        door=TEXT,
        user=MAYBE_TEXT,
        filter=TEXT,
        durable=BOOL,
        connected=BOOL,
        topics=COUNT,
        behind={**COUNT, "description": "Messages that are not acknowledged."},
        seconds={**NUMBER, "description": "The age of the oldest of them."},
    ),
    "Client": all_(
        client=TEXT, door=TEXT, user=MAYBE_TEXT, subscriptions=COUNT, connected=BOOL, behind=COUNT
    ),
    "Cursor": all_(topic=TEXT, next=COUNT, first=COUNT, end=COUNT, behind=COUNT),
    "Published": object_(
        "topic first last count", topic=TEXT, first=COUNT, last=COUNT, count=COUNT, repeated=BOOL
    ),
    "Session": object_(
        "authenticated users version",
        authenticated=BOOL,
        users=BOOL,
        user=MAYBE_TEXT,
        sees_all=BOOL,
        sql=BOOL,
        version=TEXT,
    ),
    "Overview": object_(
        "version time rates totals lag doors store jobs",
        version=TEXT,
        time={**NUMBER, "description": "Seconds since 1970."},
        rates={"type": "object", "additionalProperties": NUMBER},
        totals={"type": "object", "additionalProperties": NUMBER},
        lag=object_(
            "messages seconds slowest", messages=COUNT, seconds=NUMBER, slowest=list_({"type": "object"})
        ),
        doors=list_(all_(door=TEXT, connections=COUNT, accepted=COUNT, rejected=COUNT, dropped=COUNT)),
        store={"type": "object", "additionalProperties": COUNT},
        jobs=list_(object_("job state", job=TEXT, state=TEXT)),
    ),
    "Question": closed_(
        "statement",
        statement={"type": "string", "minLength": 1, "maxLength": LONGEST},
        limit={"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": ROWS},
        timeout={
            "type": "integer",
            "minimum": 1,
            "maximum": LONGEST_TIMEOUT,
            "default": TIMEOUT,
            "description": "Seconds after which it is cancelled.",
        },
    ),
    "Rows": all_(
        columns=list_(all_(name=TEXT, type=TEXT)),
        rows=list_({"type": "array"}),
        cut={**BOOL, "description": "There are more rows than `limit`."},
        seconds=NUMBER,
        notes=list_(TEXT),
    ),
    "Range": object_("topic", topic=NAME, offset=COUNT, first=COUNT, last=COUNT),
    "Damage": all_(topic=TEXT, first=COUNT, last=COUNT, skipped=BOOL),
}
