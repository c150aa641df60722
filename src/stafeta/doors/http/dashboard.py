"""The page about the broker, at `/`: files of the package, and nothing from elsewhere. (docs/dashboard.md)"""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from stafeta.doors.http.pages import TYPES, page

PACKAGE: Final = "stafeta.doors.http.page"


def _names(folder: Traversable, before: str = "") -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _names(one, f"{before}{one.name}/")
        elif one.name.rpartition(".")[2] in TYPES:
            yield before + one.name


ROUTES: Final = {
    "/": page(PACKAGE, "index.html"),
    **{f"/page/{name}": page(PACKAGE, name) for name in sorted(_names(files(PACKAGE)))},
}
