"""`stafeta init`: what it writes is enough to run a broker, and it writes nothing over."""

import stat
from pathlib import Path

import pytest

import stafeta
from stafeta import Client, Curve, Tls
from stafeta.addresses import Address
from stafeta.cli.main import main
from tests.brokers import BrokerProcess


def test_what_it_writes_runs_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secure"
    assert main(["init", str(folder), "--host", "broker.example", "--user", "ann"]) == 0
    said = capsys.readouterr().out
    token = (folder / "ann.token").read_text().strip()
    assert f"stafeta serve --config {folder}/stafeta.toml" in said
    assert token not in said
    for path in folder.iterdir():
        closed = path.suffix in (".key", ".token") or path.name == "users.toml"
        assert bool(stat.S_IMODE(path.stat().st_mode) & 0o077) != closed, path
    config = ("--config", str(folder / "stafeta.toml"))
    with BrokerProcess(folder / "data", *config, doors=("flight", "frames", "devices")) as broker:
        place = f"grpc+tls://{Address(*broker.door('flight'))}"
        tls = Tls(folder / "ca.pem")
        with stafeta.connect(place, token=token, tls=tls) as connection:
            connection.publish("hall", ["warm"])
        with stafeta.connect(place, token=token, tls=Tls(folder / "ca.pem", hostname="broker.example")):
            pass
        mutual = ("--set", f"flight.tls_client_ca={folder / 'ca.pem'}")
        with (
            BrokerProcess(folder / "other", *config, *mutual, doors=("flight",)) as other,
            stafeta.connect(
                f"grpc+tls://{Address(*other.door('flight'))}",
                tls=Tls(folder / "ca.pem", folder / "ann.pem", folder / "ann.key"),
            ) as connection,
        ):
            connection.publish("hall", ["warm"])
        with Client(
            broker.address, curve=Curve(folder / "broker-curve.pub", folder / "ann-curve.key")
        ) as client:
            assert client.stats()


def test_it_writes_nothing_over_and_leaves_nothing_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", str(tmp_path / "new"), "--user", "broker"]) == 2
    assert "cannot be called broker" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    assert main(["init", str(tmp_path / "there")]) == 2
    assert "is there already; it is not written over" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(["init", str(tmp_path / "new")]) == 2
    assert "The program openssl makes certificates, and is not there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
