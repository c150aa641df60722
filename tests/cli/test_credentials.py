"""Commands against a broker with users, TLS and CURVE."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.addresses import Address
from tests.fork_server import run_stafeta
from tests.secured import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("secured"))
    with place.broker:
        yield place


def stafeta(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_stafeta(*words, environment=os.environ | environment)


def test_commands_of_the_zeromq_door(place: Place, tmp_path: Path) -> None:
    common = ("--broker", place.broker.address, "--state", str(tmp_path))
    subscribed = stafeta(*common, *place.curve, "sub", "hall")
    assert subscribed.returncode == 0, subscribed.stderr
    put = stafeta(*common, *place.curve, "put", "hall", "21")
    assert (put.returncode, put.stdout) == (0, "1\n"), put.stderr
    told = stafeta(
        *common,
        "topics",
        "--plain",
        STAFETA_CURVE_SERVER=str(place.folder / "broker.pub"),
        STAFETA_CURVE_KEY=str(place.folder / "ann.key"),
    )
    assert told.stdout.split() == ["hall"], told.stderr
    nobody = stafeta(
        *common, "topics", "--timeout", "3", STAFETA_CURVE_SERVER=str(place.folder / "broker.pub")
    )
    assert nobody.returncode
    assert "does not know this client's key" in nobody.stderr


def test_a_benchmark_is_somebody(place: Place) -> None:
    where = str(Address(*place.broker.door("flight")))
    words = ("bench", "--address", where, "--tls", "--messages", "2000", "--json")
    done = stafeta(*words, *place.flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert place.token not in done.stdout + done.stderr
    refused = stafeta(*words, "--ca", str(place.authority.roots))
    assert refused.returncode
    assert "Nobody comes in here without" in refused.stderr
