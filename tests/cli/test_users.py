"""`stafeta user`, `token` and `role`: what they do to the users' file, and what they never show."""

import json
import subprocess
from pathlib import Path

import pytest

from stafeta.cli.main import main
from stafeta.security import Users
from stafeta.security.passwords import verify
from stafeta.security.users import hash_token
from tests.fork_server import run_stafeta

PASSWORD = "correct horse"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run("user", "add", "ann", "--allow", "consume news/#", typed=PASSWORD + "\n").returncode == 0
    return tmp_path / "users.toml"


def run(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return run_stafeta(*words, stdin=typed.encode())


def test_a_user_is_added_with_a_password_from_standard_input(users: Path) -> None:
    ann = Users.load(users).users["ann"]
    assert verify(ann.password, PASSWORD)
    assert not verify(ann.password, PASSWORD + "\n")
    assert [str(rule) for rule in ann.allow] == ["consume news/#"]
    assert users.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in users.read_text()


def test_nothing_is_taken_from_the_command_line(users: Path) -> None:
    before = users.read_text()
    assert run("user", "add", "bob", PASSWORD).returncode == 2
    assert run("user", "passwd", "ann", PASSWORD).returncode == 2
    assert users.read_text() == before


def test_a_token_is_shown_once_and_kept_as_a_hash(users: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "ci", "--user", "ann", "--expires", "90d"]) == 0
    token = capsys.readouterr().out.strip()
    assert Users.load(users).tokens["ci"].hash == hash_token(token)
    assert token not in users.read_text()
    assert main(["token", "list", "--json"]) == 0
    listed = capsys.readouterr().out
    (row,) = json.loads(listed)
    assert row["user"] == "ann"
    assert row["last_use"] == "never"
    assert hash_token(token) not in listed
    assert main(["token", "revoke", "ci"]) == 0
    assert Users.load(users).tokens == {}


def test_what_a_user_may_do_is_changed_and_the_rest_stays(users: Path) -> None:
    password = Users.load(users).users["ann"].password
    assert main(["role", "set", "reader", "--allow", "consume #", "--deny", "read private/#"]) == 0
    assert main(["user", "set", "ann", "--role", "reader", "--door", "frames", "--pipeline"]) == 0
    found = Users.load(users)
    ann = found.users["ann"]
    assert (ann.password, ann.roles, ann.pipeline) == (password, ("reader",), True)
    assert [str(rule) for rule in ann.allow] == ["consume news/#"]
    assert found.doors == {"frames": "ann"}
    assert main(["user", "set", "ann", "--allow", "publish x"]) == 0
    assert [str(rule) for rule in Users.load(users).users["ann"].allow] == ["publish x"]


def test_with_a_user_go_its_tokens_and_its_doors(users: Path) -> None:
    assert main(["user", "add", "bob", "--no-password", "--door", "devices"]) == 0
    assert main(["token", "create", "b", "--user", "bob"]) == 0
    assert main(["user", "remove", "bob"]) == 0
    found = Users.load(users)
    assert set(found.users) == {"ann"}
    assert (found.tokens, found.doors) == ({}, {})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["user", "add", "ann", "--no-password"], "a user ann already"),
        (["user", "add", "a/b", "--no-password"], "cannot be a name"),
        (["user", "add", "bob", "--no-password", "--allow", "write x"], "'write' is none of"),
        (["user", "add", "bob", "--no-password", "--role", "none"], "no role 'none'"),
        (["user", "add", "bob", "--no-password", "--curve-key", "short"], "40 characters"),
        (["user", "remove", "ann"], "the last user"),
        (["user", "remove", "bob"], "no user 'bob'"),
        (["user", "set", "bob"], "no user 'bob'"),
        (["user", "passwd", "bob"], "no user 'bob'"),
        (["token", "create", "t", "--user", "bob"], "no user 'bob'"),
        (["token", "create", "t", "--user", "ann", "--expires", "soon"], "soon"),
        (["token", "create", "t", "--user", "ann", "--expires", "0s"], "not at once"),
        (["token", "revoke", "t"], "no token 't'"),
        (["role", "remove", "reader"], "no role 'reader'"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    users: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    before = users.read_text()
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert users.read_text() == before


@pytest.mark.parametrize("typed", ["", "short\n", "x" * 2000 + "\n"])
def test_what_is_no_password_is_refused(users: Path, typed: str) -> None:
    before = users.read_text()
    done = run("user", "passwd", "ann", typed=typed)
    assert done.returncode == 2
    assert "A password has at" in done.stderr
    assert users.read_text() == before
