"""What all commands have in common: their help, their options, and completion."""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta import __version__
from stafeta.cli import exits
from stafeta.cli.main import in_order, parser_for
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.waiting import PATIENCE


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from every_parser(inner)


def test_the_help_of_each_command_has_an_example_and_the_exit_codes() -> None:
    for parser in every_parser(parser_for([])):
        text = parser.format_help()
        assert re.search(r"\nexamples:\n  .*" + re.escape(parser.prog.removeprefix("stafeta ")), text), (
            parser.prog
        )
        assert "\nexit codes:\n  0    done\n" in text
        assert "\n  74   the output could not be written\n" in text


def test_examples_are_command_lines() -> None:
    from stafeta.cli.examples import EXAMPLES

    for examples, _ in EXAMPLES.values():
        for example in examples:
            line = re.sub(r"^.*\| |^eval \"\$\(|\)\"$| > .*$", "", example)
            done = subprocess.run(
                ["bash", "-c", f'stafeta() {{ printf "%s\\0" "$@"; }}; {line}'],
                capture_output=True,
                text=True,
                check=True,
            )
            words = in_order(done.stdout.split("\0")[:-1])
            assert callable(parser_for(words).parse_args(words).run)


def test_without_a_command_there_is_help(stafeta: Stafeta) -> None:
    for words in ([], ["--broker", "127.0.0.1:1"]):
        done = stafeta(*words)
        assert (done.returncode, done.stderr) == (exits.USAGE, "stafeta: A command is missing.\n")
        assert done.stdout == stafeta("--help").stdout


def test_the_version_tells_those_of_the_parts(stafeta: Stafeta) -> None:
    said = stafeta("--version").stdout
    number = r"\d+\.\d+\S*"
    parts = f"Python {number}, Arrow {number}, SQLite {number}, Spark ({number}|not installed)"
    assert re.fullmatch(rf"stafeta {re.escape(__version__)} \({parts}\)\n", said)


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        (["--broker", "b", "put", "t", "x"], ["put", "--broker", "b", "t", "x"]),
        (["--broker=b", "--json", "get", "t", "--all"], ["get", "--broker=b", "--json", "t", "--all"]),
        (["--broker", "b", "pipeline", "status"], ["pipeline", "status", "--broker", "b"]),
        (["--client", "put", "get", "t"], ["get", "--client", "put", "t"]),
        (["--version"], ["--version"]),
        (["--broker"], ["--broker"]),
        ([], []),
    ],
)
def test_options_of_all_commands_may_stand_before_the_command(words: list[str], ordered: list[str]) -> None:
    assert in_order(words) == ordered


@pytest.mark.parametrize("command", ["topics", "stats", "clients", "subs", "watch t", "tail t", "tail -f t"])
def test_a_broker_that_is_not_there_is_one_sentence(stafeta: Stafeta, command: str) -> None:
    done = stafeta("--broker", "127.0.0.1:1", "--timeout", "0.1", "--retries", "1", *command.split())
    assert (done.returncode, done.stdout) == (exits.UNREACHABLE, "")
    assert done.stderr.startswith("stafeta: No reply from the broker at tcp://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_broker_may_be_named_before_the_command(
    stafeta: Stafeta, environment: dict[str, str], cli_broker: BrokerProcess, tmp_path: Path
) -> None:
    del environment["STAFETA_BROKER"]
    here = ["--broker", cli_broker.address, "--client", "early"]
    assert stafeta(*here, "sub", tmp_path.name).returncode == exits.OK
    assert stafeta(*here, "put", tmp_path.name, "x").stdout == "1\n"
    assert stafeta(*here, "get", tmp_path.name).stdout == "x\n"
    wrong = stafeta(*here, "serve", "--check")
    assert wrong.returncode == exits.USAGE
    assert "unrecognized arguments: --broker" in wrong.stderr


@pytest.mark.slow
def test_bash_completes_commands_options_and_topics(
    stafeta: Stafeta, environment: dict[str, str], tmp_path: Path
) -> None:
    topic = tmp_path.name
    hostile = f"{topic}/$(touch${{IFS}}{tmp_path}/expanded)"
    stafeta("sub", f"{topic}/one", hostile)
    (tmp_path / "stafeta").write_text(f'#!/bin/sh\nexec {sys.executable} -m stafeta "$@"\n')
    (tmp_path / "stafeta").chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        script = (
            'eval "$(stafeta completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _stafeta; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", script, "bash", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("stafeta uns") == ["unsub"]
    assert completed("stafeta get --fol") == ["--follow"]
    assert completed("stafeta --broker x devices s") == ["server", "subscriber"]
    assert completed("stafeta completion z") == ["zsh"]
    assert completed(f"stafeta get {topic}/o") == [f"{topic}/one"]
    assert len(completed(f"stafeta put {topic}/")) == 2
    assert not (tmp_path / "expanded").exists()
    environment["STAFETA_BROKER"] = "127.0.0.1:1"
    assert completed("stafeta get ") == []
    for shell in ("zsh", "fish"):
        script = stafeta("completion", shell).stdout
        assert "--plain" in script
