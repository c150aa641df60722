"""What clients take from the environment and from files, and that no secret is in any text."""

from pathlib import Path

import pytest

from stafeta import credentials
from stafeta.clients.flight.connection import Connection
from stafeta.config import load
from stafeta.credentials import Login, login
from stafeta.errors import ConfigError
from stafeta.pipeline.connector.options import ReadOptions

TOKEN = "stf_not-for-anybodys-eyes"
PASSWORD = "correct horse: battery"


def test_what_is_given_goes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    environment = {"STAFETA_TOKEN_FILE": str(tmp_path / "token"), "STAFETA_CA": "ca.pem"}
    assert login(environment=environment) == Login(token=TOKEN)
    assert login(token="other", environment=environment) == Login(token="other")
    assert login("ann", PASSWORD, environment=environment) == Login("ann", PASSWORD)
    found = credentials.tls(environment)
    assert found is not None
    assert found.roots == "ca.pem"
    assert credentials.tls({}) is None
    assert credentials.curve({}) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"STAFETA_TOKEN": TOKEN, "STAFETA_USER": "ann", "STAFETA_PASSWORD": PASSWORD},
            "Both a token and a password",
        ),
        ({"STAFETA_PASSWORD": PASSWORD}, "goes with a user"),
        ({"STAFETA_USER": "ann"}, "neither a password nor a token"),
        ({"STAFETA_TOKEN": f"{TOKEN} x"}, "without spaces"),
        ({"STAFETA_USER": "ann", "STAFETA_PASSWORD": f"{PASSWORD}\r\nx: y"}, "in one line"),
        ({"STAFETA_TOKEN_FILE": "nowhere"}, "nowhere cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_without_being_shown(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        login(environment=given)
    assert TOKEN not in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_no_secret_is_in_a_text() -> None:
    connection = Connection("grpc://127.0.0.1:1", token=TOKEN)
    options = ReadOptions.of({"subscribe": "#", "token": TOKEN}, streaming=False)
    basic = ReadOptions.of({"subscribe": "#", "user": "ann", "password": PASSWORD}, streaming=False)
    for shown in (
        repr(connection),
        repr(connection._channel),
        repr(options),
        repr(basic),
        repr(Login(token=TOKEN)),
    ):
        assert TOKEN not in shown
        assert PASSWORD not in shown
    connection.close()


def test_over_a_network_nothing_secret_goes_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAFETA_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="in the clear") as refused:
        Connection("grpc://broker.example:8815")
    assert TOKEN not in str(refused.value)


def test_they_are_no_options_of_a_broker() -> None:
    load(environment=dict.fromkeys(credentials.VARIABLES.values(), "x"))


def test_the_environment_of_a_process_that_is_given_no_other() -> None:
    environment = {"STAFETA_TOKEN": TOKEN, "STAFETA_DATA": "x", "PATH": "/bin"}
    assert credentials.variables(environment) == {"STAFETA_TOKEN": TOKEN}
