"""The systems that Stafeta is compared with do the work that they are measured at, and leave nothing behind."""

import socket
from itertools import chain
from pathlib import Path
from time import monotonic_ns

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import peer_consume, peer_latency, peer_plot, peer_publish
from benchmarks.brokers import BrokerFailed
from benchmarks.load import Load, LoadFailed
from benchmarks.peer import (
    MISSING,
    Peer,
    Publisher,
    System,
    Timed,
    age,
    expect,
    messages,
    paced,
    pool,
    portions,
)
from benchmarks.peer_disk import Disk
from benchmarks.peer_mosquitto import Mosquitto
from benchmarks.peer_nats import Nats
from benchmarks.peer_rabbit import Rabbit
from benchmarks.peer_redis import Redis
from benchmarks.peer_server import running
from benchmarks.peer_stafeta import Flight
from benchmarks.results import Column, Result, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

TOTAL = 2_000
OTHERS = (Redis, Nats, Rabbit, Mosquitto)
PUBLISHERS: list[Publisher] = [
    Disk(1_000),
    Flight("arrow", rows=1_000),
    Flight("send"),
    Nats(durable=True),
    Mosquitto(durable=False),
]
PEERS: list[Peer] = [
    Flight("arrow", rows=1_000),
    Flight("send_many"),
    Redis(durable=True),
    Redis(durable=False),
    Nats(durable=True, by_hand=True),
    Nats(durable=False, by_hand=True),
    Rabbit(durable=True),
    Rabbit(durable=False),
    Mosquitto(durable=True),
]


def named(system: System) -> str:
    return f"{system.system} {system.settings}"


def installed(system: System) -> None:
    if system.version() is None:
        pytest.skip(f"{system.system} is not installed")


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerFailed, match="no room"),
        running(tmp_path / "served", lambda _: ["sh", "-c", "echo no room; exit 1"]),
    ):
        pass


def test_a_server_is_gone_with_its_children(tmp_path: Path) -> None:
    listen = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); s.accept(); s.accept()"
    with running(
        tmp_path / "served", lambda port: ["sh", "-c", f'python3 -c "{listen}" {port}; true']
    ) as port:
        assert left_in(tmp_path)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    assert not left_in(tmp_path)


def test_messages_that_are_missing_fail_the_benchmark() -> None:
    expect(5, 5, "Somebody")
    with pytest.raises(LoadFailed, match="Somebody delivered 4 messages instead of 5"):
        expect(5, 4, "Somebody")


@pytest.mark.slow
def test_a_peer_that_is_not_installed_has_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for each in OTHERS:
        monkeypatch.setattr(each, "version", lambda _: None)
    for table in peer_consume.run(Setting("peer_consume", tmp_path, quick=True)):
        for row in table.rows:
            ours = row.values["system"] == "Stafeta"
            assert (row.values["version"] == MISSING) != ours
            assert (row.values["rate"] is None) != ours
            assert row.bars == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("system", PUBLISHERS, ids=named)
def test_every_message_is_published(system: Publisher, tmp_path: Path) -> None:
    installed(system)
    assert peer_publish.published(system, tmp_path / "served", TOTAL) > 0
    assert not left_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS, ids=named)
def test_every_message_is_consumed(peer: Peer, tmp_path: Path) -> None:
    installed(peer)
    assert peer_consume.consumed(peer, tmp_path / "served", TOTAL) > 0
    assert not left_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("system", [*peer_latency.OURS, *peer_latency.OTHERS], ids=lambda each: each.timing)
def test_every_message_is_timed(system: Timed, tmp_path: Path) -> None:
    installed(system)
    with system.serve(tmp_path / "served") as address, Load() as publisher, Load() as subscriber:
        publisher.run(system.prepare, address)
        received = subscriber.start(system.receive, address, 200)
        publisher.run(system.send, address, monotonic_ns() + peer_latency.LEAD, 1_000, 200)
        ages = received()
    assert len(ages) == 200
    assert min(ages) > 0
    assert not left_in(tmp_path)


def test_messages_are_printable_and_differ() -> None:
    assert {len(each) for each in pool()} == {PAYLOAD}
    assert len(set(pool())) == len(pool())
    assert all(each.isascii() and each.decode().isprintable() for each in pool()[:100])


@given(st.integers(0, 250_000), st.sampled_from([1_000, 10_000]))
def test_portions_are_all_messages_in_their_order(total: int, rows: int) -> None:
    found = list(portions(total, rows))
    assert all(len(portion) == rows for portion in found[:-1])
    assert all(ours is theirs for ours, theirs in zip(chain(*found), messages(total), strict=True))


def test_a_paced_message_says_when_it_was_due_however_late_it_is() -> None:
    begin = monotonic_ns() - 1_000_000_000
    found = list(paced(begin, 1_000, 5))
    assert [int(each[:20]) for each in found] == [begin + number * 1_000_000 for number in range(5)]
    assert {len(each) for each in found} == {PAYLOAD}
    assert age(found[0]) > 1_000_000_000
    assert age(found[0].decode()) > 1_000_000_000


def test_the_same_figures_are_drawn_the_same(tmp_path: Path) -> None:
    results = {"peer_publish": drawn("rate", rate=1234.0), "peer_latency": drawn("p50", p50=0.5, p99=2.0)}
    for name in ("one", "two"):
        peer_plot.draw(results, tmp_path / name)
    picture = (tmp_path / "one").read_text(encoding="utf-8")
    assert picture == (tmp_path / "two").read_text(encoding="utf-8")
    for word in ("Cakes: baked", "1,234", "0.50 · 2.00", "Nobody: fried"):
        assert (word in picture) == (word != "Nobody: fried")


def test_nothing_is_drawn_of_other_benchmarks(tmp_path: Path) -> None:
    peer_plot.draw({"put": drawn("rate", rate=1.0)}, tmp_path / "picture")
    assert list(tmp_path.iterdir()) == []


def drawn(key: str, **figures: float) -> Result:
    """A system with figures, and one that is not installed."""
    labels: dict[str, Value] = {"how": "baked", "promise": "on disk (fsync)"}
    rows = (
        Row({"system": "Cakes", **labels, **figures}),
        Row({"system": "Nobody", **labels, "how": "fried", **dict.fromkeys(figures)}),
    )
    return Result("2025-01-01", False, {}, (Table("Baking", "", (Column(key, key),), rows),))


def left_in(folder: Path) -> list[psutil.Process]:
    """Processes that work in a folder, or were told of it."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline", "status"]):
        words = [process.info["cwd"] or "", *(process.info["cmdline"] or [])]
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(process)
    return found
