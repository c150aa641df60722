"""The JSON dialect: one object a request, one a reply."""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from reprlib import repr as shown  # what strangers send may be as large and as deep as they like
from typing import Any, NamedTuple, cast

import orjson

from stafeta.doors.zeromq.codec import (
    MAX_IDS,
    Ack,
    BadRequest,
    Clients,
    FetchResult,
    Get,
    Login,
    Put,
    PutSequence,
    Read,
    Request,
    Skip,
    Stats,
    Subscribe,
    Subscriptions,
    Topics,
    Unsubscribe,
    Wait,
    Watch,
)
from stafeta.errors import (
    BrokerClosed,
    DataLoss,
    OutOfSequence,
    RateLimited,
    StafetaError,
    StoreDamaged,
    StoreError,
)
from stafeta.message import KIND, TIME, Batch, Kind, check_payload
from stafeta.times import EPOCH

TYPES = (
    "REQUEST_ID, SUB, UNSUB, PUT, GET, ACK, WAIT, WATCH, READ, TOPICS, STATS, CLIENTS, SUBSCRIPTIONS and SKIP"
)
MAX_INT = (1 << 63) - 1
MAX_WAIT = 30.0
MAX_LINES = 1000  # of a list
MAX_FILTERS = 1000  # that one request may name
_PUBLICATIONS = b'{"type":"ACK","body":{"publications":[%b]%b}}'


class JsonDialect:
    def read(self, body: bytes) -> Request:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"The request is not JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise BadRequest("The request must be an object.")
        details = fields.get("body")
        if details is None:
            details = {}
        if not isinstance(details, dict):
            raise BadRequest('"body" must be an object.')
        match fields.get("type"):
            case "PUT":
                return _put(fields, details)
            case "GET":
                return Get(
                    _word(fields, "client_id"),
                    _word(fields, "topic"),
                    _number(details, "last_publication_id", -MAX_INT),
                    _number(details, "limit", 1) if "limit" in details else 1,
                    _wait(details),
                    _mark(details),
                    single="limit" not in details,
                )
            case "SUB":
                return Subscribe(_word(fields, "client_id"), _word(fields, "topic"), _mark(details))
            case "UNSUB":
                return Unsubscribe(_word(fields, "client_id"), _word(fields, "topic"))
            case "ACK":
                return _ack(fields, details)
            case "REQUEST_ID":
                return Login()
            case "TOPICS":
                return Topics(_word(details, "filter", "#"), _word(details, "after", ""), _lines(details))
            case "WAIT":
                return Wait(_word(fields, "client_id"), _words(details, "topics"), _wait(details))
            case "WATCH":
                return Watch(_word(fields, "client_id"), _words(details, "filters"), _wait(details))
            case "READ":
                start = _number(details, "from", 1) if "from" in details else None
                last = _number(details, "last", 1) if start is None else 0
                return Read(_word(fields, "topic"), start, last, _lines(details))
            case "STATS":
                return Stats()
            case "CLIENTS":
                return Clients(_word(details, "after", ""), _lines(details))
            case "SUBSCRIPTIONS":
                after = _words(details, "after") if "after" in details else ("", "")
                if len(after) != 2:
                    raise BadRequest('"after" must be a client and a filter.')
                return Subscriptions((after[0], after[1]), _lines(details), _word(details, "filter", ""))
            case "SKIP":
                return Skip(_word(fields, "topic"), _number(details, "first", 1), _number(details, "last", 1))
            case other:
                raise BadRequest(f'"type" is {shown(other)}; it must be one of {TYPES}.')

    def logged_in(self, id_: int) -> bytes:
        return b'{"type":"ACK","body":{"id":"%d"}}' % id_

    def subscribed(self, last: int, mark: str | None) -> bytes:
        return b'{"type":"ACK","body":{"last_publication_id":%d%b}}' % (last, _mark_field(mark))

    def done(self) -> bytes:
        return b'{"type":"ACK"}'

    def stored(self, offset: int) -> bytes:
        return b'{"type":"ACK","body":{"current_publication_id":%d}}' % offset

    def messages(self, request: Get, fetched: FetchResult, size: int) -> bytes:
        if request.single:
            return _single(fetched)
        mark = _mark_field(fetched.mark)
        size -= len(_PUBLICATIONS % (b"", mark)) - 1
        publications: list[bytes] = []
        for publication in _publications(fetched):
            encoded = orjson.dumps(publication)
            size -= len(encoded) + 1
            if publications and (size < 0 or len(publications) == request.limit):
                break
            publications.append(encoded)
        return _PUBLICATIONS % (b",".join(publications), mark)

    def error(self, request: Request | None, error: StafetaError) -> bytes:
        body: dict[str, object] = {"error_message": str(error).encode(errors="backslashreplace").decode()}
        if isinstance(error, OutOfSequence):
            body["expected"] = error.expected
        if isinstance(error, DataLoss):
            body["lost"] = True
        if isinstance(error, StoreDamaged) and error.topic:
            body["damaged"] = {"topic": error.topic, "first": error.start, "last": error.stop - 1}
        elif isinstance(error, StoreError | BrokerClosed | RateLimited):
            body["retry"] = True
        return orjson.dumps({"type": "NAK", "body": body})


