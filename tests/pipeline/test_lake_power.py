"""Power is lost in the middle of whatever the lake does: what was committed is there, and the tables can be read.

The writes and syncs of some commits are recorded, cut off anywhere, and laid out as a loss of power may leave them.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError
from sqlalchemy.exc import DatabaseError

from stafeta.errors import StafetaError
from stafeta.pipeline.connector import file_source as filing
from stafeta.pipeline.lake import Lake, catalog, syncing
from tests.faults.power import WAYS, Event, Mark, disk_after, lay
from tests.faults.recorder import Recorder
from tests.pipeline.lakes import arrow, offsets, run, settings, whole

COMMITS = 4
ROWS = 3
STATES = 30
MEMORY = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is such a thing: what is synced here is only recorded, and need not be."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


def archived(lake: Lake, number: int) -> None:
    """Adds a file of a few messages, as a task of the archive writes it."""
    first = 1 + number * ROWS
    table = lake.table("messages").location()
    file = filing._File(table, 20_000)
    (batch,) = arrow(run("a", first, first + ROWS)).to_batches()
    file.add(batch)
    (told,) = {row["url"] for row in file.finish().to_pylist()}
    no_session: Any = None
    lake.archive_files(no_session, [told], {"a": [(first, first + ROWS)]}, "archive", number)


def recorded(place: Path) -> list[Event]:
    recorder = Recorder(place)
    with recorder.recording():
        lake = Lake(settings(place))
        for number in range(COMMITS):
            archived(lake, number)
            recorder.mark("committed", number + 1)
        assert isinstance(lake.catalog, SqlCatalog)
        lake.catalog.engine.dispose()
    return recorder.events


def check_states(place: Path, events: list[Event]) -> None:
    random = Random("power")
    for number in range(STATES):
        cut = random.randint(0, len(events))
        state = disk_after(events[:cut]).left(WAYS[number % len(WAYS)], random)
        committed = max((event.number for event in events[:cut] if isinstance(event, Mark)), default=0)
        for left in place.iterdir():
            shutil.rmtree(left)
        lay(state, place)
        lake = Lake(settings(place))
        found = len(offsets(lake).get("a", [])) if lake.has("messages") else 0
        assert found >= committed * ROWS
        assert found == 0 or offsets(lake) == {"a": whole(1, found)}
        assert lake.archived() == ({"a": [(1, found + 1)]} if found else {})
        archived(lake, found // ROWS)  # and it goes on
        assert offsets(lake) == {"a": whole(1, found + ROWS)}


@pytest.mark.slow
def test_what_was_committed_is_there_after_a_loss_of_power(place: Path) -> None:
    check_states(place, recorded(place))


@pytest.mark.parametrize("what", ["files", "folders", "catalog"])
def test_what_is_not_synced_is_missed(what: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this would prove nothing."""
    if what == "folders":
        monkeypatch.setattr(syncing, "sync_folder", lambda path: None)
    elif what == "catalog":
        monkeypatch.setattr(catalog, "_sync", lambda one, _: one.execute("PRAGMA synchronous = OFF"))
    else:
        monkeypatch.setattr(syncing.SyncedFile, "_sync", lambda file: None)
    events = recorded(place)
    with pytest.raises((AssertionError, OSError, ValueError, ValidationError, StafetaError, DatabaseError)):
        check_states(place, events)
