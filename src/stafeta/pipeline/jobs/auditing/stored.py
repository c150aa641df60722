"""Whether the lake's files are there, as long as the table says, and as they were written."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from stafeta.pipeline.jobs.auditing.findings import Finding
from stafeta.pipeline.lake.files import is_changed, place

if TYPE_CHECKING:
    from pyiceberg.table import Table

CHECK: Final = "files"
MISSING: Final = "is missing"
OTHER_SIZE: Final = "is not as long as it was"
OTHER_CONTENT: Final = "is not what was written"
_PORTION: Final = 1000  # files that are looked at in one go


def broken(table: "Table") -> dict[str, str]:
    """The URLs of data files that cannot be read whole, and what is wrong with each."""
    sizes = {task.file.file_path: task.file.file_size_in_bytes for task in table.scan().plan_files()}
    found = {}
    rest = iter(sizes)
    while some := list(islice(rest, _PORTION)):
        system, _ = place(some[0])
        for url, info in zip(some, system.get_file_info([place(one)[1] for one in some]), strict=True):
            if info.type != fs.FileType.File:
                found[url] = MISSING
            elif info.size != sizes[url]:
                found[url] = OTHER_SIZE
    whole = [url for url in sizes if url not in found]
    with ThreadPoolExecutor() as pool:  # reading and checksums let others run
        for url, changed in zip(whole, pool.map(_is_changed, whole), strict=True):
            if changed:
                found[url] = OTHER_CONTENT
    return found


def _is_changed(url: str) -> bool:
    with suppress(FileNotFoundError):  # it was replaced meanwhile, by a merged one, and removed
        return is_changed(url)
    return False


def findings(table: "Table", wrong: dict[str, str]) -> Iterable[Finding]:
    for url, what in sorted(wrong.items()):
        name = url.removeprefix(f"{table.location()}/")
        yield Finding(CHECK, "", f"{name} {what}", (), 1)
