"""Where the lake's tables are listed: an SQLite file beside them, or any catalog that pyiceberg is configured for."""

import errno
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DatabaseError, IntegrityError

from stafeta.errors import ConfigError, StoreConflict, StoreFull
from stafeta.pipeline.lake.recovery import recover, version
from stafeta.pipeline.lake.storage import LocalFileIO
from stafeta.pipeline.lake.syncing import make_folders
from stafeta.pipeline.lake.tables import TABLES

FILE: Final = "catalog.db"
LAKE: Final = "stafeta.lake"
"""The property of `messages` that tells one lake from another."""
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_PATIENCE: Final = 60.0  # seconds that a writer waits for another
_catalogs: dict[tuple[str, str], tuple[tuple[int, int] | None, Catalog]] = {}
_lock = threading.Lock()


def folder(url: str) -> Path | None:
    """The folder of a URL, if it is one of this machine's."""
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


def catalog(warehouse: str, name: str) -> Catalog:
    """The catalog of the lake at a URL: one is opened once in a process, and again where its file is another one."""
    with _lock:
        known = _catalogs.get((warehouse, name))
        if known is not None and known[0] == _file(warehouse, name):
            return known[1]
        if known is not None and isinstance(known[1], SqlCatalog):
            known[1].engine.dispose()
        opened = _opened(warehouse, name)
        _catalogs[warehouse, name] = _file(warehouse, name), opened
        return opened


def _file(warehouse: str, name: str) -> tuple[int, int] | None:
    """Which file a catalog is; None where it is none, or not there."""
    local = None if name else folder(warehouse)
    with suppress(FileNotFoundError):
        if local is not None:
            found = (local / FILE).stat()
            return found.st_dev, found.st_ino
    return None


def _opened(warehouse: str, name: str) -> Catalog:
    if name:
        try:
            return load_catalog(name)
        except Exception as error:  # noqa: BLE001 - of whatever kind of catalog it is
            raise ConfigError(f"lake.catalog: pyiceberg cannot open the catalog {name!r}: {error}") from None
    local = folder(warehouse)
    if local is None:
        raise ConfigError(
            f"lake.warehouse is {warehouse}, and a catalog in an SQLite file has to be in a folder of this machine. "
            "Name a catalog that pyiceberg is configured for in lake.catalog."
        )
    try:
        make_folders(str(local))
        for attempt in range(5):
            try:
                return _SyncedCatalog("stafeta", **_settings(local, warehouse))
            except DatabaseError:  # another process makes the same tables in it right now
                if attempt == 4:
                    raise
    except (OSError, DatabaseError) as error:
        raise ConfigError(f"lake.warehouse: the lake in {local} cannot be opened: {error}") from None
    raise AssertionError


def _settings(local: Path, warehouse: str) -> dict[str, Any]:
    name = quote(str(local / FILE))  # in which '?' would begin SQLAlchemy's own options
    return {
        "uri": f"sqlite:///{name}?timeout={_PATIENCE}",
        "warehouse": warehouse,
        "py-io-impl": f"{LocalFileIO.__module__}.{LocalFileIO.__qualname__}",
    }


class _SyncedCatalog(SqlCatalog):
    """What is committed is on the disk."""

    def _init_catalog(self) -> None:
        self.looked: set[tuple[str, str]] = set()  # tables that were compared with their own metadata
        self._newest: dict[tuple[str, ...], int] = {}  # the newest version of each that was seen
        event.listen(self.engine, "connect", _sync)
        event.listen(self.engine, "handle_error", raise_plainly)
        super()._init_catalog()

    def load_table(self, identifier: str | Identifier) -> Table:
        """A file that was overwritten in place, with a copy, names an older version than it did before."""
        found = super().load_table(identifier)
        namespace, name = found.name()
        if version(found.metadata_location) < self._newest.get((namespace, name), -1):
            self.looked.discard((namespace, name))
            recovered(self, namespace, name)
            found = super().load_table(identifier)
        self._newest[namespace, name] = version(found.metadata_location)
        return found


def _sync(connection: Any, _: object) -> None:
    # FULL, the default, leaves the name of the journal behind, which would roll the commit back after a loss of power.
    connection.execute("PRAGMA synchronous = EXTRA")


def raise_plainly(context: ExceptionContext) -> None:
    """Raises what SQLite says, where it is about others or the disk, as a sentence: it may be tried again."""
    said, file = str(context.original_exception), context.engine and context.engine.url.database
    if "is locked" in said:
        raise StoreConflict(
            f"{file}: another process has kept the lake's catalog locked for {_PATIENCE:.0f} s. If it is stuck, end it."
        )
    if "disk is full" in said:
        raise StoreFull(f"{file}: the disk has no room for the lake's catalog.")


def recovered(catalog: Catalog, namespace: str, name: str) -> None:
    """Lets a catalog that is an SQLite file know what the table's own metadata says: once after it is opened."""
    if isinstance(catalog, _SyncedCatalog) and (namespace, name) not in catalog.looked:
        try:
            recover(catalog, namespace, name, f"{catalog.properties['warehouse']}/{namespace}/{name}")
        except OSError as error:
            if error.errno not in _READ_ONLY:  # who only reads cannot mend
                raise
        catalog.looked.add((namespace, name))


def table(catalog: Catalog, namespace: str, name: str) -> Table:
    """A table, which is made where it is missing."""
    recovered(catalog, namespace, name)
    identifier = (namespace, name)
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        pass
    with suppress(NamespaceAlreadyExistsError, IntegrityError):  # the latter where two make it at once
        catalog.create_namespace(namespace)
    definition = TABLES[name]
    try:
        return catalog.create_table(
            identifier,
            definition.schema(),
            partition_spec=definition.partition_spec(),
            sort_order=definition.sort_order(),
            properties=definition.settings() | ({LAKE: uuid.uuid4().hex} if name == "messages" else {}),
        )
    except TableAlreadyExistsError:  # somebody else was quicker
        return catalog.load_table(identifier)
