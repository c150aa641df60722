"""`python -m stafeta.testing.host WORDS…` is `stafeta serve WORDS…`, and ends when its standard input does.

Whoever starts it holds the other end of that: a broker for tests is not left behind, even where the tests are killed.
Where the first word is `--temporary`, the folder behind it is removed then, too.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

TEMPORARY: Final = "--temporary"
_STARTING: Final = 0.005  # seconds between two looks at whether the broker has started


def main(words: Sequence[str]) -> int:
    folder = None
    if words[:1] == [TEMPORARY]:
        folder, words = words[1], words[2:]
    signal.signal(signal.SIGTERM, _not_yet)
    ended = threading.Event()
    threading.Thread(target=_end_with_input, args=(ended,), daemon=True).start()
    try:
        from stafeta.cli.main import main as stafeta

        return stafeta(["serve", *words])
    finally:
        if folder is not None and ended.is_set():
            shutil.rmtree(folder, ignore_errors=True)


def _not_yet(number: int, frame: FrameType | None) -> None:
    """Until the broker has its own way to leave."""


def _end_with_input(ended: threading.Event) -> None:
    while os.read(0, 64):
        pass
    ended.set()
    while signal.getsignal(signal.SIGTERM) is _not_yet:
        time.sleep(_STARTING)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
