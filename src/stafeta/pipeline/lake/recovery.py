"""A catalog that is lost, or older than its tables, from the tables' own metadata.

1. Which version of its metadata is the table is said by the catalog alone. A version that comes of the one it names was
   committed after it, or was about to be by somebody who died: its files are there, so that it counts.
2. What a catalog names may be gone, since tables keep their last versions only: then it is older than all of those.
3. Versions are told apart by their numbers, and by what they say to come of: clocks may have been set back.
"""

import logging
import re
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
    there = named in versions
    least = _number(named or "")
    whole: dict[str, TableMetadata] = {}
    for url in sorted(versions, key=lambda url: versions[url], reverse=True):
        if versions[url] <= least or any(versions[one] > versions[url] for one in whole):
            continue
        metadata = _read(catalog, url)
        if metadata is None or (there and named not in _before(metadata)) or not _complete(catalog, metadata):
            continue  # half written, or it comes of another one
        whole[url] = metadata
    if whole:  # of one number there may be two, if somebody died who was about to commit the other
        return max(whole, key=lambda url: whole[url].last_updated_ms)
    if named is not None and not there:
        raise StoreDamaged(
            f"The catalog names {named}, which is gone, and no other version of the table in {location} is whole. "
            "Restore the folder from a backup."
        )
    return named


def _before(metadata: TableMetadata) -> set[str]:
    """The versions that one comes of, as far back as it says."""
    return {entry.metadata_file for entry in metadata.metadata_log}


def _versions(location: str) -> dict[str, int]:
    """The URLs of the versions that are there, and their numbers."""
    found = (url for url, _, _ in files.found(f"{location}/metadata"))
    return {url: number for url in found if (number := _number(url)) >= 0}


def _number(url: str) -> int:
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
    except (OSError, ValueError):
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
