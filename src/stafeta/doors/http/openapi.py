"""The OpenAPI 3.1 document of the door, as data. Tests hold requests and answers against it."""

from functools import cache
from typing import Any, Final

from stafeta import __version__
from stafeta.doors.http.codec import ARROW, DOORS, EVENTS, JSON, MAX_INT, MAX_KEY, MAX_RANGES, NDJSON
from stafeta.doors.http.problems import MEDIA_TYPE
from stafeta.doors.http.subscriptions import MAX_WAIT
from stafeta.doors.http.topics import MESSAGES, MOST, MOST_MESSAGES, PAGE
from stafeta.message import Kind

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_BOOL: Final[Schema] = {"type": "boolean"}
_NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 255}
_KIND: Final[Schema] = {"type": "string", "enum": [kind.word for kind in Kind]}
_TIME: Final[Schema] = {"type": "string", "examples": ["2026-11-16T08:00:00Z", "1763280000000"]}


def _object(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def _closed(required: str = "", **properties: Schema) -> Schema:
    return {**_object(required, **properties), "additionalProperties": False}


def _all(**properties: Schema) -> Schema:
    return _object(" ".join(properties), **properties)


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Schema, description: str, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description, "required": required}


def _json(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}}


def _operation(
    id_: str,
    summary: str,
    tag: str,
    answers: dict[str, tuple[str, Schema]],
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    description: str = "",
    open_: bool = False,
) -> Schema:
    found: Schema = {
        "operationId": id_,
        "summary": summary,
        "tags": [tag],
        "responses": {
            **{
                status: {"description": text, **({"content": content} if content else {})}
                for status, (text, content) in answers.items()
            },
            "default": {
                "description": "It was refused, or failed.",
                "content": {MEDIA_TYPE: {"schema": _ref("Problem")}},
            },
        },
    }
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = body
    if description:
        found["description"] = description
    if open_:
        found["security"] = []
    return found


_LIMIT = _query(
    "limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE}, "Lines of a page."
)
_AFTER = _query("after", _TEXT, "What the page before says in `after`.")
_FILTER = _query("filter", _NAME, "A topic, or a filter: `+` is one level, `#` any number.")
_CLIENT = _query("client", _NAME, "The client, as it calls itself.", required=True)
_OF_FILTER = _query("filter", _NAME, "The filter, as it was subscribed to.", required=True)
_DOOR = _query(
    "door",
    {"type": "string", "enum": list(DOORS), "default": "http"},
    "The door through which the client comes.",
)
_USER = _query("user", _TEXT, "Whose client it is, for administrators.")
_AIM = [_CLIENT, _OF_FILTER, _DOOR, _USER]
_TOPIC = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The topic; its slashes are written as they are, or as %2F.",
}
_MESSAGE_LIMIT = _query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": MOST_MESSAGES, "default": MESSAGES},
    "Messages of an answer.",
)
_AIM_BODY = {
    "client": _NAME,
    "filter": _NAME,
    "door": {"type": "string", "enum": list(DOORS)},
    "user": _TEXT,
}


def _body(schema: Schema, *, required: bool = True) -> Schema:
    return {"required": required, "content": _json(schema)}


_SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": {
        **_object(
            "type title status detail", type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT
        ),
        "description": "RFC 9457. The type ends with the name of a class of `stafeta.errors`.",
    },
    "Message": _object(
        "topic offset position time kind payload",
        topic=_TEXT,
        offset=_COUNT,
        position={**_COUNT, "description": "Its place in the whole log."},
        time={"type": "string", "format": "date-time"},
        kind=_KIND,
        payload={**_TEXT, "description": "Text, or base64 where `encoding` says so."},
        encoding={"type": "string", "enum": ["base64"]},
        source=_TEXT,
        producer=_TEXT,
        counter={"type": "integer"},
    ),
    "NewMessage": {
        "oneOf": [
            _closed("payload", payload=_TEXT, kind=_KIND, encoding={"type": "string", "enum": ["base64"]}),
            _closed("value", value={"description": "Any JSON: a message of the kind json."}),
        ]
    },
    "Topic": _all(
        topic=_TEXT, first=_COUNT, next=_COUNT, messages=_COUNT, subscriptions=_COUNT, keeps_last=_BOOL
    ),
    "Subscription": _all(
        client=_TEXT,
        door=_TEXT,
        user=_MAYBE_TEXT,
        filter=_TEXT,
        durable=_BOOL,
        connected=_BOOL,
        topics=_COUNT,
        behind={**_COUNT, "description": "Messages that are not acknowledged."},
        seconds={**_NUMBER, "description": "The age of the oldest of them."},
    ),
    "Client": _all(
        client=_TEXT, door=_TEXT, user=_MAYBE_TEXT, subscriptions=_COUNT, connected=_BOOL, behind=_COUNT
    ),
    "Cursor": _all(topic=_TEXT, next=_COUNT, first=_COUNT, end=_COUNT, behind=_COUNT),
    "Published": _object(
        "topic first last count", topic=_TEXT, first=_COUNT, last=_COUNT, count=_COUNT, repeated=_BOOL
    ),
    "Session": _object(
        "authenticated users version", authenticated=_BOOL, users=_BOOL, user=_MAYBE_TEXT, version=_TEXT
    ),
    "Range": _object("topic", topic=_NAME, offset=_COUNT, first=_COUNT, last=_COUNT),
    "Damage": _all(topic=_TEXT, first=_COUNT, last=_COUNT),
}


def _messages(more: Schema) -> dict[str, Schema]:
    schema = _object(" ".join([*more, "messages"]), **more, messages=_list(_ref("Message")))
    return {
        **_json(schema),
        NDJSON: {"schema": _TEXT},
        ARROW: {"schema": {"type": "string", "format": "binary"}},
    }


