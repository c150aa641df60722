"""Files that come with the door: the dashboard, and the page that explains its API and lets one try it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.responses import Response

from stafeta.doors.http.call import Call
from stafeta.doors.http.problems import HttpProblem

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
    "woff2": "font/woff2",
}
DASHBOARD: Final = "stafeta.doors.http.page"
Handler = Callable[[Call], Awaitable[Response]]


@cache
def content(package: str, name: str) -> tuple[bytes, str]:
    """A file of a package, and what stands for its content."""
    data = files(package).joinpath(name).read_bytes()
    return data, f'"{sha256(data).hexdigest()[:24]}"'


def page(package: str, name: str) -> Mapping[str, Handler]:
    """The methods of a path at which a file is."""
    type_ = TYPES[name.rpartition(".")[2]]

    async def send(call: Call) -> Response:
        try:
            data, tag = content(package, name)
        except OSError:
            raise HttpProblem(404, f"There is no file {name}.") from None
        headers = {"etag": tag, "cache-control": "no-cache"}
        if call.header("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, 200, headers, type_)

    return {"GET": send}


def _names(folder: Traversable, before: str = "") -> Iterator[str]:
    """The files below a folder that have a media type."""
    for one in folder.iterdir():
        if one.is_dir():
            yield from _names(one, f"{before}{one.name}/")
        elif one.name.rpartition(".")[2] in TYPES:
            yield before + one.name


ROUTES: Final = {
    "/": page(DASHBOARD, "index.html"),
    **{f"/page/{name}": page(DASHBOARD, name) for name in sorted(_names(files(DASHBOARD)))},
    "/api/docs": page("stafeta.doors.http.static", "docs.html"),
    "/api/docs.js": page("stafeta.doors.http.static", "docs.js"),
    "/api/docs.css": page("stafeta.doors.http.static", "docs.css"),
}
