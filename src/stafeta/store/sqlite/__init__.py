"""The embedded store: one SQLite database in one folder, held by one broker."""

from stafeta.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
