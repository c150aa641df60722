"""Looking at a data folder, and repairing it: what the store can tell, and what only the broker can read of it."""

from pathlib import Path

from stafeta.broker.producer import decode
from stafeta.store.sqlite import repair as store
from stafeta.store.sqlite.check import Advance, Report


def examine(
    folder: Path, *, repair: bool = False, advance: Advance = lambda done, all_: None
) -> tuple[Report, Report | None]:
    """What was found in a folder; and, where it was repaired, what was lost. Raises StoreError where a broker has it
    open, or it is none."""
    return store.examine(folder, _reached, repair=repair, advance=advance)


def _reached(producer: str, state: bytes) -> int:
    """The last offset that a producer has written to."""
    return decode(producer, state).reached
