"""`stafeta put`, `get`, `sub`, `unsub` and `topics`, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stafeta import Client
from stafeta.cli import exits
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A topic that no other test uses."""
    return tmp_path.name


def test_what_is_put_is_got_once(stafeta: Stafeta, topic: str) -> None:
    assert stafeta("sub", topic).stdout == f"Subscribed to {topic}, after message 0.\n"
    assert stafeta("put", topic, "two words").stdout == "1\n"
    assert stafeta("put", topic, "more").stdout == "2\n"
    assert stafeta("get", topic).stdout == "two words\n"
    assert stafeta("get", topic).stdout == "more\n"
    nothing = stafeta("get", topic)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (exits.NOTHING, "", "")
    assert stafeta("unsub", topic).stdout == f"Unsubscribed from {topic}.\n"


def test_each_client_has_its_own_subscriptions(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    stafeta("sub", topic, "--client", "second")
    stafeta("put", topic, "x")
    assert stafeta("get", topic).stdout == "x\n"
    assert stafeta("get", topic, "--client", "second").stdout == "x\n"
    assert stafeta("get", topic, "--client", "third").returncode == exits.REFUSED
    assert stafeta("get", topic, "--client", "../default").returncode == exits.USAGE


@pytest.mark.parametrize(
    ("stdin", "options", "data"),
    [
        (b"with a newline\n", [], b"with a newline"),
        (b"two\nlines\n\n", ["-"], b"two\nlines\n"),
        (b"dos\r\n", [], b"dos"),
        (b"", [], b""),
        (b"as it is\n", ["--kind", "bytes"], b"as it is\n"),
        (b"\xff\xfe", [], b"\xff\xfe"),
    ],
)
def test_standard_input_is_a_message(
    stafeta: Stafeta, topic: str, cli_broker: BrokerProcess, stdin: bytes, options: list[str], data: bytes
) -> None:
    with Client(cli_broker.address) as client:
        client.subscribe(topic)
        assert stafeta("put", topic, *options, stdin=stdin).returncode == exits.OK
        message = client.get(topic)
    assert message is not None
    assert message.data == data


def test_each_line_is_a_message(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    lines = [f"line {number}" for number in range(3000)] + ["", "last"]
    done = stafeta("put", topic, "--lines", "--json", stdin="\n".join(lines).encode())
    assert json.loads(done.stdout) == {"topic": topic, "count": 3002, "first": 1, "last": 3002}
    assert stafeta("get", topic, "--all").stdout.splitlines() == lines


def test_lines_are_put_as_they_come(environment: dict[str, str], stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    command = [sys.executable, "-m", "stafeta", "put", topic, "--lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"first\nhalf of the sec")
        putting.stdin.flush()
        assert stafeta("get", topic, "--wait", "30").stdout == "first\n"
        putting.communicate(b"ond")
    assert stafeta("get", topic).stdout == "half of the second\n"


def test_input_that_does_not_block_is_waited_for(
    stafeta: Stafeta, environment: dict[str, str], topic: str
) -> None:
    """Whoever starts the program may have made it so, as Node.js does."""
    stafeta("sub", topic)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    command = [sys.executable, "-m", "stafeta", "put", topic, "--lines"]
    with subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE, env=environment) as putting:
        os.close(reading)
        for line in ("first", "second"):
            os.write(writing, f"{line}\n".encode())
            assert stafeta("get", topic, "--wait", "30").stdout == f"{line}\n"
        os.close(writing)
        assert putting.communicate(timeout=PATIENCE)[0] == b"2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such file")
@pytest.mark.parametrize("form", [(), ("--lines",)])
def test_input_that_cannot_be_read_is_told(stafeta: Stafeta, topic: str, form: tuple[str, ...]) -> None:
    failed = stafeta("put", topic, "--file", "/proc/self/mem", *form)
    assert (failed.returncode, failed.stderr) == (
        exits.USAGE,
        "stafeta: The input cannot be read: Input/output error.\n",
    )


def test_results_can_be_read_by_programs(stafeta: Stafeta, topic: str) -> None:
    assert json.loads(stafeta("sub", topic, "--json").stdout) == {"topic": topic, "last_id": 0}
    assert json.loads(stafeta("put", topic, "17", "--kind", "int", "--json").stdout) == {
        "topic": topic,
        "id": 1,
    }
    stafeta("put", topic, stdin=b"\xff")
    first, second = map(json.loads, stafeta("get", topic, "--count", "5", "--json").stdout.splitlines())
    assert first["time"].endswith("Z")
    assert first == {"topic": topic, "id": 1, "kind": "int", "time": first["time"], "text": "17"}
    assert (second["text"], second["encoding"], second["kind"]) == ("/w==", "base64", "bytes")
    listed = [json.loads(line) for line in stafeta("topics", topic, "--json").stdout.splitlines()]
    assert listed == [{"name": topic, "first": listed[0]["first"], "next": 3, "subscriptions": 1}]
    assert json.loads(stafeta("unsub", topic, "--json").stdout) == {"topic": topic}


def test_topics_are_a_table(stafeta: Stafeta, topic: str) -> None:
    for name in ("a", "much-longer"):
        stafeta("sub", f"{topic}/{name}")
    stafeta("put", f"{topic}/a", "x")
    width = len(f"{topic}/much-longer")
    assert stafeta("topics", f"{topic}/+").stdout.splitlines() == [
        f"{'TOPIC':<{width}}  FIRST  NEXT  SUBSCRIPTIONS",
        f"{topic + '/a':<{width}}      1     2              1",
        f"{topic}/much-longer      1     1              1",
    ]


def test_get_can_take_several_or_only_look(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    stafeta("put", topic, "--lines", stdin=b"1\n2\n3\n4\n5\n")
    assert stafeta("get", topic, "--no-ack").stdout == "1\n"
    assert stafeta("get", topic, "--no-ack", "--all").stdout == "1\n2\n3\n4\n5\n"
    assert stafeta("get", topic, "--count", "2").stdout == "1\n2\n"
    assert stafeta("get", topic, "--all").stdout == "3\n4\n5\n"
    for wrong in (["--no-ack", "--follow"], ["--count", "0"], ["--all", "--follow"]):
        assert stafeta("get", topic, *wrong).returncode == exits.USAGE
    assert stafeta("put", topic, "x", "--lines").returncode == exits.USAGE


def test_get_waits(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    begin = time.monotonic()
    assert stafeta("get", topic, "--wait", "0.5").returncode == exits.NOTHING
    assert time.monotonic() - begin >= 0.49


def test_follow_ends_when_nothing_has_come_for_a_while(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic)
    stafeta("put", topic, "--lines", stdin=b"1\n2\n")
    begin = time.monotonic()
    done = stafeta("get", topic, "--follow", "--wait", "1.2")
    assert (done.returncode, done.stdout) == (exits.OK, "1\n2\n")
    assert time.monotonic() - begin >= 1.19
    for wrong in ("-1", "nan", "soon"):
        done = stafeta("get", topic, "--wait", wrong)
        assert done.returncode == exits.USAGE
        assert f"must be a number of seconds, 0 or more, not '{wrong}'" in done.stderr


def test_several_topics_at_once(environment: dict[str, str], stafeta: Stafeta, topic: str) -> None:
    one, two, filter_ = f"{topic}/1", f"{topic}/2", f"{topic}/more/#"
    done = stafeta("sub", one, two, filter_)
    assert done.stdout.startswith(
        f"Subscribed to {one}, after message 0.\nSubscribed to {two}, after message 0.\n"
    )
    for name in (f"{topic}/more/x", two, one):
        stafeta("put", name, "a word")
    found = stafeta("get", one, two, filter_, "--count", "2")
    assert found.stdout == f"{one} a word\n{two} a word\n"
    # Lines of a filter say their topics, those of one topic do not.
    assert stafeta("get", filter_, "--no-ack").stdout == f"{topic}/more/x a word\n"
    assert stafeta("get", filter_, "--no-ack", "--plain").stdout == "a word\n"
    assert stafeta("get", one, two, filter_, "--all").stdout == f"{topic}/more/x a word\n"
    assert stafeta("get", one, two).returncode == exits.NOTHING
    command = [sys.executable, "-m", "stafeta", "get", one, two, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as following:
        assert following.stdout is not None
        for name in (two, one, two):
            stafeta("put", name, "more")
            assert following.stdout.readline() == f"{name} more\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE) == exits.INTERRUPTED
    assert stafeta("unsub", one, two, filter_).stdout.count("Unsubscribed from") == 3


def test_bytes_go_through_as_they_are(environment: dict[str, str], topic: str, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 40 + b"\r\n"
    (tmp_path / "payload").write_bytes(payload)

    def run(*words: str, stdin: bytes = b"") -> bytes:
        command = [sys.executable, "-m", "stafeta", *words]
        return subprocess.run(
            command, input=stdin, stdout=subprocess.PIPE, env=environment, check=True
        ).stdout

    run("sub", topic)
    run("put", topic, "--raw", stdin=payload)
    run("put", topic, "--raw", "--file", str(tmp_path / "payload"))
    run("put", topic, "--raw", stdin=b"")
    assert json.loads(run("get", topic, "--json", "--no-ack"))["kind"] == "bytes"
    assert run("get", topic, "--raw") == payload
    assert run("get", topic, "--raw", "--all") == payload


def test_put_makes_the_topic_if_asked_to(stafeta: Stafeta, topic: str) -> None:
    assert stafeta("put", topic, "x").returncode == exits.REFUSED
    assert stafeta("put", topic, "x", "--create").stdout == "1\n"
    assert stafeta("put", f"{topic}/lines", "--create", "--lines", stdin=b"1\n2\n").stdout == "2\n"
    for wrong in (["x", "--file", "f"], ["--file", "/nothing/there"], ["--raw", "--lines"]):
        done = stafeta("put", topic, *wrong)
        assert (done.returncode, done.stdout) == (exits.USAGE, "")


def test_unsubscribing_from_what_was_never_subscribed_to_says_so(stafeta: Stafeta, topic: str) -> None:
    stafeta("sub", topic, "--client", "other")
    for name in (topic, f"{topic}/not/there", f"{topic}/#"):
        done = stafeta("unsub", name)
        assert done.returncode == exits.REFUSED
        assert (
            done.stderr
            == f"stafeta: Client 'default' is not subscribed to '{name}'; 'stafeta subs' lists who is.\n"
        )


def test_get_follows_while_the_same_client_puts(
    environment: dict[str, str], stafeta: Stafeta, topic: str
) -> None:
    stafeta("sub", topic)
    stafeta("put", topic, "before")
    command = [sys.executable, "-m", "stafeta", "get", topic, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "before\n"
        stafeta("put", topic, "after")
        assert following.stdout.readline() == "after\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE) == exits.INTERRUPTED


def test_what_could_not_be_written_is_not_acknowledged(
    environment: dict[str, str], stafeta: Stafeta, topic: str
) -> None:
    stafeta("sub", topic)
    stafeta("put", topic, "x")
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed_pipe:
        done = subprocess.run(
            [sys.executable, "-m", "stafeta", "get", topic], stdout=closed_pipe, env=environment, check=False
        )
    assert done.returncode == exits.BROKEN_PIPE
    assert stafeta("get", topic).stdout == "x\n"


def test_refusals_are_sentences(stafeta: Stafeta, topic: str) -> None:
    for command in (["put", topic, "x"], ["get", topic], ["unsub", topic], ["sub", "white space"]):
        done = stafeta(*command)
        assert done.returncode == exits.REFUSED
        assert done.stdout == ""
        assert done.stderr.startswith("stafeta: ")
        assert "Traceback" not in done.stderr


def test_a_broker_that_does_not_answer_is_named_and_the_message_is_kept(
    stafeta: Stafeta, broker: BrokerProcess, topic: str
) -> None:
    here = ["--broker", broker.address, "--timeout", "0.2", "--retries", "2"]
    stafeta("sub", topic, *here)
    broker.stop()
    done = stafeta("put", topic, "a", *here)
    assert done.returncode == exits.UNREACHABLE
    assert broker.address in done.stderr
    assert "do not put it again" in done.stderr
    assert stafeta("get", topic, *here).returncode == exits.UNREACHABLE
    stafeta("sub", topic)
    assert stafeta("put", topic, "to another broker").stdout == "1\n"
    broker.start()
    assert stafeta("put", topic, "b", *here).stdout == "2\n"
    assert stafeta("get", topic, "--all", *here).stdout == "a\nb\n"


def test_a_folder_that_cannot_be_used_is_named(stafeta: Stafeta, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = stafeta("put", topic, "x", "--state", str(tmp_path / "file"))
    assert done.returncode == exits.DATA_FOLDER
    assert str(tmp_path / "file") in done.stderr


def test_the_state_folder_is_where_the_system_has_it(stafeta: Stafeta, environment: dict[str, str]) -> None:
    home = Path(environment["STAFETA_STATE"]).parent
    for chosen, expected in (
        ({"XDG_STATE_HOME": str(home / "xdg")}, home / "xdg" / "stafeta"),
        ({"HOME": str(home / "home")}, home / "home" / ".local" / "state" / "stafeta"),
    ):
        del environment["STAFETA_STATE"]
        environment.pop("XDG_STATE_HOME", None)
        environment |= chosen
        stafeta("sub", "anything")
        place = environment["STAFETA_BROKER"].removeprefix("tcp://")
        assert (expected / "default" / place / "subscriber" / "client.db").exists()
        environment["STAFETA_STATE"] = ""