def stored_sequence(first: int, last: int) -> bytes:
    return b'{"type":"ACK","body":{"first_publication_id":%d,"current_publication_id":%d}}' % (first, last)


def listed(name: str, lines: Sequence[NamedTuple]) -> bytes:
    """A list of what there is, by this name."""
    return _ack_body({name: [line._asdict() for line in lines]})


def ready(filters: Sequence[str]) -> bytes:
    return _ack_body({"ready": filters})


def stats(fields: dict[str, object]) -> bytes:
    return _ack_body(fields)


def watched(batches: Sequence[Batch]) -> bytes:
    """All of these, in the order of their positions, each with its topic and its number in it."""
    found = [
        (position, publication | {"topic": batch.topic})
        for batch in batches
        for position, publication in zip(
            batch.positions, _publications(FetchResult([batch], by_position=False)), strict=True
        )
    ]
    found.sort(key=itemgetter(0))
    return _PUBLICATIONS % (b",".join([orjson.dumps(publication) for _, publication in found]), b"")


def _put(fields: dict[str, Any], details: dict[str, Any]) -> Request:
    topic = _word(fields, "topic")
    kind = Kind.of(details["kind"]) if "kind" in details else Kind.STRING
    if "sequence" in details:
        publications = details.get("publications")
        if not isinstance(publications, list) or not publications:
            raise BadRequest('"publications" must be a list with something in it.')
        if kind is not Kind.JSON and set(map(type, publications)) != {str}:
            raise BadRequest('"publications" must be strings, unless their kind is json.')
        payloads = [_payload(publication, kind, details)[1] for publication in publications]
        create = details.get("create", False)
        if not isinstance(create, bool):
            raise BadRequest('"create" must be true or false.')
        sequence = _number(details, "sequence", 1)
        return PutSequence(topic, payloads, kind, _word(fields, "client_id"), sequence, create)
    if "publication" not in details:
        raise BadRequest('PUT needs "publication" in its body.')
    kind, payload = _payload(details["publication"], kind, details)
    counter = _number(details, "counter", -MAX_INT) if "counter" in details else None
    return Put(topic, payload, kind, _word(fields, "client_id", ""), counter)


def _payload(publication: object, kind: Kind, details: dict[str, Any]) -> tuple[Kind, bytes]:
    if not isinstance(publication, str):
        # The protocol has strings only; any other JSON value is taken for what it is.
        try:
            # A copy: what orjson returns keeps the kilobytes that it was written into, for each message.
            return Kind.JSON, bytes(memoryview(orjson.dumps(publication)))
        except orjson.JSONEncodeError as error:  # it reads deeper nesting than it writes
            raise BadRequest(f"A publication cannot be stored: {error}.") from None
    encoding = details.get("encoding")
    if encoding is None:
        payload = publication.encode()
        if kind is Kind.STRING:
            return kind, payload
    elif encoding == "base64":
        try:
            payload = b64decode(publication, validate=True)
        except ValueError as error:
            raise BadRequest(f"A publication is not base64: {error}.") from None
    else:
        raise BadRequest(f'"encoding" is {shown(encoding)}; it must be "base64" or left out.')
    check_payload(kind, payload)
    return kind, payload


