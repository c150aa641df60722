"""Whether Spark finds a Java that it can run on. Each Java here is a script that says what a real one says."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stafeta.errors import JavaMissing
from stafeta.pipeline.java import check_java, remedy, version_of
from tests.waiting import wait_until

Java = Callable[[str], Path]


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """Makes a Java of a shell script, the only program on the PATH; returns where it is."""
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(path.parent))

    def make(script: str) -> Path:
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return make


def says(*lines: str) -> str:
    return f"printf '%s\\n' {shlex.join(lines)} >&2"


def version(text: str) -> str:
    return says(f"openjdk version {text}", "OpenJDK Runtime Environment (build 1.2.3)")


def trouble() -> str:
    """What is told between what is needed and what helps."""
    with pytest.raises(JavaMissing) as caught:
        check_java()
    found = re.fullmatch(
        r"Spark needs Java 17 or newer, and (.+?)\. (?:Let .+ unset it\. )?Install .+", str(caught.value)
    )
    assert found, caught.value
    return found[1]


# --- what Spark cannot run on


def test_no_java_is_a_sentence(java: Java) -> None:
    assert trouble() == "there is none on the PATH"


@pytest.mark.parametrize(("text", "number"), [('"1.8.0_292"', 8), ('"11.0.2" 2019-01-15', 11), ('"16"', 16)])
def test_a_java_that_is_too_old_is_a_sentence(java: Java, text: str, number: int) -> None:
    path = java(version(text))
    assert trouble() == f"{path} is Java {number}"


def test_a_java_that_is_not_executable_is_none(java: Java) -> None:
    java(version('"17.0.15"')).chmod(0o644)
    assert trouble() == "there is none on the PATH"


def test_a_java_that_is_no_program_is_a_sentence(java: Java) -> None:
    path = java("")
    path.write_bytes(b"\x7fnothing")
    assert trouble() == f"{path} cannot be run: Exec format error"


def test_a_java_that_says_no_version_is_quoted(java: Java) -> None:
    path = java(says("", "Unable to locate a Java Runtime.", "Read more.") + "; exit 1")
    assert trouble() == f"{path} does not tell its version, but: Unable to locate a Java Runtime"


def test_a_java_that_fails_is_quoted_whatever_else_it_says(java: Java) -> None:
    path = java(says("Error: no memory", 'openjdk version "17.0.15"') + "; exit 1")
    assert trouble() == f"{path} does not tell its version, but: Error: no memory"


def test_a_java_that_says_nothing_is_a_sentence(java: Java) -> None:
    path = java("")
    assert trouble() == f"{path} does not tell its version, but: nothing"


def test_a_java_that_hangs_is_ended_with_all_that_it_has_started(java: Java, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    path = java(f"/bin/sleep 1000 & echo $! > {note}; wait")
    with pytest.raises(JavaMissing, match=rf"{path} has not printed its version for 2 s\. "):
        check_java(patience=2.0)
    wait_until(lambda: ended(int(note.read_text())))


def test_the_java_of_java_home_goes_before_the_one_on_the_path(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_bytes(java(version('"1.8.0_292"')).read_bytes())
    java(version('"17.0.15"'))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert trouble() == f"{old} cannot be run: Permission denied"
    old.chmod(0o755)
    assert trouble() == f"{old} is Java 8"
    with pytest.raises(JavaMissing, match=r"is Java 8\. Let JAVA_HOME name another, or unset it\. Install "):
        check_java()


def test_a_java_home_without_a_java_is_a_sentence(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(version('"17.0.15"'))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert trouble() == f"JAVA_HOME has none: {tmp_path}/gone/bin/java does not exist"


# --- what it can run on


@pytest.mark.parametrize("text", ['"17.0.15" 2025-04-15', '"17"', '"21"', '"26-ea" 2026-03-17', '"100.0.1"'])
def test_a_java_that_is_new_enough_is_fine(java: Java, text: str) -> None:
    java(version(text))
    check_java()


def test_what_else_a_java_prints_is_overlooked(java: Java) -> None:
    java(says('Picked up JAVA_TOOL_OPTIONS: -Dold.version "1.8"', 'openjdk version "21.0.2" 2024-01-16 LTS'))
    check_java()


def test_an_empty_java_home_is_none(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    java(version('"17.0.15"'))
    monkeypatch.setenv("JAVA_HOME", "")
    check_java()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('java version "1.8.0_292"', 8),
        ('java version "9"', 9),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-internal" 2023-09-19', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("openjdk 17.0.15 2025-04-15", None),
        ("", None),
    ],
)
def test_the_version_is_the_number_before_the_point(text: str, number: int | None) -> None:
    assert version_of(f"NOTE: a line of the vendor\n{text}\nOpenJDK 64-Bit Server VM\n") == number


# --- what helps


@pytest.mark.parametrize(
    ("system", "release", "root", "command"),
    [
        ("linux", {"ID": "debian", "VERSION_ID": "12"}, False, "sudo apt install openjdk-17-jre-headless"),
        ("linux", {"ID": "debian", "VERSION_ID": "13"}, True, "apt install openjdk-21-jre-headless"),
        ("linux", {"ID": "debian"}, False, "sudo apt install openjdk-21-jre-headless"),
        (
            "linux",
            {"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_ID": "24.04"},
            False,
            "sudo apt install openjdk-21-jre-headless",
        ),
        (
            "linux",
            {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"},
            False,
            "sudo apt install openjdk-21-jre-headless",
        ),
        ("linux", {"ID": "fedora"}, False, "sudo dnf install java-21-openjdk-headless"),
        (
            "linux",
            {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
            True,
            "dnf install java-21-openjdk-headless",
        ),
        ("darwin", {}, False, "brew install --cask temurin@21"),
    ],
)
def test_the_command_is_that_of_the_system(
    system: str, release: dict[str, str], root: bool, command: str
) -> None:
    assert remedy(system, release, root) == f"Install it with: {command}"


def test_on_another_system_it_says_what_to_do_without_a_command() -> None:
    assert remedy("linux", {"ID": "nixos"}, False).startswith("Install a Java runtime, and set JAVA_HOME")


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
