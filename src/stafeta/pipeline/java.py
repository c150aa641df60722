"""Java, without which Spark does not start.

1. Where JAVA_HOME is set Spark runs the Java in there, or none; otherwise the first on PATH.
2. Up to Java 8 a version begins with "1.", as in "1.8.0_292"; later ones are "17.0.15", "21", "26-ea".
3. `java -version` prints it on standard error, and before it whatever else Java has to say.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stafeta.errors import JavaMissing

OLDEST: Final = 17  # that Spark 4 runs on
_PATIENCE: Final = 15.0
_VERSION: Final = re.compile(r'^\S+ version "(?:1\.)?(\d+)', re.MULTILINE)


def check_java(patience: float = _PATIENCE) -> str:
    """What the Java says of its version that Spark runs on. Raises `JavaMissing` where it would find none, with the
    command that installs one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    said, trouble = ("", "there is none on the PATH") if java is None else _asked(java, patience)
    if trouble:
        first = "Let JAVA_HOME name another, or unset it. " if home else ""
        raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and {trouble}. {first}{_remedy()}")
    return said


def version_of(text: str) -> int | None:
    """The version that `java -version` tells of: 8, 17, …; None where it tells of none."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def remedy(system: str, release: Mapping[str, str], root: bool) -> str:
    """How Java gets onto such a system: `system` as in `sys.platform`, `release` as in /etc/os-release."""
    if system == "darwin":
        # Unlike the formula openjdk, it is found without setting anything.
        return "Install it with: brew install --cask temurin@21"
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    sudo = "" if root else "sudo "
    if family & {"debian", "ubuntu"}:
        # Debian has 17 up to its version 12 and 21 from 13 on; Ubuntu has both.
        old = release.get("ID") != "ubuntu" and release.get("VERSION_ID", "") in ("11", "12")
        return f"Install it with: {sudo}apt install openjdk-{17 if old else 21}-jre-headless"
    if family & {"fedora", "rhel", "centos"}:
        return f"Install it with: {sudo}dnf install java-21-openjdk-headless"
    return "Install a Java runtime, and set JAVA_HOME to its folder or put its folder bin on the PATH."


def _asked(java: str, patience: float) -> tuple[str, str]:
    """What this Java says of its version, and what is wrong with it, if something is."""
    if not Path(java).exists():
        return "", f"JAVA_HOME has none: {java} does not exist"
    try:
        code, text = _run([java, "-version"], patience)
    except OSError as error:
        return "", f"{java} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"{java} has not printed its version for {patience:g} s"
    version = version_of(text)
    if code or version is None:
        said = next(filter(None, map(str.strip, text.splitlines())), "nothing")
        return "", f"{java} does not tell its version, but: {said.rstrip('.')}"
    return text, f"{java} is Java {version}" if version < OLDEST else ""


def _run(command: list[str], patience: float) -> tuple[int, str]:
    """The exit code of a command and what it prints. If it takes too long it ends, with all that it has started."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=patience)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, text


def _remedy() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return remedy(sys.platform, release, os.geteuid() == 0)
