"""A catalog that is lost, or older than its tables, from the tables' own metadata.

1. Which version of its metadata is the table is said by the catalog alone. A version that comes of the one it names was
   committed after it, or was about to be by somebody who died: its files are there, so that it counts.
2. What a catalog names may be gone, since tables keep their last versions only: then it is older than all of those.
3. A version of which files are gone is not taken: in a backup of a lake that was in use there may be some. Unless none
   is whole: a table that was begun anew would have the files that are left removed, as those that nobody needs.
4. Versions are distinguished by their numbers, and by what they say to come of: clocks may have been set back.
"""

import logging
import os
import re
from contextlib import suppress
from typing import Final

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from stafeta.errors import StoreDamaged
from stafeta.pipeline.lake import files
from stafeta.pipeline.lake.turns import turn

_VERSION: Final = re.compile(r"/(\d+)-[^/]*\.metadata\.json$")

log = logging.getLogger(__name__)


def has_metadata(location: str) -> bool:
    """Whether there is a table at a URL, whatever the catalog says."""
    return bool(_versions(location))


def recover(catalog: SqlCatalog, namespace: str, name: str, location: str) -> None:
    """Lets the catalog name the newest version of a table's metadata. Nobody commits meanwhile."""
    if not has_metadata(location):
        return
    with turn(location):
        named = _named(catalog, namespace, name)
        if named is not None:
            _check_folder(named, location)
        found = _newest(catalog, location, named)
        if found is None or found == named:
            return
        if named is None:
            log.warning(
                "The catalog has no table %s.%s: it is found again, as %s says.", namespace, name, found
            )
            if not catalog.namespace_exists(namespace):
                catalog.create_namespace(namespace)
            catalog.register_table((namespace, name), found)
            return
        log.warning("The catalog is older than the table %s.%s, which is as %s says.", namespace, name, found)
        with Session(catalog.engine) as session:
            values = {"metadata_location": found, "previous_metadata_location": named}
            session.execute(update(IcebergTables).where(_row(catalog, namespace, name)).values(**values))
            session.commit()


def _newest(catalog: SqlCatalog, location: str, named: str | None) -> str | None:
    """The newest version that comes of the one that the catalog names, or of all, where it names none that is there."""
    versions = _versions(location)
    there = named is not None and _name(named) in map(_name, versions)
    least = version(named or "")
    readable: dict[str, TableMetadata] = {}
    whole: dict[str, TableMetadata] = {}
    for url in sorted(versions, key=lambda url: versions[url], reverse=True):
        if versions[url] <= least or any(versions[one] > versions[url] for one in whole):
            break
        metadata = _read(catalog, url)
        if metadata is None or (named and there and not _comes_of(metadata, named)):
            continue  # half written, or it comes of another one
        readable[url] = metadata
        if _complete(catalog, metadata):
            whole[url] = metadata
    if readable and not whole and named and there:
        metadata = _read(catalog, named)
        if metadata is not None and _complete(catalog, metadata):
            return named
    if choice := whole or readable:
        # Of one number there may be two, if somebody died who was about to commit the other.
        return max(choice, key=lambda url: (versions[url], choice[url].last_updated_ms))
    if not there and (named is not None or any(versions.values())):
        if versions and max(versions.values()) < least:
            raise StoreDamaged(
                f"The catalog is newer than the table in {location}: it names {_name(named or '')}, which is not "
                "there. Put both back from one copy; or remove catalog.db, which is made again from what is there."
            )
        lost = f"names {named}, which is gone" if named is not None else "is lost"
        raise StoreDamaged(
            f"The catalog {lost}, and no other version of the table in {location} is whole. "
            "Restore the folder from a backup."
        )
    return named  # the first version alone may be half written: nothing has been committed yet


def _comes_of(metadata: TableMetadata, named: str) -> bool:
    """Whether a version comes of another, or of later ones, as far back as it says."""
    before = [entry.metadata_file for entry in metadata.metadata_log]
    return _name(named) in map(_name, before) or (bool(before) and min(map(version, before)) > version(named))


def _check_folder(named: str, location: str) -> None:
    """A lake may be reached by another path than the one it was made with, not moved: tables name files in full."""
    made, here = (files.place(url)[1] for url in (named.rpartition("/metadata/")[0], location))
    with suppress(OSError):
        if made == here or os.path.samefile(made, here):
            return
    raise StoreDamaged(
        f"The catalog names a table in {made}, not in {here}: a lake cannot be used where it was moved or copied to. "
        "Put it back, or name the folder that it was made in (lake.warehouse)."
    )


def _versions(location: str) -> dict[str, int]:
    """The URLs of the versions that are there, and their numbers."""
    found = (url for url, _, _ in files.found(f"{location}/metadata"))
    return {url: number for url in found if (number := version(url)) >= 0}


def _name(url: str) -> str:
    """The name of a version's file, which no other has, by whatever path its folder is reached."""
    return url.rpartition("/")[2]


def version(url: str) -> int:
    """The number of a version of a table's metadata; -1 of other files."""
    match = _VERSION.search(url)
    return int(match[1]) if match else -1


def _read(catalog: SqlCatalog, url: str) -> TableMetadata | None:
    """What a version says; None, where it is not whole: somebody died while he wrote it."""
    try:
        return FromInputFile.table_metadata(catalog._load_file_io(location=url).new_input(url))
    except (OSError, ValueError, ValidationError):
        return None


def _complete(catalog: SqlCatalog, metadata: TableMetadata) -> bool:
    """Whether all is there that a version names."""
    io, snapshot = catalog._load_file_io(location=metadata.location), metadata.current_snapshot()
    if snapshot is None:
        return True
    there = {url for url, _, _ in files.found(f"{metadata.location}/data")}
    try:
        return all(
            entry.data_file.file_path in there
            for manifest in snapshot.manifests(io)
            for entry in manifest.fetch_manifest_entry(io)
        )
    except Exception:  # noqa: BLE001 - of whatever kind, in files that are cut or damaged
        return False


def _named(catalog: SqlCatalog, namespace: str, name: str) -> str | None:
    with Session(catalog.engine) as session:
        return session.scalar(select(IcebergTables.metadata_location).where(_row(catalog, namespace, name)))


def _row(catalog: SqlCatalog, namespace: str, name: str) -> ColumnElement[bool]:
    return (
        (IcebergTables.catalog_name == catalog.name)
        & (IcebergTables.table_namespace == namespace)
        & (IcebergTables.table_name == name)
    )
