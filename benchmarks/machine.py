"""What a benchmark runs on: facts of the machine, and what its disk can do by itself."""

import os
import platform
import sqlite3
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import psutil
import zmq

import stafeta
from benchmarks.percentiles import percentile
from benchmarks.results import Value
from stafeta.bench.results import filesystem

_SYNCS = 200
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


def facts(folder: Path) -> dict[str, Value]:
    """The machine as it is now; the disk is the one that the folder is on."""
    times = sync_times(folder, b"x" * 100, count=_SYNCS)
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "stafeta": stafeta.__version__,
        "libzmq": zmq.zmq_version(),
        "sqlite": sqlite3.sqlite_version,
        "filesystem": filesystem(folder),
        "fdatasync_p50_ms": percentile(times, 50) * 1000,
        "fdatasync_p99_ms": percentile(times, 99) * 1000,
    }


def sync_times(folder: Path, portion: bytes, *, count: int) -> list[float]:
    """How long it takes to append a portion to a file and have it on the disk, in order of length."""
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        times = []
        for _ in range(count):
            start = perf_counter()
            file.write(portion)
            _sync(file.fileno())
            times.append(perf_counter() - start)
    path.unlink()
    return sorted(times)


def disk_rate(folder: Path, messages: int, size: int, seconds: float) -> float:
    """Messages a second that the disk alone takes, so many of that size with each sync: the limit of any broker."""
    portion = b"x" * (messages * size)
    path = folder / "sync"
    written = 0
    with path.open("wb", buffering=0) as file:
        start = now = perf_counter()
        while now - start < seconds:
            file.write(portion)
            _sync(file.fileno())
            written += messages
            now = perf_counter()
    path.unlink()
    return written / (now - start)


def forget_cached(folder: Path) -> None:
    """Makes the system let go of what it has of the folder's files in memory, so that reading them reads the disk."""
    if hasattr(os, "posix_fadvise"):
        for path in filter(Path.is_file, folder.iterdir()):
            with path.open("rb+") as file:
                _sync(file.fileno())  # only what is on the disk can be let go
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak_memory(pid: int) -> float:
    """The most memory that a process has had resident so far, in MB; what it has now, where that is not known."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return psutil.Process(pid).memory_info().rss / 1e6


class Memory(NamedTuple):
    """What a process has in memory, in MB."""

    resident: float
    share: float  # with what it has in common with other processes counted in part


def memory(pid: int) -> Memory:
    """Where the system does not tell shares, all of what is resident is the process's own."""
    info = psutil.Process(pid).memory_full_info()
    return Memory(info.rss / 1e6, getattr(info, "pss", info.rss) / 1e6)


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
