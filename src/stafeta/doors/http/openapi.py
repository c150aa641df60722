"""The OpenAPI 3.1 document of the door, as data. Tests hold requests and answers against it."""

from functools import cache

from stafeta import __version__
from stafeta.doors.http.codec import ARROW, DOORS, EVENTS, JSON, MAX_INT, MAX_KEY, MAX_RANGES, NDJSON
from stafeta.doors.http.incoming import MAX_MESSAGES
from stafeta.doors.http.openapi_schemas import (
    BOOL,
    COUNT,
    KIND,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NAME,
    NUMBER,
    SCHEMAS,
    TEXT,
    TIME,
    Schema,
    all_,
    closed_,
    list_,
    object_,
    ref_,
)
from stafeta.doors.http.problems import MEDIA_TYPE
from stafeta.doors.http.subscriptions import MAX_WAIT
from stafeta.doors.http.topics import MESSAGES, MOST, MOST_MESSAGES, PAGE

_SQL_FOR = "For those who administer the broker and may read every topic; without users, on the broker's own machine."


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
                "content": {MEDIA_TYPE: {"schema": ref_("Problem")}},
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
_AFTER = _query("after", TEXT, "What the page before says in `after`.")
_FILTER = _query("filter", NAME, "A topic, or a filter: `+` is one level, `#` any number.")
_CLIENT = _query("client", NAME, "The client, as it calls itself.", required=True)
_OF_FILTER = _query("filter", NAME, "The filter, as it was subscribed to.", required=True)
_DOOR = _query(
    "door",
    {"type": "string", "enum": list(DOORS), "default": "http"},
    "The door through which the client comes.",
)
_USER = _query("user", TEXT, "Whose client it is, for administrators.")
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
    "client": NAME,
    "filter": NAME,
    "door": {"type": "string", "enum": list(DOORS)},
    "user": TEXT,
}


def _body(schema: Schema, *, required: bool = True) -> Schema:
    return {"required": required, "content": _json(schema)}


def _messages(more: Schema) -> dict[str, Schema]:
    schema = object_(" ".join([*more, "messages"]), **more, messages=list_(ref_("Message")))
    return {
        **_json(schema),
        NDJSON: {"schema": TEXT},
        ARROW: {"schema": {"type": "string", "format": "binary"}},
    }


def _topics() -> Schema:
    page = all_(topics=list_(ref_("Topic")), after=MAYBE_TEXT)
    info = {
        "allOf": [
            ref_("Topic"),
            all_(
                published={**COUNT, "description": "Messages that it ever had."},
                bytes=COUNT,
                keep=all_(
                    seconds=MAYBE_NUMBER, bytes=MAYBE_COUNT, messages=MAYBE_COUNT, rule=MAYBE_TEXT, own=BOOL
                ),
                skipped=list_(all_(first=COUNT, last=COUNT)),
            ),
        ]
    }
    made = all_(topic=TEXT, created=BOOL)
    stream = _query("from", {"type": "string", "enum": ["earliest", "latest"]}, "Where it begins.")
    publish = {
        "required": True,
        "content": {
            JSON: {"schema": {}},
            NDJSON: {"schema": TEXT},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
            "text/plain": {"schema": TEXT},
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
        _query("offset", {**COUNT, "maximum": MAX_INT}, "The first message."),
        _query("time", TIME, "The first message that is not older."),
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
                [_FILTER, _query("search", TEXT, "A text that their names have in them."), _AFTER, _LIMIT],
            )
        },
        "/api/topics/{name}": {
            "get": _operation("topic", "One topic", "topics", {"200": ("The topic.", _json(info))}, [_TOPIC]),
            "put": _operation(
                "makeTopic",
                "Make a topic, or say what it keeps",
                "topics",
                {"200": ("It was there.", _json(made)), "201": ("It is new.", _json(made))},
                [_TOPIC],
                _body(closed_("", keep_last=BOOL, keep=ref_("Keep")), required=False),
                description="`keep_last`: its last message stays, whoever has read it. `keep`: a retention of its own "
                "instead of the configuration's, for those who administer the topic; null: the configuration's again.",
            ),
            "delete": _operation(
                "emptyTopic",
                "Release all that a topic holds; it goes, unless somebody subscribes to it",
                "topics",
                {"200": ("It is empty.", _json(all_(topic=TEXT, messages=COUNT)))},
                [_TOPIC, _query("force", BOOL, "Also what subscriptions wait for.")],
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
                        _messages({"topic": TEXT, "first": COUNT, "end": COUNT, "next": COUNT}),
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
                    "200": ("They were stored before, with the same key.", _json(ref_("Published"))),
                    "201": ("They are stored.", _json(ref_("Published"))),
                },
                [
                    _TOPIC,
                    key,
                    _query("kind", KIND, "What the body is, where its media type does not say it."),
                    _query("batch", BOOL, "The body is a JSON array of messages."),
                    _query("keep_last", BOOL, "The topic keeps its last message from now on."),
                ],
                publish,
                description="The body is one message: JSON is of the kind json, text a string, all else bytes. Many "
                "are a JSON array of messages with `batch=true`, lines of JSON, or an Arrow stream; at most "
                f"{MAX_MESSAGES}.",
            ),
        },
        "/api/damaged": {
            "get": _operation(
                "damaged",
                "A page of the ranges of offsets that are damaged",
                "topics",
                {"200": ("Ranges.", _json(all_(damaged=list_(ref_("Damage")), after=MAYBE_TEXT)))},
                [_FILTER, _AFTER, _LIMIT],
                description="Those that are `skipped` everybody passes over; the others somebody could not read since "
                "the broker was started.",
            )
        },
        "/api/events": {
            "get": _operation(
                "events",
                "Live messages as server-sent events",
                "live",
                {"200": ("Events.", {EVENTS: {"schema": TEXT}})},
                [
                    _query("filter", list_(NAME), "Filters; several times for several."),
                    _query("client", NAME, "A name: messages wait for it while it is away."),
                    _query(
                        "ack",
                        {"type": "string", "enum": ["auto", "explicit"]},
                        "Who acknowledges, with a name.",
                    ),
                    stream,
                    _query("offset", COUNT, "Of one topic, the first message."),
                    _query("time", TIME, "The first messages that are not older."),
                    _query("last_id", TEXT, "As the header Last-Event-ID."),
                ],
                description="With the header `Last-Event-ID` they go on behind that one.",
            )
        },
    }