def _ack(fields: dict[str, Any], details: dict[str, Any]) -> Ack:
    client, topic = _word(fields, "client_id"), _word(fields, "topic")
    if "last_publication_id" in details:
        return Ack(client, topic, None, _number(details, "last_publication_id", -MAX_INT), _mark(details))
    ids = details.get("ids")
    if not isinstance(ids, list) or not all(type(id_) is int and 0 < id_ <= MAX_INT for id_ in ids):
        raise BadRequest('ACK needs "ids", a list of message ids, or "last_publication_id" in its body.')
    if len(ids) > MAX_IDS:
        raise BadRequest(f"ACK has {len(ids)} ids; at most {MAX_IDS} are allowed at once.")
    return Ack(client, topic, ids, mark=_mark(details))


def _word(fields: dict[str, Any], key: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # Clients that keep their id as a number send it as one.
    if not isinstance(value, str):
        raise BadRequest(f'"{key}" must be a string.')
    return value


def _words(details: dict[str, Any], key: str) -> tuple[str, ...]:
    value = details.get(key)
    if (
        not isinstance(value, list)
        or len(value) > MAX_FILTERS
        or not all(isinstance(one, str) for one in value)
    ):
        raise BadRequest(f'"{key}" must be a list of at most {MAX_FILTERS} strings.')
    return tuple(value)


def _lines(details: dict[str, Any]) -> int:
    return min(_number(details, "limit", 1), MAX_LINES) if "limit" in details else MAX_LINES


def _number(details: dict[str, Any], key: str, low: int) -> int:
    value = details.get(key)
    if type(value) is not int or not low <= value <= MAX_INT:
        raise BadRequest(f'"{key}" must be a whole number' + ("." if low < 0 else f" of at least {low}."))
    return value


def _mark_field(mark: str | None) -> bytes:
    return b"" if mark is None else b',"mark":"%b"' % mark.encode()


def _mark(details: dict[str, Any]) -> str | None:
    return _word(details, "mark") if "mark" in details else None


def _wait(details: dict[str, Any]) -> float:
    value = details.get("wait", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadRequest('"wait" must be a number of seconds.')
    return min(float(value), MAX_WAIT)


def _single(fetched: FetchResult) -> bytes:
    for publication in _publications(fetched):
        body = {"publication": publication["text"], "publication_id": publication["id"]}
        body |= {key: publication[key] for key in ("topic", "encoding") if key in publication}
        return _ack_body(body)
    return _ack_body({"publication": "", "publication_id": -1})


def _publications(fetched: FetchResult) -> Iterator[dict[str, object]]:
    for batch in fetched.batches:
        ids = batch.positions if fetched.by_position else range(batch.base, batch.end)
        columns = batch.payloads, batch.column(KIND), batch.column(TIME)
        for id_, payload, kind, time in zip(ids, *columns, strict=True):
            publication: dict[str, object] = {"id": id_}
            try:
                publication["text"] = payload.decode()
            except UnicodeDecodeError:
                publication["text"] = b64encode(payload).decode()
                publication["encoding"] = "base64"
            publication["kind"] = _WORDS[kind]
            publication["time"] = EPOCH + timedelta(microseconds=cast("int", time))
            if fetched.by_position:
                publication["topic"] = batch.topic
            yield publication


_WORDS: dict[object, str] = {int(kind): kind.word for kind in Kind}


def _ack_body(body: dict[str, object]) -> bytes:
    return orjson.dumps({"type": "ACK", "body": body})