def _topics() -> Schema:
    page = _all(topics=_list(_ref("Topic")), after=_MAYBE_TEXT)
    info = {
        "allOf": [
            _ref("Topic"),
            _all(
                bytes=_COUNT,
                keep={"type": "object"},
                skipped=_list(_all(first=_COUNT, last=_COUNT)),
            ),
        ]
    }
    made = _all(topic=_TEXT, created=_BOOL)
    stream = _query("from", {"type": "string", "enum": ["earliest", "latest"]}, "Where it begins.")
    publish = {
        "required": True,
        "content": {
            JSON: {"schema": {}},
            NDJSON: {"schema": _TEXT},
            "text/plain": {"schema": _TEXT},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"},
        "description": "Sent again with the same key, the messages are stored once. Remembered for an hour.",
    }
    reading = [
        _TOPIC,
        _query("offset", {**_COUNT, "maximum": MAX_INT}, "The first message."),
        _query("time", _TIME, "The first message that is not older."),
        _query("last", {"type": "integer", "minimum": 1, "maximum": MOST_MESSAGES}, "The newest so many."),
        _MESSAGE_LIMIT,
    ]
    return {
        "/api/topics": {
            "get": _operation(
                "listTopics",
                "A page of the topics, by name",
                "topics",
                {"200": ("Topics.", _json(page))},
                [_FILTER, _query("search", _TEXT, "A text that their names have in them."), _AFTER, _LIMIT],
            )
        },
        "/api/topics/{name}": {
            "get": _operation("topic", "One topic", "topics", {"200": ("The topic.", _json(info))}, [_TOPIC]),
            "put": _operation(
                "makeTopic",
                "Make a topic, or say whether it keeps its last message",
                "topics",
                {"200": ("It was there.", _json(made)), "201": ("It is new.", _json(made))},
                [_TOPIC],
                _body(_closed("", keep_last=_BOOL), required=False),
            ),
            "delete": _operation(
                "emptyTopic",
                "Release all that a topic holds; it goes, unless somebody subscribes to it",
                "topics",
                {"200": ("It is empty.", _json(_all(topic=_TEXT, messages=_COUNT)))},
                [_TOPIC, _query("force", _BOOL, "Also what subscriptions wait for.")],
            ),
        },
        "/api/topics/{name}/messages": {
            "get": _operation(
                "readMessages",
                "Messages of a topic; no cursor moves",
                "messages",
                {
                    "200": (
                        "Messages.",
                        _messages({"topic": _TEXT, "first": _COUNT, "end": _COUNT, "next": _COUNT}),
                    )
                },
                reading,
                description="From an offset or a time on, or the last ones; from the first on, where none is named.",
            ),
            "post": _operation(
                "publish",
                "Publish one message, or many",
                "messages",
                {
                    "200": ("They were stored before, with the same key.", _json(_ref("Published"))),
                    "201": ("They are stored.", _json(_ref("Published"))),
                },
                [
                    _TOPIC,
                    key,
                    _query("kind", _KIND, "What the body is, where its media type does not say it."),
                    _query("batch", _BOOL, "The body is a JSON array of messages."),
                    _query("keep_last", _BOOL, "The topic keeps its last message from now on."),
                ],
                publish,
                description="The body is one message: JSON is of the kind json, text a string, all else bytes. Many "
                "are a JSON array of messages with `batch=true`, or lines of JSON.",
            ),
        },
        "/api/damaged": {
            "get": _operation(
                "damaged",
                "Ranges of offsets that are damaged, and passed over",
                "topics",
                {"200": ("Ranges.", _json(_all(damaged=_list(_ref("Damage")), after=_MAYBE_TEXT)))},
                [_FILTER, _AFTER],
            )
        },
        "/api/events": {
            "get": _operation(
                "events",
                "Live messages as server-sent events",
                "live",
                {"200": ("Events.", {EVENTS: {"schema": _TEXT}})},
                [
                    _query("filter", _list(_NAME), "Filters; several times for several."),
                    _query("client", _NAME, "A name: messages wait for it while it is away."),
                    _query(
                        "ack",
                        {"type": "string", "enum": ["auto", "explicit"]},
                        "Who acknowledges, with a name.",
                    ),
                    stream,
                    _query("offset", _COUNT, "Of one topic, the first message."),
                    _query("time", _TIME, "The first messages that are not older."),
                    _query("last_id", _TEXT, "As the header Last-Event-ID."),
                ],
                description="With the header `Last-Event-ID` they go on behind that one.",
            )
        },
    }


def _subscriptions() -> Schema:
    page = _all(subscriptions=_list(_ref("Subscription")), after=_MAYBE_TEXT)
    made = _all(client=_TEXT, door=_TEXT, filter=_TEXT, position=_COUNT)
    moved = _all(topic=_TEXT, next=_COUNT, collected=_COUNT)
    sort = _query(
        "sort",
        {"type": "string", "enum": ["client", "behind", "seconds"]},
        "By client, or the furthest behind.",
    )
    return {
        "/api/subscriptions": {
            "get": _operation(
                "listSubscriptions",
                "The subscriptions, and how far behind each is",
                "subscriptions",
                {"200": ("Subscriptions.", _json(page))},
                [sort, _query("topic", _NAME, "A topic that they get."), _FILTER, _AFTER, _LIMIT],
            ),
            "post": _operation(
                "subscribe",
                "Hold messages for a client",
                "subscriptions",
                {"200": ("It was there.", _json(made)), "201": ("It is new.", _json(made))},
                None,
                _body(
                    _closed(
                        "client filter",
                        **{
                            "client": _NAME,
                            "filter": _NAME,
                            "from": {"type": "string", "enum": ["earliest", "latest"]},
                        },
                    )
                ),
            ),
            "delete": _operation(
                "unsubscribe",
                "Release what it held",
                "subscriptions",
                {"200": ("It is gone.", _json({"type": "object"}))},
                _AIM,
            ),
        },
        "/api/subscriptions/cursors": {
            "get": _operation(
                "cursors",
                "How far it has come on each topic",
                "subscriptions",
                {"200": ("Cursors.", _json(_all(cursors=_list(_ref("Cursor")), after=_MAYBE_TEXT)))},
                [*_AIM, _AFTER, _LIMIT],
            )
        },
        "/api/subscriptions/messages": {
            "get": _operation(
                "fetch",
                "What it has not acknowledged",
                "subscriptions",
                {"200": ("Messages.", _messages({}))},
                [
                    *_AIM,
                    _MESSAGE_LIMIT,
                    _query(
                        "wait",
                        {"type": "number", "minimum": 0, "maximum": MAX_WAIT},
                        "Seconds to wait for something.",
                    ),
                ],
            )
        },
        "/api/subscriptions/ack": {
            "post": _operation(
                "acknowledge",
                "These are done with",
                "subscriptions",
                {"200": ("They are.", _json(_all(acknowledged=_COUNT)))},
                None,
                _body(
                    _closed(
                        "client filter ranges",
                        **_AIM_BODY,
                        ranges={**_list(_ref("Range")), "minItems": 1, "maxItems": MAX_RANGES},
                    )
                ),
            )
        },
        "/api/subscriptions/move": {
            "post": _operation(
                "move",
                "Go on elsewhere, forward or back",
                "subscriptions",
                {"200": ("It does.", _json(_all(topics=_COUNT, collected=_COUNT, moved=_list(moved))))},
                None,
                _body(
                    _closed(
                        "client filter",
                        **_AIM_BODY,
                        topic=_TEXT,
                        to={"type": "string", "enum": ["earliest", "latest"]},
                        offset={**_COUNT, "maximum": MAX_INT},
                        time={"oneOf": [_TIME, {"type": "integer", "minimum": 0}]},
                    )
                ),
                description="To one of `to`, `offset` (with its topic) or `time`. `collected` says how many messages "
                "are not there any more.",
            )
        },
        "/api/clients": {
            "get": _operation(
                "clients",
                "The clients that have subscriptions, or are connected",
                "subscriptions",
                {"200": ("Clients.", _json(_all(clients=_list(_ref("Client")), after=_MAYBE_TEXT)))},
                [_AFTER, _LIMIT],
            )
        },
    }


def _status() -> Schema:
    session = _json(_ref("Session"))
    login = _closed("", user=_TEXT, password=_TEXT, token=_TEXT)
    state = _json(_all(status=_TEXT))
    return {
        "/api/stats": {
            "get": _operation(
                "stats",
                "What the broker does",
                "broker",
                {
                    "200": (
                        "Numbers.",
                        _json(
                            _object("version position uptime", version=_TEXT, position=_COUNT, uptime=_NUMBER)
                        ),
                    )
                },
            )
        },
        "/api/login": {
            "post": _operation(
                "login",
                "Begin a session, for pages",
                "session",
                {"200": ("It has begun.", session)},
                None,
                _body(login),
                open_=True,
            )
        },
        "/api/logout": {
            "post": _operation(
                "logout", "End it", "session", {"200": ("It is over.", _json({"type": "object"}))}
            )
        },
        "/api/session": {
            "get": _operation("session", "Who asks", "session", {"200": ("That.", session)}, open_=True)
        },
        "/healthz": {
            "get": _operation(
                "healthz", "The process is alive", "broker", {"200": ("It is.", state)}, open_=True
            )
        },
        "/readyz": {
            "get": _operation(
                "readyz",
                "Messages can be stored",
                "broker",
                {"200": ("They can.", state), "503": ("They cannot.", state)},
                open_=True,
            )
        },
    }


@cache
def document() -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stafeta",
            "version": __version__,
            "description": "A reliable publish/subscribe broker. Parameters and members that are not named here are "
            "refused. A WebSocket is at `/api/socket`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"basic": []}, {"bearer": []}, {"session": []}, {}],
        "paths": {**_topics(), **_subscriptions(), **_status()},
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "stafeta_session"},
            },
        },
    }
