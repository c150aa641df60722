"""Whether the lake's files are there, and as long as the table says."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from stafeta.pipeline.jobs.auditing.findings import Finding
from stafeta.pipeline.lake.files import place

if TYPE_CHECKING:
    from pyiceberg.table import Table

CHECK: Final = "files"
MISSING: Final = "is missing"
OTHER_SIZE: Final = "is not as long as it was"
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
    return found


def findings(table: "Table", wrong: dict[str, str]) -> Iterable[Finding]:
    for url, what in sorted(wrong.items()):
        name = url.removeprefix(f"{table.location()}/")
        yield Finding(CHECK, "", f"{name} {what}", (), 1)
