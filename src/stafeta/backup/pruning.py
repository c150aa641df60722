"""Removing old points: the point first, then the files that no other names."""

from stafeta.backup import points
from stafeta.backup.destination import Destination
from stafeta.backup.lease import Lease
from stafeta.backup.points import FILES, POINTS
from stafeta.errors import BackupError


def keep_last(destination: Destination, count: int, lease: Lease) -> tuple[int, int]:
    """Keeps so many points; returns how many points and files were removed. Whoever calls has the lease, so that no
    backup goes by what is removed."""
    old = points.names(destination)[:-count]
    for name in old:
        destination.remove(f"{POINTS}/{name}.json")
    known, wrong = points.all_points(destination)
    if wrong:
        raise BackupError(
            f"{wrong[0]} Which files it needs is not known, and no file is removed; remove that one by hand first."
        )
    named = {file.name for point in known for file in point.files}
    unnamed = [name for name in destination.names(FILES) if f"{FILES}/{name}" not in named]
    lease.check()
    for name in unnamed:
        destination.remove(f"{FILES}/{name}")
    return len(old), len(unnamed)
