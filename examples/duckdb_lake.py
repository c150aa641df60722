"""The lake without Spark: DuckDB reads what `stafeta pipeline run archive` has written.

    pip install duckdb 'pyiceberg[sql-sqlite]'
    python examples/duckdb_lake.py [LAKE]

pyiceberg looks up which files a table has now, and DuckDB reads those, several at a time and only the columns and parts
that a query needs. It works while the archive goes on: files that are in a table do not change.
"""

import argparse
from pathlib import Path

import duckdb
from pyiceberg.catalog.sql import SqlCatalog


def view(connection: duckdb.DuckDBPyConnection, lake: Path, name: str, row_filter: str = "") -> int:
    """Makes a table of the lake, as it is now, a view of DuckDB's; returns how many files it has. Files without a row
    that the filter lets through are left out, but others still have rows that it does not."""
    catalog = SqlCatalog("stafeta", uri=f"sqlite:///{lake.absolute() / 'catalog.db'}")
    table = catalog.load_table(f"stafeta.{name}")
    scan = table.scan(row_filter=row_filter) if row_filter else table.scan()
    files = [task.file.file_path for task in scan.plan_files()]
    if files:
        connection.read_parquet(files).create_view(name)
    return len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description="Asks a lake with DuckDB.")
    parser.add_argument("lake", nargs="?", type=Path, default=Path("stafeta-lake"), help="its folder")
    lake: Path = parser.parse_args().lake

    connection = duckdb.connect()
    files = view(connection, lake, "messages")
    print(f"The table messages has {files} files.")
    if not files:
        return
    # Numbers are stored as their exact decimal text.
    connection.sql(
        """
        CREATE VIEW readings AS
        SELECT topic, "offset", timestamp, try_cast(decode(payload) AS DOUBLE) AS number
        FROM messages WHERE kind IN ('int', 'short_real', 'float')
        """
    )
    connection.sql(
        """
        SELECT topic, count(*) AS readings, round(avg(number), 2) AS mean, max("offset") AS last
        FROM readings GROUP BY topic ORDER BY topic
        """
    ).show()


if __name__ == "__main__":
    main()
