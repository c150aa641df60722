"""Programs that use the native client, when they are killed, interrupted, or simply end."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Place
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def program(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.doors.flight.native_program", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def address(place: Place) -> str:
    host, port = place
    return f"grpc://{host}:{port}"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("programs") / "data", doors=("flight",)) as process:
        yield process


@pytest.fixture
def stopped(standing: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that a test stops."""
    yield standing
    standing.send_signal(signal.SIGCONT)


def test_a_producer_that_is_killed_goes_on_under_its_name(place: Place, topic: str, name: str) -> None:
    total = 40_000
    kills = 0
    while True:
        with program("produce", address(place), topic, name, total) as run:
            assert run.stdout is not None
            lines = [run.stdout.readline()]
            while kills < 4 and len(lines) < 5:
                lines.append(run.stdout.readline())
            if kills < 4:
                run.kill()
                kills += 1
                continue
            assert run.communicate(timeout=PATIENCE)[1] == ""
            assert run.returncode == 0
            break
    assert int(lines[0]) >= 4 * 3000
    with stafeta.connect(address(place)) as broker:
        found = broker.read(topic, columns=["payload"]).column("payload").to_pylist()
    assert found == [b"%d" % number for number in range(total)]


def test_a_subscriber_that_is_killed_gets_the_rest(place: Place, topic: str, name: str) -> None:
    total = 40_000
    found: list[int] = []
    with stafeta.connect(address(place)) as broker:
        broker.subscribe(topic, name=name).close()
        for start in range(0, total, 1000):
            broker.publish(topic, [str(number) for number in range(start, start + 1000)])
    for kill in (True, True, False):
        with program("consume", address(place), topic, name, total) as run:
            assert run.stdout is not None
            if kill:
                found += [int(run.stdout.readline()) for _ in range(5_000)]
                run.kill()
                found += [int(line) for line in run.stdout.read().splitlines() if line]
            else:
                rest, wrong = run.communicate(timeout=PATIENCE)
                assert (run.returncode, wrong) == (0, "")
                found += map(int, rest.split())
    assert set(found) == set(range(total))
    assert list(dict.fromkeys(found)) == list(range(total))


@pytest.mark.parametrize("job", ["flush", "next", "stats", "publish", "read"])
def test_ctrl_c_ends_whatever_waits_for_a_broker_that_hangs(stopped: BrokerProcess, job: str) -> None:
    with program(job, address(stopped.door("flight")), "t", "n", 1) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        assert run.stdout.readline() == "ready\n"
        stopped.send_signal(signal.SIGSTOP)
        run.stdin.write("\n")
        run.stdin.flush()
        assert run.stdout.readline() == "waiting\n"
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        wrong = run.communicate(timeout=PATIENCE)[1]
        assert "KeyboardInterrupt\n" in wrong
        assert "Traceback" not in wrong.partition("KeyboardInterrupt\n")[2]
        assert run.returncode == -signal.SIGINT
        assert time.monotonic() - began < 20


def test_ctrl_c_at_the_start_of_a_thread_ends_a_program_without_a_second_error() -> None:
    interrupted = """
import threading
import stafeta
stafeta.connect  # loads the client, and with it what is done at the end
start = threading._start_new_thread
def late(*arguments):
    start(lambda: (threading.Event().wait(0.2), start(*arguments)), ())
    raise KeyboardInterrupt
threading._start_new_thread = late
threading.Thread(target=lambda: print("ran"), name="stafeta-1", daemon=True).start()
"""
    command = [sys.executable, "-c", interrupted]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert run.stderr.endswith("KeyboardInterrupt\n")
    assert run.stdout == "ran\n"


def test_a_program_that_ends_without_closing_has_sent_everything(place: Place, topic: str) -> None:
    with program("leave", address(place), topic, "n", 1) as run:
        assert run.communicate(timeout=PATIENCE) == ("", "")
        assert run.returncode == 0
    with stafeta.connect(address(place)) as broker:
        assert broker.read(topic).column("payload").to_pylist() == [b"said in leaving"]


def test_the_client_imports_nothing_of_the_broker_and_nothing_before_it_is_needed() -> None:
    script = (
        "import sys, stafeta\n"
        "assert 'pyarrow' not in sys.modules\n"
        "stafeta.connect, stafeta.connect_async\n"
        "from stafeta.clients.flight.data import batches\n"
        "batches(['a']), batches([b'a', 1, {}]), batches(['1'], 'int')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    wrong = ("stafeta.broker", "stafeta.config", "stafeta.server", "stafeta.store", "stafeta.doors.zeromq")
    others = ("pandas", "polars", "uvloop", "zmq")
    assert not [name for name in done.stdout.split() if name.startswith((*wrong, *others))]
