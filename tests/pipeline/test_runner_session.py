"""Sessions that cannot be: told in a sentence, and soon. And what is done while one starts."""

import importlib.util
import os
import threading

import pytest

from stafeta.config import Config
from stafeta.errors import ConfigError, JavaMissing
from stafeta.pipeline.session import session
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("remote", "sentence"),
    [
        ("sc://127.0.0.1:9", "There is no Spark Connect server at sc://127.0.0.1:9: .*refused"),
        ("sc://127.0.0.1:99999", "There is no Spark Connect server"),
        ("http://127.0.0.1", "is no address of a Spark Connect server; write it as sc://"),
        ("sc://", "is no address of a Spark Connect server"),
    ],
)
def test_a_server_that_is_not_there_is_not_waited_for(remote: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        session(Config(), remote=remote)


def test_a_master_and_a_server_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="on a master or through a remote server"):
        session(Config(), master="local", remote="sc://127.0.0.1")


def test_without_java_or_pyspark_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JavaMissing, match="Spark needs Java"):
        session(Config())
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "stafeta.pipeline.session.find_spec", lambda name: None if name == "pyspark" else found(name)
    )
    with pytest.raises(ConfigError, match=r"needs PySpark, which is missing: pip install 'stafeta\[spark\]'"):
        session(Config())


def test_something_else_is_done_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr("stafeta.pipeline.session.check_java", lambda: "")
    seen: list[bool] = []
    monkeypatch.setattr("stafeta.pipeline.session._started", lambda *rest: seen.append(done.wait(PATIENCE)))
    session(Config(), meanwhile=done.set)
    assert seen == [True]
