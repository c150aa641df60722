"""Whether the files of a table are there, as long as it says, as they were written, and as it describes them.

1. The table's lists of files are read one by one: what a damaged one named is not known, the others are looked at.
2. Readers leave out files by what the table says of them (how many rows, of which day, from which value to which). A
   file that has others would be left out wrongly.
3. Rows that others have marked as deleted, in files of their own, are still there for Stafeta, and not for others.
"""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.types import BinaryType, StringType

from stafeta.pipeline.jobs.auditing.findings import Finding
from stafeta.pipeline.lake.files import is_changed, place
from stafeta.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyiceberg.table import Table

CHECK: Final = "files"
MISSING: Final = "is missing"
OTHER_SIZE: Final = "is not as long as it was"
OTHER_CONTENT: Final = "is not what was written"
UNREADABLE: Final = "cannot be read"
TWICE: Final = "is in the table twice"
OTHER_ROWS: Final = "has other rows than the table says"
DELETES: Final = "deletes rows, which Stafeta does not do"
_DAY: Final = 86_400_000_000  # microseconds
_PORTION: Final = 1000  # files that are looked at in one go
_READ: Final = (TWICE, OTHER_ROWS)  # though something is wrong with them


class Examined(NamedTuple):
    sound: list[str]
    """The URLs of data files that can be read whole."""
    wrong: dict[str, str]
    """By URL, what is wrong with data files and lists of them."""


def examined(table: "Table") -> Examined:
    listed, wrong = _listed(table)
    found = {file.file_path: file for file in listed}
    times = Counter(file.file_path for file in listed)
    rest = iter(found)
    while some := list(islice(rest, _PORTION)):
        system, _ = place(some[0])
        for url, info in zip(some, system.get_file_info([place(one)[1] for one in some]), strict=True):
            if info.type != fs.FileType.File:
                wrong[url] = MISSING
            elif info.size != found[url].file_size_in_bytes:
                wrong[url] = OTHER_SIZE
    whole = [url for url in found if url not in wrong]
    with ThreadPoolExecutor() as pool:  # reading and checksums let others run
        looked = pool.map(partial(_fault, table), (found[url] for url in whole))
        wrong |= {url: what for url, what in zip(whole, looked, strict=True) if what}
    wrong |= {url: TWICE for url, count in times.items() if count > 1 and url not in wrong}
    return Examined([url for url in found if wrong.get(url, TWICE) in _READ], wrong)


def findings(table: "Table", wrong: dict[str, str]) -> Iterable[Finding]:
    """Files are named from the table's folder on; those of other tables than `messages` with its name."""
    name = table.name()[-1]
    prefix = "" if name == "messages" else f"{name}/"
    for url, what in sorted(wrong.items()):
        yield Finding(CHECK, "", f"{prefix}{url.removeprefix(f'{table.location()}/')} {what}", (), 1)


def _listed(table: "Table") -> tuple[list[DataFile], dict[str, str]]:
    """The data files of the table as it is now, and by URL what is wrong with the lists of them."""
    snapshot = table.current_snapshot()
    found: list[DataFile] = []
    wrong: dict[str, str] = {}
    if snapshot is None:
        return found, wrong
    lists: list[ManifestFile] = []
    try:
        lists = snapshot.manifests(table.io)
    except Exception as error:  # noqa: BLE001 - of whatever kind, in a file that is cut or damaged
        wrong[snapshot.manifest_list] = _unreadable(error)
    for one in lists:
        if one.content == ManifestContent.DELETES:
            wrong[one.manifest_path] = DELETES
            continue
        try:
            entries = one.fetch_manifest_entry(table.io)
        except Exception as error:  # noqa: BLE001 - as above
            wrong[one.manifest_path] = _unreadable(error)
            continue
        if len(entries) != (one.added_files_count or 0) + (one.existing_files_count or 0):
            wrong[one.manifest_path] = OTHER_CONTENT
        found += [entry.data_file for entry in entries]
    return found, wrong


def _fault(table: "Table", file: DataFile) -> str:
    """What is wrong with a data file that is there, and as long as it should be; empty if nothing is."""
    try:
        if is_changed(file.file_path):
            return OTHER_CONTENT
        return OTHER_ROWS if _is_other(table, file) else ""
    except FileNotFoundError:  # it was replaced meanwhile, by a merged one, and removed
        return ""
    except Exception:  # noqa: BLE001 - of whatever kind, in a file without a checksum that is damaged
        return UNREADABLE


def _is_other(table: "Table", file: DataFile) -> bool:
    """Whether the table describes a file so that readers would leave it out who need it. By the figures in the file,
    which take a tenth of the time that pyiceberg needs to describe it anew."""
    schema: Any = table.schema()  # whose columns have plain types
    system, path = place(file.file_path)
    here = pq.read_metadata(path, filesystem=system)
    if here.num_rows != file.record_count:
        return True
    lows, highs = file.lower_bounds or {}, file.upper_bounds or {}
    day = TABLES[table.name()[-1]].day
    for number in range(here.num_row_groups):
        group = here.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            figures: Any = column.statistics
            field = schema.find_field(column.path_in_schema)
            if figures is None or not figures.has_min_max:
                continue
            low, high = figures.min_raw, figures.max_raw
            if column.path_in_schema == day and {low // _DAY, high // _DAY} != {file.partition[0]}:
                return True
            if field.field_id in lows and low < _value(field, lows[field.field_id]):
                return True
            if field.field_id in highs and high > _value(field, highs[field.field_id]):
                return True
    return False


def _value(field: Any, bound: bytes) -> Any:
    """As files have it in their figures."""
    return (
        bound
        if isinstance(field.field_type, StringType | BinaryType)
        else from_bytes(field.field_type, bound)
    )


def _unreadable(error: Exception) -> str:
    return MISSING if isinstance(error, FileNotFoundError) else UNREADABLE
