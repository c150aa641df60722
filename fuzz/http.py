"""The HTTP door: what requests say, and how messages are written.

1. Queries, headers and bodies are read, or refused by an error that is short enough to tell.
2. What is taken for a message is what its kind says, and what is written of it is read as the same message.
3. An event is one line of data, and a frame says its length.
"""

import json
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

import pyarrow as pa

from fuzz.target import Target
from stafeta.doors.http import access, arrow, codec, encoding, incoming
from stafeta.errors import StafetaError
from stafeta.message import Kind, RowBatch, check_payload
from stafeta.security.authorization import credentials_of

_LONGEST_ERROR = 4000  # bytes, as it is told
_STREAM = 1 << 20  # bytes of messages that an Arrow stream may have


def queries(data: bytes) -> None:
    """As a query, and as a JSON object."""
    for read in (codec.Parameters.of_query, codec.Parameters.of_body):
        if _read(read, data) is None:
            continue
        for take in _TAKES:
            found: Any = _read(lambda take=take, read=read: take(read(data)))
            if isinstance(found, int):
                assert 0 <= found <= codec.MAX_INT
        _read(lambda read=read: read(data).end())


def headers(data: bytes) -> None:
    text = data.decode("latin-1")
    assert codec.accepted(text, (codec.JSON, codec.NDJSON)) in (codec.JSON, codec.NDJSON, None)
    password, token = _read(credentials_of, text) or (None, None)
    assert password is None or token is None
    codec.cookie(text, "stafeta_session")
    host = codec.host_of(text)
    assert host == host.lower()
    if access.known_host(text, ("broker.example",)) and not host.endswith(("localhost", "broker.example")):
        ip_address(host)
    _read(codec.unescaped, text)
    _read(codec.key_name, text, "t")
    name = _read(codec.name_of, text)
    if name is not None:
        assert codec.named(name) == codec.Named("", "http", text)


def messages(data: bytes) -> None:
    for lines in (True, False):
        read = _read(_many, data, lines)
        for kind, payload in read.messages if read is not None else ():
            _same(kind, payload)
    for type_ in ("application/json", "text/plain", "", "application/x"):
        for kind_ in ("", *(one.word for one in Kind)):
            found = _read(incoming.one_message, data, type_, kind_)
            if found is not None:
                ((kind, payload),) = found.messages
                assert payload == data
                _same(kind, payload)
    _read(lambda: codec.ranges_of(json.loads(data)) if data[:1] == b"[" and _is_json(data) else None)


def _many(data: bytes, lines: bool) -> incoming.Rows:
    return incoming.many_messages(data, lines=lines)


def streams(data: bytes) -> None:
    """As an Arrow stream."""
    found = _read(arrow.taken, data, "t", 1 << 50, _STREAM)
    if found is not None:
        assert 0 < found.count <= incoming.MAX_MESSAGES
        assert found.size <= _STREAM
        assert len(found.digest()) == 32


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _same(kind: int, payload: bytes) -> None:
    """What is written of a message is read as the same."""
    check_payload(Kind(kind), payload)
    batch = RowBatch("t", 1, [(1, 0, "", "", kind, None, payload)])
    (made,) = encoding.objects(batch)
    read = json.loads(encoding.dumps(made))
    assert incoming.message_of(
        {key: read[key] for key in ("payload", "kind", "encoding") if key in read}
    ) == (
        kind,
        payload,
    )
    (event,) = encoding.events(lambda position: f"x.{position}")(batch)
    assert event.startswith(b"id: x.1\nevent: message\ndata: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 4
    (frame,) = encoding.frames(lambda position: f"x.{position}")(batch)
    size = frame[1]
    start = 2 if size < 126 else 4 if size == 126 else 10
    assert len(frame) - start == (size if size < 126 else int.from_bytes(frame[2:start], "big"))
    assert json.loads(frame[start:])["payload"] == read["payload"]


def _read(read: Callable[..., Any], *given: Any) -> Any:
    """What was read; None where it was refused."""
    try:
        return read(*given)
    except StafetaError as error:
        said = str(error).encode(errors="backslashreplace")
        assert 0 < len(said) < _LONGEST_ERROR
        return None


_TAKES: list[Callable[[codec.Parameters], Any]] = [
    lambda one: one.text("filter"),
    lambda one: one.texts("filter"),
    lambda one: one.needed_text("client"),
    lambda one: one.number("offset", 0),
    lambda one: one.number("limit", 1, 1000, 5),
    lambda one: one.time("time"),
    lambda one: one.seconds("wait", 30.0) and None,
    lambda one: one.flag("force") and None,
    lambda one: one.word("sort", ("client", "behind"), "client"),
]


def _arrow_streams() -> Iterator[bytes]:
    """One that is plain, one that is compressed, and one with a dictionary."""
    plain = pa.table({"payload": ["a", "1" * 200]})
    coded = pa.table({"payload": [b"\xff", b""], "kind": pa.array(["bytes", "bytes"]).dictionary_encode()})
    forms: Any = ((plain, None), (plain, "zstd"), (coded, "lz4"))
    for table, compression in forms:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        yield sink.getvalue().to_pybytes()


TARGETS = [
    Target(
        "http.queries",
        queries,
        [
            b"filter=a/%23&offset=12&limit=100&time=2026-11-16T08:00:00%2B01:00&wait=1.5&force=true&client=c",
            b"filter=%ff",
            b"offset=99999999999999999999&time=-1",
            b'{"filter": ["a", "b"], "offset": 1, "time": 5, "wait": 1e400, "force": false, "client": "\\ud800"}',
        ],
        500,
    ),
    Target(
        "http.headers",
        headers,
        [
            b"text/html;q=0.9, application/x-ndjson;q=1, */*;q=nan",
            b"Basic YTpi",
            b"Bearer x",
            b"a=b; stafeta_session=x",
            b"[::1]:8080",
            b"localhost.:80",
        ],
        300,
    ),
    Target(
        "http.messages",
        messages,
        [
            b'{"payload": "a"}\n{"value": [1, null]}\n',
            b'[{"payload": "/w==", "encoding": "base64", "kind": "bytes"}, {"payload": "-1", "kind": "int"}]',
            b'[{"topic": "t", "first": 1, "last": 2}, {"topic": "t", "offset": 3}]',
            b"21.50",
            b"\xff\x00",
        ],
        1500,
    ),
    Target("http.streams", streams, [*_arrow_streams()], 2000),
]
