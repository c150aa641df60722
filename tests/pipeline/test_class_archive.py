"""The archive of Spark's classes: who makes it, who uses it, and when there is none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stafeta.pipeline import class_archive
from stafeta.pipeline.class_archive import ClassArchive

JAVA = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode, sharing)'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def archive(java: str = JAVA) -> ClassArchive:
    one = ClassArchive.of(java)
    assert one is not None
    return one


def made(text: str = "classes", java: str = JAVA) -> ClassArchive:
    """One that a JVM has made."""
    one = archive(java)
    option = one.options(make=True).split()[0]
    Path(option.removeprefix("-XX:ArchiveClassesAtExit=")).write_text(text)
    one.finish(whole=True)
    return one


def used(one: ClassArchive) -> Path | None:
    """The file that a JVM is to use, if there is one."""
    option, _, _ = one.options(make=False).partition(" ")
    return Path(option.removeprefix("-XX:SharedArchiveFile=")) if option else None


def test_one_jvm_makes_it_and_the_next_uses_it(cache: Path) -> None:
    assert used(archive()) is None, "who is not asked to makes none"
    path = used(made())
    assert path is not None
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("classes", 0o600)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.is_relative_to(cache)
    again = archive()
    assert not again.options(make=True).startswith("-XX:Archive")
    assert not again.making
    assert used(archive(JAVA.replace("17", "21"))) is None, "another Java has another"


def test_of_two_that_make_it_at_once_both_leave_it_whole(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, option = archive(), archive().options(make=True).split()[0]
    assert one.options(make=True).split()[0] == option
    monkeypatch.setattr(os, "getpid", lambda: 1)  # another process
    made("theirs")
    Path(option.removeprefix("-XX:ArchiveClassesAtExit=")).write_text("ours")
    one.finish(whole=True)
    assert [path.read_text() for path in (cache / "stafeta" / "spark").iterdir()] == ["ours"]


def test_what_is_not_whole_is_removed(cache: Path) -> None:
    one = archive()
    option = one.options(make=True).split()[0]
    Path(option.removeprefix("-XX:ArchiveClassesAtExit=")).write_text("half of the cl")
    one.finish(whole=False)
    empty = archive()
    Path(empty.options(make=True).split()[0].removeprefix("-XX:ArchiveClassesAtExit=")).touch()
    empty.finish(whole=True)
    archive().finish(whole=True)  # of which nothing was written
    assert not any((cache / "stafeta" / "spark").glob("*.jsa"))


def test_where_it_cannot_be_safely_there_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClassArchive.of("Eclipse OpenJ9 VM AdoptOpenJDK") is None
    path = used(made())
    assert path is not None
    path.chmod(0o620)  # somebody else can write it
    assert archive().options(make=True) == ""
    path.parent.chmod(0o770)
    assert ClassArchive.of(JAVA) is None
    path.parent.chmod(0o700)
    monkeypatch.setattr(class_archive, "_ROOM", 1 << 62)
    assert archive(JAVA.replace("17", "21")).options(make=True) == "", "the disk is full"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "with space"))
    assert ClassArchive.of(JAVA) is None
    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    assert ClassArchive.of(JAVA) is None, "nothing can be made there"


def test_one_that_nobody_uses_is_removed(cache: Path) -> None:
    old = used(made("old"))
    assert old is not None
    abandoned = old.with_suffix(".1.part")
    abandoned.touch()
    for path in (old, abandoned):
        os.utime(path, (1, 1))
    new = used(made("new", JAVA.replace("17", "21")))
    assert new is not None
    assert list(new.parent.iterdir()) == [new]


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_a_jvm_takes_its_classes_from_it_and_one_with_other_jars_does_without(
    cache: Path, tmp_path: Path
) -> None:
    (jar,) = Path(str(class_archive._jars())).glob("spark-launcher*.jar")
    mine = tmp_path / jar.name
    shutil.copy(jar, mine)

    def run(options: str) -> str:
        # Without other jars it fails, which is no matter.
        line = ["java", *options.split(), "-Xlog:class+load:stdout", "-cp", str(mine)]
        done = subprocess.run(
            [*line, "org.apache.spark.launcher.Main", "org.apache.spark.deploy.master.Master"],
            env=os.environ | {"SPARK_HOME": str(jar.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        return next(line for line in done.stdout.splitlines() if "launcher.Main " in line)

    one = archive()
    assert "shared objects file" not in run(one.options(make=True))
    one.finish(whole=True)
    assert "shared objects file (top)" in run(archive().options(make=True))
    os.utime(mine, (1, 1))
    assert "shared objects file" not in run(archive().options(make=True)), "another jar"
