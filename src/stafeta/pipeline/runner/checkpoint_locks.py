"""Where jobs note how far they are, and that only one runner does so.

A lock is a file beside the job's checkpoints that the runner holds open: it is free again however the runner ended.
Checkpoints that are not in a folder of this machine have none.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from stafeta.config import Config
from stafeta.errors import ConfigError

_FOLDER: Final = "checkpoints"
_MOST: Final = 8192  # bytes of a lock's file


def checkpoints(config: Config) -> str:
    """The folder, in full, or the URL of all checkpoints."""
    place = config.pipeline.checkpoints or f"{config.lake.warehouse.rstrip('/')}/{_FOLDER}"
    local = local_folder(place)
    return place.rstrip("/") if local is None else str(local)


def local_folder(place: str) -> Path | None:
    """The folder that a path or a URL means, if it is one of this machine's."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    # A scheme of one letter is a drive.
    return None if len(parts.scheme) > 1 and "://" in place else Path(place).expanduser().absolute()


class Lock:
    """That this runner has a job's checkpoints to itself. Those of a job from a file are for that file."""

    def __init__(self, folder: Path, name: str, source: str = "") -> None:
        self._path = folder / f"{name}.lock"
        self._name = name
        self._source = source
        self._descriptor: int | None = None

    def take(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._hold(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise ConfigError(
                f"The checkpoints of {self._name!r} cannot be in {self._path.parent}: {error.strerror}."
            ) from None
        self._descriptor = descriptor
        return self

    def free(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _hold(self, descriptor: int) -> None:
        holder, _, source = os.read(descriptor, _MOST).decode(errors="replace").strip().partition("\n")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"The job {self._name!r} runs already, with the same checkpoints"
                f"{f' (process {holder})' if holder.isdigit() else ''}. Stop that one first, with: "
                f"stafeta pipeline stop {self._name}."
            ) from None
        if source != self._source and holder and (not source or Path(source).exists()):
            raise ConfigError(
                f"The name {self._name!r} is that of {f'the job in {source}' if source else 'another job'}, whose "
                f"checkpoints are in {self._path.parent}. Give this one another name."
            )
        holder = f"{os.getpid()}\n{self._source}\n"
        os.ftruncate(descriptor, os.pwrite(descriptor, holder.encode(), 0))
