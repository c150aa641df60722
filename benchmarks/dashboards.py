"""Dashboards that are open, without browsers: whoever looks has another machine for these.

A page asks for what `src/stafeta/doors/http/page` asks for on its front page: its files, who looks, the figures of each
second and the alerts of the last hour as server-sent events, which it reads as they come.
"""

import json
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from typing import Final
from urllib.parse import urljoin

_LOADED: Final = re.compile(r'from "([\w./]+)"|(?:href|src)="(/page/[\w./]+)"')
_HOUR: Final = 3600


@contextmanager
def looking(place: tuple[str, int], pages: int) -> Iterator[None]:
    """So many front pages are open, and show something."""
    with ExitStack() as closed:
        streams = [closed.enter_context(closing(stream)) for _ in range(pages) for stream in _opened(place)]
        over = threading.Event()
        shown = threading.Event()
        reader = threading.Thread(target=_read, args=(streams, over, shown))
        reader.start()
        try:
            assert shown.wait(60), "the dashboards get no figures"
            yield
        finally:
            over.set()
            reader.join()


def _opened(place: tuple[str, int]) -> Iterator[socket.socket]:
    """One page: its streams, after its files."""
    with closing(HTTPConnection(*place, timeout=60)) as connection:
        waiting, known = ["/"], set[str]()
        while waiting:
            path = waiting.pop()
            if path in known:
                continue
            known.add(path)
            text = _get(connection, path).decode()
            waiting += [urljoin(path, found[1] or found[2]) for found in _LOADED.finditer(text)]
        assert json.loads(_get(connection, "/api/session"))["authenticated"]
    since = round((time.time() - _HOUR) * 1000)
    for path in ("/api/overview/events", f"/api/events?filter=alerts%2F%23&time={since}"):
        stream = socket.create_connection(place, 60)
        stream.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {place[0]}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        yield stream


def _get(connection: HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200, f"{path}: {answer.status}"
    return answer.read()


def _read(streams: list[socket.socket], over: threading.Event, shown: threading.Event) -> None:
    """Reads all streams; `shown` is set when each has said something, and somebody has figures."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        silent = set(streams)
        figures = False
        while not over.is_set():
            for key, _ in selector.select(0.2):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                data = found.recv(1 << 16)
                assert data, "a dashboard's stream has ended"
                silent.discard(found)
                figures |= b"event: sample" in data
            if figures and not silent:
                shown.set()
