"""`stafeta watch`, `tail`, `topics`, `stats`, `clients` and `subs`: looking at what is meant for others."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stafeta import Client
from stafeta.cli import exits
from stafeta.cli.overview import duration
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A topic that no other test uses."""
    return tmp_path.name


def test_watch_prints_what_comes_and_keeps_nothing(
    environment: dict[str, str], stafeta: Stafeta, cli_broker: BrokerProcess, topic: str
) -> None:
    command = [sys.executable, "-m", "stafeta", "watch", f"{topic}/+", f"{topic}/a"]
    with (
        Client(cli_broker.address) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as watching,
    ):
        wait_until(lambda: client.subscriptions(f"{topic}/+"))
        # The topics are there because somebody watches.
        assert stafeta("pub", f"{topic}/a", "one").stdout == "1\n"
        assert stafeta("put", f"{topic}/b", "two").stdout == "1\n"
        assert watching.stdout is not None
        assert watching.stdout.readline() == f"{topic}/a one\n"
        assert watching.stdout.readline() == f"{topic}/b two\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE) == exits.INTERRUPTED
        assert client.subscriptions(f"{topic}/+") == []
    assert stafeta("put", f"{topic}/a", "nobody").returncode == exits.REFUSED


def test_watch_leaves_when_it_has_seen_enough_or_nothing(
    environment: dict[str, str], stafeta: Stafeta, cli_broker: BrokerProcess, topic: str
) -> None:
    quiet = stafeta("watch", topic, "--wait", "0.2")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (exits.OK, "", "")
    assert stafeta("watch", topic, "--wait", "0", "--count", "1").returncode == exits.NOTHING
    command = [sys.executable, "-m", "stafeta", "watch", topic, "--count", "2", "--wait", str(PATIENCE)]
    with (
        Client(cli_broker.address) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as watching,
    ):
        wait_until(lambda: client.subscriptions(topic))
        client.put_many(topic, ["1", "2", "3"])
        assert watching.communicate(timeout=PATIENCE)[0] == "1\n2\n"
        assert watching.returncode == exits.OK


def test_tail_moves_no_cursor(environment: dict[str, str], stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", f"{topic}/#")
    stafeta("put", f"{topic}/a", "--lines", stdin="".join(f"{number}\n" for number in range(20)).encode())
    stafeta("put", f"{topic}/b", "x")
    assert stafeta("tail", f"{topic}/a").stdout.split() == [str(number) for number in range(10, 20)]
    assert stafeta("tail", f"{topic}/#", "-n", "2").stdout.splitlines() == [
        f"{topic}/a 18",
        f"{topic}/a 19",
        f"{topic}/b x",
    ]
    assert stafeta("tail", f"{topic}/b", f"{topic}/a", "-n", "1", "--plain").stdout == "x\n19\n"
    assert json.loads(stafeta("tail", f"{topic}/b", "--json").stdout)["id"] == 1
    assert stafeta("get", f"{topic}/#", "--plain").stdout == "0\n"
    assert stafeta("tail", "nothing/there").returncode == exits.REFUSED
    assert stafeta("tail", "nothing/there/#").returncode == exits.NOTHING
    assert stafeta("tail", topic, "-n", "0").returncode == exits.USAGE
    command = [sys.executable, "-m", "stafeta", "tail", f"{topic}/a", "-n", "1", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "19\n"
        stafeta("put", f"{topic}/a", "20")
        assert following.stdout.readline() == "20\n"
        following.terminate()
        assert following.wait(PATIENCE) == 128 + signal.SIGTERM
    assert '"watch/' not in stafeta("subs", f"{topic}/a", "--json").stdout


def test_who_waits_for_what(stafeta: Stafeta, cli_broker: BrokerProcess, topic: str) -> None:
    stafeta("sub", f"{topic}/#")
    stafeta("put", f"{topic}/a", "x")
    stafeta("put", f"{topic}/b", "y")
    (line,) = map(json.loads, stafeta("subs", f"{topic}/a", "--json").stdout.splitlines())
    assert line["seconds"] > 0
    assert line["client"].startswith("default@")  # so that people know it
    assert line | {"client": "", "seconds": 0} == {
        "client": "",
        "filter": f"{topic}/#",
        "durable": True,
        "connected": False,
        "topics": 2,
        "behind": 2,
        "seconds": 0,
    }
    head, row = stafeta("subs", f"{topic}/a").stdout.splitlines()
    assert head.split() == ["CLIENT", "FILTER", "TOPICS", "CONNECTED", "BEHIND", "OLDEST"]
    assert row.split()[:5] == [line["client"], f"{topic}/#", "2", "no", "2"]
    assert [line["client"], "1", "no", "2"] in map(str.split, stafeta("clients").stdout.splitlines())
    clients = map(json.loads, stafeta("clients", "--json").stdout.splitlines())
    assert {"client": line["client"], "subscriptions": 1, "connected": False, "behind": 2} in clients
    stats = json.loads(stafeta("stats", "--json").stdout)
    assert stats["messages"] >= 2
    assert "messages since the start" in stafeta("stats").stdout
    assert stafeta("topics", f"{topic}/#", "--plain").stdout.split() == [f"{topic}/a", f"{topic}/b"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (90_000, "1 d 1 h")],
)
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said