def _subscriptions() -> Schema:
    page = all_(subscriptions=list_(ref_("Subscription")), after=MAYBE_TEXT)
    made = all_(client=TEXT, door=TEXT, filter=TEXT, position=COUNT)
    moved = all_(topic=TEXT, next=COUNT, collected=COUNT)
    sort = _query(
        "sort",
        {"type": "string", "enum": ["client", "behind", "seconds"]},
        "By client, or the furthest behind.",
    )
    search = _query("search", TEXT, "A text that the names of clients, or filters, have in them.")
    return {
        "/api/subscriptions": {
            "get": _operation(
                "listSubscriptions",
                "The subscriptions, and how far behind each is",
                "subscriptions",
                {"200": ("Subscriptions.", _json(page))},
                [sort, _query("topic", NAME, "A topic that they get."), _FILTER, search, _AFTER, _LIMIT],
            ),
            "post": _operation(
                "subscribe",
                "Hold messages for a client",
                "subscriptions",
                {"200": ("It was there.", _json(made)), "201": ("It is new.", _json(made))},
                None,
                _body(
                    closed_(
                        "client filter",
                        **{
                            "client": NAME,
                            "filter": NAME,
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
                {"200": ("Cursors.", _json(all_(cursors=list_(ref_("Cursor")), after=MAYBE_TEXT)))},
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
                {"200": ("They are.", _json(all_(acknowledged=COUNT)))},
                None,
                _body(
                    closed_(
                        "client filter ranges",
                        **_AIM_BODY,
                        ranges={**list_(ref_("Range")), "minItems": 1, "maxItems": MAX_RANGES},
                    )
                ),
            )
        },
        "/api/subscriptions/move": {
            "post": _operation(
                "move",
                "Go on elsewhere, forward or back",
                "subscriptions",
                {"200": ("It does.", _json(all_(topics=COUNT, collected=COUNT, moved=list_(moved))))},
                None,
                _body(
                    closed_(
                        "client filter",
                        **_AIM_BODY,
                        topic=TEXT,
                        to={"type": "string", "enum": ["earliest", "latest"]},
                        offset={**COUNT, "maximum": MAX_INT},
                        time={"oneOf": [TIME, {"type": "integer", "minimum": 0}]},
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
                {"200": ("Clients.", _json(all_(clients=list_(ref_("Client")), after=MAYBE_TEXT)))},
                [_AFTER, _LIMIT],
            )
        },
    }


def _status() -> Schema:
    session = _json(ref_("Session"))
    login = closed_("", user=TEXT, password=TEXT, token=TEXT)
    state = _json(all_(status=TEXT))
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
                            object_("version position uptime", version=TEXT, position=COUNT, uptime=NUMBER)
                        ),
                    )
                },
            )
        },
        "/api/overview": {
            "get": _operation(
                "overview",
                "What the dashboard shows, as of a second ago",
                "broker",
                {"200": ("Rates, lag, doors, store, jobs.", _json(ref_("Overview")))},
                description="For those who administer the broker, or may list every topic.",
            )
        },
        "/api/overview/events": {
            "get": _operation(
                "overview_events",
                "The same each second, as server-sent events",
                "live",
                {"200": ("`history` once, then `sample`s.", {EVENTS: {"schema": TEXT}})},
            )
        },
        "/api/sql": {
            "get": _operation(
                "sql_state",
                "Whether a Spark is at hand that can be asked",
                "sql",
                {"200": ("That.", _json(all_(available=BOOL)))},
                description=_SQL_FOR,
            ),
            "post": _operation(
                "sql",
                "Ask lake and log with SQL",
                "sql",
                {"200": ("The result.", _json(ref_("Rows")))},
                None,
                _body(ref_("Question")),
                description=f"Statements that only read are carried out by the Spark of a pipeline. {_SQL_FOR}",
            ),
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
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "stafeta_session"},
            },
        },
    }
