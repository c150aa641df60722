"""`stafeta.testing`, as it is used in the tests of other people's programs."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import stafeta
from stafeta.testing import Broker, BrokerFailed
from tests.pages import ROOT, blocks
from tests.waiting import PATIENCE, wait_until

KILLED = """
import sys
from stafeta.testing import Broker

broker = Broker(doors=["zeromq"]).start()
print(broker.pid, broker.data, flush=True)
sys.stdin.read()
"""


def test_it_has_the_same_ports_and_messages_after_it_was_killed_or_stopped() -> None:
    with Broker(doors=["zeromq", "flight"]) as broker, stafeta.Client(broker.address) as client:
        client.put("orders", "one", create=True)
        broker.restart()
        client.put("orders", "two")
        address = broker.address
        assert broker.stop() == 0
        assert not broker.running
        assert broker.start().address == address
        with stafeta.connect(broker.flight) as connection:
            assert [topic.topic for topic in connection.topics()] == ["orders"]
        folder = broker.data
        assert folder.exists()
    assert not folder.exists()


def test_a_folder_of_ones_own_is_kept(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "data", "--durability", "os", doors=["zeromq"]) as broker,
        stafeta.Client(broker.address) as client,
    ):
        client.put("orders", "one", create=True)
    assert (tmp_path / "data").exists()
    with Broker(tmp_path / "data", doors=["zeromq"]) as again, stafeta.Client(again.address) as client:
        assert [topic.name for topic in client.topics()] == ["orders"]


def test_why_it_does_not_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="durability"), Broker(tmp_path, "--durability", "maybe"):
        pass
    broker = Broker(tmp_path, doors=["zeromq"])
    with pytest.raises(BrokerFailed, match="The flight door is not open"):
        print(broker.flight)
    with pytest.raises(BrokerFailed, match="does not run"):
        print(broker.pid)


def test_nothing_in_the_environment_configures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAFETA_DURABILITY", "maybe")
    with Broker(doors=["frames"]) as broker:
        assert broker.door("frames")[0] == "127.0.0.1"


def test_it_does_not_outlive_whoever_has_started_it() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout is not None
        pid, folder = program.stdout.readline().split()
        process = psutil.Process(int(pid))
        assert Path(folder).exists()
        program.kill()
    wait_until(lambda: has_ended(process))
    assert not Path(folder).exists()


@pytest.mark.slow
def test_the_fixtures_work_as_the_page_says(tmp_path: Path) -> None:
    (plugins,) = (block.text for block in PAGE if "pytest_plugins" in block.text)
    (test,) = (block.text for block in PAGE if block.text.startswith("def test_"))
    shared = test.replace("stafeta_broker", "shared_stafeta_broker").replace("test_an", "test_another")
    (tmp_path / "conftest.py").write_text(plugins)
    (tmp_path / "test_orders.py").write_text(
        f"import stafeta\nfrom stafeta.testing import Broker\n\n\n{test}\n\n{shared}"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            tmp_path,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_pytest_is_no_dependency_of_it() -> None:
    script = "import sys, stafeta.testing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pytest" not in done.stdout.split()


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # nobody may be there to take notice of its end
    except psutil.NoSuchProcess:
        return True


PAGE = list(blocks(ROOT / "docs/testing.md"))
