"""An archive of Spark's classes, with which its JVM starts in half of the time (class data sharing).

1. Half of what a JVM does until Spark answers is to find, read and verify some 17,000 classes. One that has made an
   archive of them when it ended saves that to those that come after it.
2. An archive belongs to the Java and the Spark that it was made with. A JVM that has others than it was made with, also
   jars that were changed, ignores it.
3. A JVM maps it into its memory as it is. So nobody else may be able to write it, and it is on the disk before it has
   its name. Two that are made at the same time are as good as one: the later takes the earlier's place.
4. Where it cannot be written, or is not wanted (a setting of the user's for the JVM), there is none.
"""

import hashlib
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stafeta import state
from stafeta.pipeline import disk

_ROOM: Final = 1 << 30  # bytes that have to be free: an archive takes a fifth of that
_UNUSED: Final = 30 * 86_400.0  # seconds after which one that nobody uses is removed
_ABANDONED: Final = 3600.0  # and one that is not finished
_AWKWARD: Final = re.compile(r"[\s\"'\\]")  # in a path, for the options of a JVM
_QUIET: Final = "-Xlog:disable"  # a JVM that ignores the archive says so on standard output


class ClassArchive:
    """The archive of a Java, given by what it says of its version, and the Spark that is installed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_suffix(f".{os.getpid()}.part")
        self.making = False
        """Whether the JVM that was given the options makes it."""

    @classmethod
    def of(cls, java: str) -> "ClassArchive | None":
        """None where there can be none."""
        jars = _jars()
        folder = state.cache() / "spark"
        if jars is None or "Server VM" not in java or _AWKWARD.search(str(folder)):
            return None
        try:
            about = f"{java}\n{jars}\n{jars.stat().st_mtime_ns}"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_ours(folder):
                return None
        except OSError:
            return None
        return cls(folder / f"classes-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa")

    def options(self, *, make: bool) -> str:
        """What a JVM has to be started with, to use it, or to make it where there is none. "" for neither."""
        with suppress(OSError):
            if self._path.exists():
                if not _is_ours(self._path):
                    return ""
                os.utime(self._path)  # it is used
                return f"-XX:SharedArchiveFile={self._path} {_QUIET}"
            self.making = make and shutil.disk_usage(self._path.parent).free > _ROOM
        return f"-XX:ArchiveClassesAtExit={self._draft} {_QUIET}" if self.making else ""

    def finish(self, *, whole: bool) -> None:
        """The JVM that makes it has ended: by itself, so that it is whole, or not."""
        self.making = False
        with suppress(OSError):
            if whole and self._draft.stat().st_size:
                self._draft.chmod(0o600)
                disk.sync(self._draft)
                self._draft.replace(self._path)
            else:
                self._draft.unlink()
        _remove_unused(self._path.parent)


def _jars() -> Path | None:
    """The folder of Spark's jars."""
    found = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (found and found.origin and Path(found.origin).parent)
    return Path(home, "jars") if home else None


def _is_ours(path: Path) -> bool:
    """Whether nobody else can write it."""
    known = path.stat()
    return known.st_uid == os.geteuid() and not known.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_unused(folder: Path) -> None:
    now = time.time()
    for pattern, age in (("*.jsa", _UNUSED), ("*.part", _ABANDONED)):
        for path in folder.glob(pattern):
            with suppress(OSError):
                if now - path.stat().st_mtime > age:
                    path.unlink()
