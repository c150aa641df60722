"""Changes of a table that belong together."""

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata


class _Transaction(Transaction):
    """One that knows the metadata it makes. pyiceberg's makes them anew whenever it looks at them, which is about 20
    times a commit, and copies all of them each time."""

    _made: tuple[object, object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        before, updates = self._table.metadata, self._updates
        if self._made is None or self._made[0] is not before or self._made[1] is not updates:
            self._made = before, updates, super().table_metadata
        return self._made[2]


def transaction(table: Table) -> Transaction:
    """A transaction that is committed when its block ends."""
    return _Transaction(table)
