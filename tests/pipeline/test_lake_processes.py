"""Two archives, a rollup and a compaction change one lake at once, each in a process, and are killed now and then."""

import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stafeta.pipeline.jobs.auditing import stored
from stafeta.pipeline.lake import Lake
from tests.pipeline import lake_committers
from tests.pipeline.lake_committers import ROWS, TOPIC
from tests.pipeline.lakes import offsets, settings, whole
from tests.pipeline.sessions import ROOT
from tests.waiting import PATIENCE, wait_until

PARTS = {"archive": 1 + 60 * ROWS, "rollup": 60}
KILLS = 6


class Committer:
    """A process, which is started again where it was killed."""

    def __init__(self, folder: Path, part: str) -> None:
        self._line = [
            sys.executable,
            "-m",
            lake_committers.__name__,
            str(folder),
            part,
            str(PARTS.get(part, 0)),
        ]
        self._process: subprocess.Popen[str] | None = None
        self.part = part

    def start(self) -> None:
        self._process = subprocess.Popen(self._line, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE)

    def is_done(self) -> bool:
        """Whether it has come to its end. It must not fail."""
        assert self._process is not None
        code = self._process.poll()
        assert code in (None, 0), (self.part, self._process.communicate(timeout=PATIENCE)[1])
        return code == 0


@pytest.mark.slow
@pytest.mark.soak
def test_nothing_is_lost_or_doubled_by_those_who_change_a_lake_at_once(tmp_path: Path) -> None:
    lake = Lake(settings(tmp_path))
    for name in ("messages", "rollups"):
        lake.table(name)
    chance = random.Random(16)
    everybody = [Committer(tmp_path, part) for part in ("archive", "archive", "rollup", "compact")]
    with ExitStack() as resources:
        for one in everybody:
            resources.callback(one.kill)
            one.start()
        for number in range(1, KILLS + 1):
            some = number * PARTS["archive"] // (KILLS + 3)
            wait_until(lambda some=some: lake.archived().get(TOPIC, [(1, 1)])[0][1] > some, PATIENCE)  # type: ignore[misc]
            one = chance.choice(everybody)
            one.kill()
            one.start()
        wait_until(lambda: all(one.is_done() for one in everybody if one.part != "compact"), PATIENCE)
    assert offsets(lake) == {TOPIC: whole(1, PARTS["archive"] - 1)}
    assert lake.archived() == {TOPIC: [(1, PARTS["archive"])]}
    counts: Any = lake.table("rollups").scan(selected_fields=("count",)).to_arrow().column("count")
    assert sorted(counts.to_pylist()) == list(range(PARTS["rollup"]))
    assert not [*stored.examined(lake.table("messages")).wrong, *stored.examined(lake.table("rollups")).wrong]
