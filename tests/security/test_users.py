"""The users' file: what is wrong with it is said with its line, and it never means everyone."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.errors import ConfigError
from stafeta.security import Security
from stafeta.security.rules import OPERATIONS, Rule
from stafeta.security.security import load_use
from stafeta.security.users import Role, Token, User, Users, hash_token, now, read, save, write

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA"
SOUND = f"""
[doors]
devices = "sensor"

[roles.reader]
allow = ["consume readings/#"]

[users.ann]
password = "{HASH}"
roles = ["reader"]
deny = ["read readings/private/#"]

[users.sensor]
allow = ["publish readings/#"]

[tokens.ci]
user = "ann"
hash = "{hash_token("x")}"
created = 2026-01-01T00:00:00Z
expires = 2027-01-01T00:00:00Z
"""

names = st.from_regex(r"[A-Za-z0-9_@][A-Za-z0-9_@.-]{0,63}", fullmatch=True)
rule = st.builds(
    lambda word, filter_: Rule.read(f"{word} {filter_}"),
    st.sampled_from(sorted(OPERATIONS)),
    st.sampled_from(["a", "#", "$sys/#", "%u/+", 'quo"te/ü', "back\\slash"]),
)
rule_tuples = st.lists(rule, max_size=3).map(tuple)


@st.composite
def sound_users(draw: st.DrawFn) -> Users:
    roles = draw(st.dictionaries(names, st.builds(Role, rule_tuples, rule_tuples), max_size=2))
    some_roles = st.lists(st.sampled_from(sorted(roles)), max_size=2).map(tuple) if roles else st.just(())
    user = st.builds(User, st.sampled_from(["", HASH]), some_roles, rule_tuples, rule_tuples)
    users = draw(st.dictionaries(names, user, min_size=1, max_size=3))
    owner = st.sampled_from(sorted(users))
    token = st.builds(Token, owner, st.just(hash_token("t")), st.just(now()), st.sampled_from([None, now()]))
    doors = st.dictionaries(st.sampled_from(["devices", "frames"]), owner)
    return Users(users, roles, draw(st.dictionaries(names, token, max_size=2)), draw(doors))


@given(sound_users())
def test_what_is_written_is_read_back(users: Users) -> None:
    assert read(write(users), "users") == users


def lined(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[users.ann]", "[users.ann", "not TOML"),
        ('roles = ["reader"]', 'roles = ["writer"]', "no role 'writer'"),
        ("consume readings/#", "consume readings#", "mixes a wildcard"),
        ("read readings/private/#", "look readings", "'look' is none of"),
        ('password = "', 'password = "x', "must be a hash"),
        ('user = "ann"', 'user = "bob"', "no user 'bob'"),
        ('devices = "sensor"', 'devices = "bob"', "no user 'bob'"),
        ('devices = "sensor"', 'kitchen = "sensor"', "no such field"),
        ("expires = 2027-01-01T00:00:00Z", "expires = 2027-01-01T00:00:00", "time zone"),
        ('hash = "', 'hash = "zz', "64 hexadecimal digits"),
        ('allow = ["publish readings/#"]', "allow = [1]", "list of strings"),
        ('allow = ["publish readings/#"]', 'allow = "publish #"', "str is not list"),
        ('allow = ["publish readings/#"]', "admin = true", "no such field"),
    ],
)
def test_a_mistake_is_said_with_its_line(old: str, new: str, sentence: str) -> None:
    text = SOUND.replace(old, new, 1)
    assert text != SOUND
    with pytest.raises(ConfigError, match=sentence) as caught:
        read(text, "users.toml")
    assert f"line {lined(text, new.splitlines()[0])}" in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# nobody\n", "[roles.all]\nallow = ['all #']\n", "[users]\n"])
def test_a_file_without_users_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="line 1: there is no user in it"):
        read(text, "users.toml")


@pytest.mark.parametrize("name", ["a b", "#", "+", "a/b", "%u", "$sys", "", "x" * 65, "ü"])
def test_no_user_has_a_name_that_a_filter_would_read(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name"):
        write_and_read(name)


def write_and_read(name: str) -> Users:
    return read(write(Users({name: User()})), "users.toml")


def test_only_one_user_has_the_names_from_before(tmp_path: Path) -> None:
    two = {"ann": User(plain_names=True), "bob": User(plain_names=True)}
    with pytest.raises(ConfigError, match="ann has it already"):
        read(write(Users(two)), "users.toml")


def test_a_file_is_read_as_it_was_saved_and_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    users = read(SOUND, "users.toml")
    save(path, users)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Users.load(path) == users
    assert [one.name for one in tmp_path.iterdir()] == ["users.toml"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o666])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "users.toml"
    path.write_text(SOUND)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        Users.load(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Users.load(tmp_path / "users.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Users.load(tmp_path)
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="not UTF-8"):
        Users.load(path)


def test_a_file_that_would_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    save(path, Users({"ann": User()}))
    with pytest.raises(ConfigError):
        save(path, Users())
    assert Users.load(path) == Users({"ann": User()})
    assert os.listdir(tmp_path) == ["users.toml"]


def test_secrets_are_not_shown() -> None:
    users = read(SOUND, "users.toml")
    assert HASH not in repr(users)
    assert hash_token("x") not in repr(users)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ci": "x"}', '{"ci": null}', '{"ci": [1]}', "[" * 100_000])
def test_when_tokens_were_used_may_be_anything_in_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.toml.used"
    path.write_text(text)
    users = Users({"ann": User()}, tokens={"ci": Token("ann", hash_token("t"), now())})
    security = Security(users, used=path)
    security.identify(door="flight", address="", token="t")
    security.close()
    assert set(load_use(path)) == {"ci"}
