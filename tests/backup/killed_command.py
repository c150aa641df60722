"""`stafeta` with small packs and pieces, killed by itself as kill -9 does: BEFORE AFTER WORDS…

It ends with a SIGKILL before it executes line BEFORE, counted from 1, of what makes backups and restores them; or line
AFTER, counted from where a point was written. With 0 it is not killed there. At its end it says on standard error how
many lines there were of either.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

from stafeta.backup import destination as destinations
from stafeta.backup import points, taking
from stafeta.backup.destination import Destination
from stafeta.cli.main import main
from stafeta.store.sqlite import copying, rebuilding

PACK = 700
CHUNK = 300
_TRACED = (os.path.dirname(taking.__file__), copying.__file__, rebuilding.__file__)


class Lines:
    def __init__(self, *last: int) -> None:
        self.counts = [0, 0]
        self._last = last
        self._written = False

    def call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.line if frame.f_code.co_filename.startswith(_TRACED) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.counts[self._written] += 1
            if self.counts[self._written] == self._last[self._written]:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line

    def save(self, destination: Destination, folder: str, one: points.Point | points.Note) -> None:
        _save(destination, folder, one)
        self._written |= folder == points.POINTS


if __name__ == "__main__":
    taking.PACK = PACK
    taking.__dict__["CHUNK"] = destinations.__dict__["CHUNK"] = CHUNK
    lines = Lines(int(sys.argv[1]), int(sys.argv[2]))
    _save, points.save = points.save, lines.save
    sys.settrace(lines.call)
    code = main(sys.argv[3:])
    sys.settrace(None)
    print(*lines.counts, file=sys.stderr)
    sys.exit(code)
