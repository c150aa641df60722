"""`python -m stafeta.bench.host DOOR`: a broker with one door, on a temporary folder and any free port.

It ends when its standard input does, and removes the folder: nothing is left even when the one who has started it is
killed.
"""

import os
import signal
import sys
import threading
import time
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Final

from stafeta.bench.plan import DOORS
from stafeta.errors import StafetaError

if TYPE_CHECKING:
    from stafeta.config import Config

_STARTING: Final = 0.005  # seconds between two looks at whether the broker has started


def main(door: str) -> int:
    signal.signal(signal.SIGTERM, _not_yet)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        with TemporaryDirectory(prefix="stafeta-bench-", ignore_cleanup_errors=True) as folder:
            from stafeta.server import run

            config = _config(door, folder)
            return run(config, lambda: config)
    except StafetaError as error:
        sys.stderr.write(f"stafeta: {error}\n")
        return 1


def _config(door: str, folder: str) -> "Config":
    from stafeta.config.sources import Setting, build

    settings: dict[tuple[str, ...], str] = {
        ("data",): folder,
        ("durability",): "fsync",
        ("log_level",): "warning",
    }
    settings |= {(name, "listen"): "0" if name == door else "off" for name in DOORS}
    return build([Setting(key, value, "bench") for key, value in settings.items()])


def _not_yet(number: int, frame: FrameType | None) -> None:
    """Until the broker has its own way to leave."""


def _end_with_input() -> None:
    while os.read(0, 64):
        pass
    while signal.getsignal(signal.SIGTERM) is _not_yet:
        time.sleep(_STARTING)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
