"""The JSON dialect: one object a request, one a reply."""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from reprlib import repr as shown  # what strangers send may be as large and as deep as they like
from typing import Any, cast

import orjson

from stafeta.doors.zeromq.codec import (
    Ack,
    BadRequest,
    Delivery,
    Get,
    Login,
    Put,
    PutSequence,
    Request,
    Subscribe,
    TopicLine,
    Topics,
    Unsubscribe,
)
from stafeta.errors import BrokerClosed, OutOfSequence, StafetaError, StoreError
from stafeta.message import KIND, TIME, Kind, check_payload

TYPES = "REQUEST_ID, SUB, UNSUB, PUT, GET, ACK and TOPICS"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_INT = (1 << 63) - 1
MAX_WAIT = 30.0
MAX_TOPICS = 1000
_PUBLICATIONS = b'{"type":"ACK","body":{"publications":[%b]}}'


class JsonDialect:
    def read(self, body: bytes) -> Request:
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"The request is not JSON: {error}.") from None
        if not isinstance(told, dict):
            raise BadRequest("The request must be an object.")
        details = told.get("body")
        if details is None:
            details = {}
        if not isinstance(details, dict):
            raise BadRequest('"body" must be an object.')
        match told.get("type"):
            case "PUT":
                return _put(told, details)
            case "GET":
                return Get(
                    _word(told, "client_id"),
                    _word(told, "topic"),
                    _number(details, "last_publication_id", -MAX_INT),
                    _number(details, "limit", 1) if "limit" in details else None,
                    _wait(details),
                )
            case "SUB":
                return Subscribe(_word(told, "client_id"), _word(told, "topic"))
            case "UNSUB":
                return Unsubscribe(_word(told, "client_id"), _word(told, "topic"))
            case "ACK":
                return _ack(told, details)
            case "REQUEST_ID":
                return Login()
            case "TOPICS":
                limit = min(_number(details, "limit", 1), MAX_TOPICS) if "limit" in details else MAX_TOPICS
                return Topics(_word(details, "filter", "#"), _word(details, "after", ""), limit)
            case other:
                raise BadRequest(f'"type" is {shown(other)}; it must be one of {TYPES}.')

    def logged_in(self, id_: int) -> bytes:
        return b'{"type":"ACK","body":{"id":"%d"}}' % id_

    def subscribed(self, last: int) -> bytes:
        return b'{"type":"ACK","body":{"last_publication_id":%d}}' % last

    def done(self) -> bytes:
        return b'{"type":"ACK"}'

    def stored(self, offset: int) -> bytes:
        return b'{"type":"ACK","body":{"current_publication_id":%d}}' % offset

    def messages(self, request: Get, delivery: Delivery, size: int) -> bytes:
        if request.limit is None:
            return _single(delivery)
        size -= len(_PUBLICATIONS % b"") - 1
        publications: list[bytes] = []
        for publication in _publications(delivery):
            encoded = orjson.dumps(publication)
            size -= len(encoded) + 1
            if publications and (size < 0 or len(publications) >= request.limit):
                break
            publications.append(encoded)
        return _PUBLICATIONS % b",".join(publications)

    def error(self, request: Request | None, error: StafetaError) -> bytes:
        body: dict[str, object] = {"error_message": str(error).encode(errors="backslashreplace").decode()}
        if isinstance(error, OutOfSequence):
            body["expected"] = error.expected
        if isinstance(error, StoreError | BrokerClosed):
            body["retry"] = True
        return orjson.dumps({"type": "NAK", "body": body})


def stored_sequence(first: int, last: int) -> bytes:
    return b'{"type":"ACK","body":{"first_publication_id":%d,"current_publication_id":%d}}' % (first, last)


def topics(lines: Sequence[TopicLine]) -> bytes:
    return _ack_body({"topics": [line._asdict() for line in lines]})


def _put(told: dict[str, Any], details: dict[str, Any]) -> Request:
    topic = _word(told, "topic")
    kind = Kind.of(details["kind"]) if "kind" in details else Kind.STRING
    if "sequence" in details:
        publications = details.get("publications")
        if not isinstance(publications, list) or not publications:
            raise BadRequest('"publications" must be a list with something in it.')
        if kind is not Kind.JSON and set(map(type, publications)) != {str}:
            raise BadRequest('"publications" must be strings, unless their kind is json.')
        payloads = [_payload(publication, kind, details)[1] for publication in publications]
        return PutSequence(topic, payloads, kind, _word(told, "client_id"), _number(details, "sequence", 1))
    if "publication" not in details:
        raise BadRequest('PUT needs "publication" in its body.')
    kind, payload = _payload(details["publication"], kind, details)
    counter = _number(details, "counter", -MAX_INT) if "counter" in details else None
    return Put(topic, payload, kind, _word(told, "client_id", ""), counter)


def _payload(publication: object, kind: Kind, details: dict[str, Any]) -> tuple[Kind, bytes]:
    if not isinstance(publication, str):
        # The protocol has strings only; any other JSON value is taken for what it is.
        try:
            return Kind.JSON, orjson.dumps(publication)
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


def _ack(told: dict[str, Any], details: dict[str, Any]) -> Ack:
    client, topic = _word(told, "client_id"), _word(told, "topic")
    if "last_publication_id" in details:
        return Ack(client, topic, None, _number(details, "last_publication_id", -MAX_INT))
    ids = details.get("ids")
    if not isinstance(ids, list) or not all(type(id_) is int and 0 < id_ <= MAX_INT for id_ in ids):
        raise BadRequest('ACK needs "ids", a list of message ids, or "last_publication_id" in its body.')
    return Ack(client, topic, ids)


def _word(told: dict[str, Any], key: str, default: str | None = None) -> str:
    value = told.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # Clients that keep their id as a number send it as one.
    if not isinstance(value, str):
        raise BadRequest(f'"{key}" must be a string.')
    return value


def _number(details: dict[str, Any], key: str, low: int) -> int:
    value = details.get(key)
    if type(value) is not int or not low <= value <= MAX_INT:
        raise BadRequest(f'"{key}" must be a whole number' + ("." if low < 0 else f" of at least {low}."))
    return value


def _wait(details: dict[str, Any]) -> float:
    value = details.get("wait", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadRequest('"wait" must be a number of seconds.')
    return min(float(value), MAX_WAIT)


def _single(delivery: Delivery) -> bytes:
    for publication in _publications(delivery):
        body = {"publication": publication["text"], "publication_id": publication["id"]}
        body |= {key: publication[key] for key in ("topic", "encoding") if key in publication}
        return _ack_body(body)
    return _ack_body({"publication": "", "publication_id": -1})


def _publications(delivery: Delivery) -> Iterator[dict[str, object]]:
    for batch in delivery.batches:
        ids = batch.positions if delivery.by_position else range(batch.base, batch.end)
        columns = batch.payloads, batch.column(KIND), batch.column(TIME)
        for id_, payload, kind, time in zip(ids, *columns, strict=True):
            told: dict[str, object] = {"id": id_}
            try:
                told["text"] = payload.decode()
            except UnicodeDecodeError:
                told["text"] = b64encode(payload).decode()
                told["encoding"] = "base64"
            told["kind"] = _WORDS[kind]
            told["time"] = _EPOCH + timedelta(microseconds=cast("int", time))
            if delivery.by_position:
                told["topic"] = batch.topic
            yield told


_WORDS: dict[object, str] = {int(kind): kind.word for kind in Kind}


def _ack_body(body: dict[str, object]) -> bytes:
    return orjson.dumps({"type": "ACK", "body": body})
