"""The steps of a rollup's micro-batch, and the command that dies at one of them.

python -m tests.pipeline.killed_rollup STEP WORD… runs `stafeta WORD…`, and is killed once the step is done.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from stafeta.cli.main import main
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.connector import sink
from stafeta.pipeline.jobs.batches.stateful import StatefulBatches
from stafeta.pipeline.jobs.rollup import Rolling
from stafeta.pipeline.lake import Lake, files, lake

STEPS: Final[dict[str, tuple[Any, str]]] = {
    "computed": (Rolling, "compute"),
    "written": (checkpoint_files, "write_content"),
    "noted": (StatefulBatches, "_note"),
    "a file of the lake": (files, "write_table"),
    "committed to the lake": (lake, "_forget"),
    "merged": (lake, "after_commit"),
    "in the lake": (Lake, "append"),
    "staged": (sink, "_stage"),
    "in topics": (sink, "_commit_named"),
    "cleared": (checkpoint_files, "remove"),
}
"""In their order: what does each."""


def then(step: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    """The same step, after which something ends."""

    def take(*arguments: Any, **options: Any) -> Any:
        done = step(*arguments, **options)
        end()
        return done

    return take


if __name__ == "__main__":
    owner, name = STEPS[sys.argv[1]]
    setattr(owner, name, then(getattr(owner, name), lambda: os.kill(os.getpid(), signal.SIGKILL)))
    sys.exit(main(sys.argv[2:]))
