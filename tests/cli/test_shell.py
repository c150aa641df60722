"""`stafeta shell`, in a pipe and on a terminal."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stafeta.cli import exits
from tests.cli.conftest import Stafeta
from tests.cli.terminals import Terminal
from tests.waiting import PATIENCE

PROMPT = "stafeta> "


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return tmp_path.name


@contextmanager
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    shell = Terminal(environment, PROMPT, "shell")
    try:
        shell.read_until(PROMPT)
        yield shell
    finally:
        shell.close()


def test_in_a_pipe_each_command_has_one_line(stafeta: Stafeta, topic: str) -> None:
    commands = f"""\
sub {topic}
PUT {topic} two  words

Get {topic}
GET {topic}
TOPICS {topic}
help
UNSUB {topic}
"""
    done = stafeta("shell", stdin=commands.encode())
    lines = done.stdout.splitlines()
    assert lines.pop(5).startswith("GET TOPIC")
    assert lines == [
        f"Subscribed to {topic}, after message 0.",
        f"Put on {topic} as message 1.",
        "two  words",
        f"No message on {topic}.",
        topic,
        f"Unsubscribed from {topic}.",
    ]
    assert (done.returncode, done.stderr) == (exits.OK, "")


def test_in_a_pipe_errors_are_sentences_and_the_shell_goes_on(stafeta: Stafeta, topic: str) -> None:
    commands = [
        "FROB x",
        "GET",
        f"GET {topic} more",
        f"PUT {topic}",
        f"PUT {topic} no such topic",
        f"SUB {topic}",
        "EXIT",
        "FROB",
    ]
    done = stafeta("shell", stdin="\n".join(commands).encode())
    assert done.returncode == exits.REFUSED
    assert done.stdout == f"Subscribed to {topic}, after message 0.\n"
    errors = done.stderr.splitlines()
    assert len(errors) == 5
    assert all(error.startswith("stafeta: ") and error.endswith(".") for error in errors)
    assert errors[0] == "stafeta: 'FROB' is not a command; HELP lists them."


def test_in_a_pipe_results_can_be_read_by_programs(stafeta: Stafeta, topic: str) -> None:
    commands = f"SUB {topic}\nPUT {topic} \nGET {topic}\nGET {topic}\nTOPICS {topic}\nHELP\nUNSUB {topic}\n"
    done = stafeta("shell", "--json", stdin=commands.encode())
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results[:2] == [{"topic": topic, "last_id": 0}, {"topic": topic, "id": 1}]
    assert (results[2]["id"], results[2]["text"]) == (1, "")
    assert results[3] == {"topic": topic, "id": None}
    assert [one["name"] for one in results[4]["topics"]] == [topic]
    assert "EXIT" in results[5]["commands"]
    assert results[6] == {"topic": topic}


def test_in_a_pipe_bytes_that_are_not_text_pass(stafeta: Stafeta, topic: str) -> None:
    done = stafeta("shell", stdin=b"SUB %b\nPUT %b \xff\xfe\nGET %b\n" % ((topic.encode(),) * 3))
    assert done.stdout.splitlines()[-1] == "\\xff\\xfe"
    assert done.returncode == exits.OK


def test_what_the_shell_got_is_acknowledged(stafeta: Stafeta, topic: str) -> None:
    stafeta("shell", stdin=f"SUB {topic}\nPUT {topic} a\nPUT {topic} b\nGET {topic}\n".encode())
    assert stafeta("get", topic).stdout == "b\n"


def test_on_a_terminal_there_is_a_conversation(environment: dict[str, str], topic: str) -> None:
    with terminal(environment) as shell:
        assert shell.enter(f"SUB {topic}") == [f"Subscribed to {topic}, after message 0."]
        assert shell.enter(f"PUT {topic} hello") == [f"Put on {topic} as message 1."]
        assert shell.enter(f"GET {topic}") == ["hello"]
        assert shell.enter("NONSENSE") == ["stafeta: 'NONSENSE' is not a command; HELP lists them."]
        table = shell.enter(f"TOPICS {topic}")
        assert table[0].split() == ["TOPIC", "FIRST", "NEXT", "SUBSCRIPTIONS"]
        assert len(shell.enter("HELP")) == 7
        shell.type("EXIT\n")
        assert shell.process.wait(PATIENCE) == exits.OK


def test_on_a_terminal_tab_completes_verbs_and_topics(environment: dict[str, str], topic: str) -> None:
    with terminal(environment) as shell:
        shell.enter(f"SUB {topic}/one")
        shell.type(f"uns\t{topic}/\t\n")
        assert f"{topic}/one" in shell.read_until("Unsubscribed from ")
        assert shell.read_until(PROMPT) == f"{topic}/one.\r\n"


def test_on_a_terminal_the_history_is_kept(environment: dict[str, str], topic: str) -> None:
    up = "\x1b[A"
    with terminal(environment) as shell:
        shell.enter(f"SUB {topic}")
        shell.type("\x04")
        assert shell.process.wait(PATIENCE) == exits.OK
    with terminal(environment) as shell:
        assert shell.enter(up) == [f"Subscribed to {topic}, after message 0."]
    history = Path(environment["STAFETA_STATE"]) / "default" / "history"
    assert history.read_text().splitlines() == [f"SUB {topic}"]


def test_on_a_terminal_an_interrupt_drops_the_line(environment: dict[str, str]) -> None:
    with terminal(environment) as shell:
        shell.type("half a li")
        shell.read_until("half a li")
        shell.interrupt()
        shell.read_until(PROMPT)
        assert shell.enter("HELP")[0].startswith("GET")


def test_a_shell_on_a_terminal_leaves_the_client_to_others(
    environment: dict[str, str], stafeta: Stafeta, topic: str
) -> None:
    with terminal(environment) as shell:
        shell.enter(f"SUB {topic}")
        assert stafeta("put", topic, "from outside").stdout == "1\n"
        assert shell.enter(f"GET {topic}") == ["from outside"]
        assert stafeta("get", topic).returncode == exits.NOTHING
