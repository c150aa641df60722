"""`stafeta serve --check`, as a user runs it."""

import json
import os
import subprocess
import sys
import tomllib
from contextlib import chdir
from pathlib import Path

from stafeta.cli import exits, serve
from stafeta.config import Config
from stafeta.config.options import FLAGS, OPTIONS
from tests.fork_server import run_stafeta


def stafeta(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
    with chdir(cwd or Path.cwd()):
        return run_stafeta(*arguments, environment={**inherited, **environment})


def test_it_prints_the_defaults_as_toml() -> None:
    done = stafeta("serve", "--check")
    assert (done.returncode, done.stderr) == (exits.OK, "")
    configuration, table = done.stdout.split("\n# DOOR", 1)
    assert configuration == Config().to_toml()
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows[0] == ["#", "zeromq", "127.0.0.1:9001", "no", "anyone", "everything"]
    assert [row[1] for row in rows] == ["zeromq", "devices", "frames", "flight", "http"]
    assert tomllib.loads(done.stdout) == Config().to_plain()


def test_it_prints_who_may_come_in_as_whom_and_do_what(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(
        '[doors]\ndevices = "sensor"\n[users.sensor]\nallow = ["publish t/#"]\n[users.ann]\n'
        'roles = ["reader"]\npassword = "$argon2id$x"\n[roles.reader]\nallow = ["consume #"]\ndeny = ["read p/#"]\n'
    )
    path.chmod(0o600)
    done = stafeta("serve", "--check", "--users", str(path), "--host", "0.0.0.0", "--frames", "off")
    assert (done.returncode, done.stderr) == (exits.OK, "")
    table = done.stdout.split("\n# DOOR", 1)[1].splitlines()
    assert table[1].split() == ["#", "zeromq", "0.0.0.0:9001", "no", "nobody"]
    assert table[2].split("  ")[-1].strip() == "publish t/#"
    assert "sensor, without credentials" in table[2]
    assert table[3].split() == ["#", "frames", "off"]
    assert "ann, by password or token" in table[4]
    assert "consume #; not read p/#" in table[4]
    path.chmod(0o640)
    assert "chmod 600" in stafeta("serve", "--check", "--users", str(path)).stderr


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    (tmp_path / "stafeta.toml").write_text(
        'data = "file"\nhost = "127.0.0.2"\nlog_level = "error"\n[zeromq]\nlisten = 1\n'
    )
    done = stafeta(
        *("serve", "--check", "--json", "--config", "stafeta.toml", "--zeromq", "3,127.0.0.4:4"),
        *("--set", "store.sweep=2s", "--set", 'topics."a/#".keep=7d'),
        cwd=tmp_path,
        STAFETA_ZEROMQ="2",
        STAFETA_DATA="variable",
        STAFETA_LIMITS_MAX_LAG="5",
    )
    found = json.loads(done.stdout)
    assert (found["data"], found["host"], found["log_level"]) == ("variable", "127.0.0.2", "error")
    assert found["zeromq"]["listen"] == [3, "127.0.0.4:4"]
    assert (found["limits"]["max_lag"], found["store"]["sweep"]) == (5, "2s")
    assert found["topics"] == {"a/#": {"keep": "1w"}}


def test_what_it_prints_can_be_its_file(tmp_path: Path) -> None:
    first = stafeta(
        "serve", "--check", "--zeromq", "off", "--durability", "os", "--set", "topics.a.keep=7d,1GB"
    )
    (tmp_path / "stafeta.toml").write_text(first.stdout)
    second = stafeta("serve", "--check", STAFETA_CONFIG=str(tmp_path / "stafeta.toml"))
    assert second.stdout == first.stdout
    assert tomllib.loads(first.stdout)["zeromq"]["listen"] == "off"


def test_a_mistake_is_one_sentence_and_exit_code_2() -> None:
    done = stafeta("serve", "--check", "--durability", "maybe")
    assert done.returncode == exits.USAGE
    assert done.stdout == ""
    assert done.stderr == "stafeta: --durability: durability: 'maybe' is not one of fsync, os.\n"


def test_other_machines_are_let_in_only_by_name() -> None:
    refused = stafeta("serve", "--check", "--host", "0.0.0.0")
    assert refused.returncode == exits.USAGE
    assert "--allow-anyone" in refused.stderr
    assert stafeta("serve", "--check", "--host", "0.0.0.0", "--allow-anyone").returncode == exits.OK


def test_json_goes_with_check() -> None:
    assert stafeta("serve", "--json").returncode == exits.USAGE


def test_an_unknown_command_or_none_is_wrong_usage() -> None:
    assert stafeta().returncode == exits.USAGE
    assert stafeta("serv").returncode == exits.USAGE
    assert stafeta("serve", "--chec").returncode == exits.USAGE


def test_a_reader_that_leaves_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "stafeta", "serve", "--check"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (exits.BROKEN_PIPE, "")


def test_every_door_has_a_flag_and_every_flag_an_option() -> None:
    assert set(FLAGS) <= set(OPTIONS)
    assert {key for key in OPTIONS if key[-1] == "listen"} <= set(FLAGS)
    assert len({serve.flag_of(key) for key in FLAGS}) == len(FLAGS)


def test_the_help_of_a_flag_is_the_option_s_own_and_says_its_default() -> None:
    shown = " ".join(stafeta("serve", "--help").stdout.split())
    assert "--zeromq PORT|off|LIST where the ZeroMQ door listens (9001) " in shown
    for key, (metavar, text) in FLAGS.items():
        assert " ".join([serve.flag_of(key), *metavar.split(), text, ""]) in shown
