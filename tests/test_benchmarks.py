"""The benchmarks run, and what they print and write is what they have measured."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import devices, mqtt, peers, rendering
from benchmarks.__main__ import BENCHMARKS
from benchmarks.brokers import BrokerFailed
from benchmarks.percentiles import percentile
from benchmarks.publishers import Datagrams, paced
from benchmarks.readings import DIGITS, SIXTEEN, STRING, Reading, in_order, number
from benchmarks.results import Bar, Column, Result, Row, Table, Value, from_plain, to_plain
from benchmarks.setting import PAYLOAD
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MACHINE: dict[str, Value] = {
    "cpus": 2,
    "processor": "abacus",
    "memory_gb": 8.0,
    "system": "Linux 6",
    "python": "3.11",
    "stafeta": "0.1",
    "libzmq": "4",
    "sqlite": "3",
    "filesystem": "ext4",
    "fdatasync_p50_ms": 0.5,
    "fdatasync_p99_ms": 5.0,
}
TABLE = Table(
    "Cost of a cake",
    "The best of two.",
    (Column("cake", "cake"), Column("minutes", "minutes", 1), Column("slices", "slices")),
    (
        Row({"cake": "apple", "minutes": 61.25, "slices": 12}, (Bar("minutes", "<", 60, " min"),)),
        Row({"cake": "plum", "minutes": 45.0, "slices": None}, (Bar("minutes", "<", 60, " min"),)),
    ),
)
RESULT = Result("2025-01-01T00:00:00+00:00", False, MACHINE, (TABLE,))


def test_the_quick_benchmark_of_put_writes_its_figures(tmp_path: Path) -> None:
    done = benchmarks("--quick", "put", "--json", str(tmp_path / "figures"), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "≥ 40,000/s" in done.stdout
    plain = json.loads((tmp_path / "figures").read_text())
    (table,) = plain["put"]["tables"]
    assert [row["values"]["window"] for row in table["rows"] if row["bars"]] == [1, 1000, 5000]
    assert all(
        0 < row["values"]["p50_ms"] <= row["values"]["p99_ms"] and row["values"]["rate"] > 0
        for row in table["rows"]
    )
    assert plain["put"]["machine"].keys() == MACHINE.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_every_benchmark_has_its_place_in_the_documentation() -> None:
    pages = [ROOT / "docs" / "benchmarks.md", *(ROOT / "docs" / "benchmarks").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(rendering.places(text)) == sorted([*BENCHMARKS, "bars"])
    rendering.check_places(text, [*BENCHMARKS, "bars"])
    assert all(text.count(f"\n## {name}\n") == 1 for name in BENCHMARKS)


def test_figures_are_written_into_the_pages_that_have_a_place_for_them(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("*.svg"))
    results = {name: to_plain(RESULT) for name in ("peer_latency", "put")}
    (tmp_path / "figures").write_text(json.dumps(results))
    before = {page: page.read_text(encoding="utf-8") for page in docs.rglob("*.md")}
    done = benchmarks("--from", str(tmp_path / "figures"), "--markdown", str(docs / "benchmarks.md"))
    assert done.returncode == 0, done.stderr
    after = {page: page.read_text(encoding="utf-8") for page in docs.rglob("*.md")}
    changed = {str(page.relative_to(docs)) for page in after if after[page] != before[page]}
    assert changed == {"benchmarks.md", "benchmarks/zeromq.md", "benchmarks/peers.md"}
    assert all("Cost of a cake" in after[docs / page] for page in changed)
    bars = [line.split()[1] for line in after[docs / "benchmarks.md"].splitlines() if " met |" in line]
    assert list(dict.fromkeys(bars)) == [name for name in BENCHMARKS if name in bars]


def test_figures_are_written_between_their_markers_again_and_again() -> None:
    page = "".join(
        f"before\n<!-- measured: {name} -->\nold\n<!-- end -->\nafter\n" for name in ("bars", "put")
    )
    written = rendering.page(page, {"put": RESULT})
    assert "old" not in written
    assert written.count("before\n") == written.count("after\n") == 2
    assert "| apple | 61.2 | 12 | < 60 min: missed: 1.02 of it |" in written
    assert "| put | Cost of a cake: cake plum | < 60 min | 45.0 min | met |" in written
    assert rendering.page(written, {"put": RESULT}) == written
    with pytest.raises(rendering.NoPlace, match="measured: get"):
        rendering.page(page, {"get": RESULT})


def test_bars_of_what_is_not_measured_now_stay_in_the_order_of_the_page() -> None:
    page = "".join(f"<!-- measured: {name} -->\n<!-- end -->\n" for name in ("bars", "get", "put", "cli"))
    page = rendering.page(rendering.page(page, {"cli": RESULT}), {"get": RESULT})
    written = rendering.page(page, {"put": RESULT})
    bars = written.partition("<!-- end -->")[0].splitlines()
    assert [line.split()[1] for line in bars if "Cost of a cake" in line] == ["get"] * 2 + ["put"] * 2 + [
        "cli"
    ] * 2


def test_a_table_is_printed_with_its_bars_and_its_machine() -> None:
    printed = rendering.text("cakes", RESULT).splitlines()
    assert printed[2:6] == [
        "cake   minutes  slices  bar",
        "-----  -------  ------  ----------------------------",
        "apple     61.2      12  < 60 min: missed: 1.02 of it",
        "plum      45.0       -  < 60 min: met",
    ]
    assert "fdatasync 0.50 ms (p99 5.00 ms)" in rendering.text("cakes", RESULT)


def test_a_result_is_the_same_after_json() -> None:
    assert from_plain(json.loads(json.dumps(to_plain(RESULT)))) == RESULT


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 100))
def test_a_percentile_is_the_least_that_so_many_do_not_exceed(figures: list[float], percent: float) -> None:
    figures.sort()
    found = percentile(figures, percent)
    needed = len(figures) * percent / 100
    assert sum(figure <= found for figure in figures) >= needed
    assert found == figures[0] or sum(figure < found for figure in figures) < needed


def test_the_quick_benchmark_of_devices_delivers_to_everybody(tmp_path: Path) -> None:
    done = benchmarks("--quick", "devices_fanout", "--json", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    (table,) = json.loads((tmp_path / "figures").read_text())["devices_fanout"]["tables"]
    assert all(row["values"]["rate"] > 0 for row in table["rows"])
    compared = peers.command() is not None
    assert all(bool(row["bars"]) == compared for row in table["rows"])
    assert (peers.MISSING in table["note"]) != compared


def test_the_quick_benchmark_of_puts_beside_bulk_writes_its_figures(tmp_path: Path) -> None:
    done = benchmarks("--quick", "flight_mixed", "--json", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    (mixed,) = json.loads((tmp_path / "figures").read_text())["flight_mixed"]["tables"]
    assert [row["values"]["beside"] for row in mixed["rows"] if row["bars"]] == ["bulk", "bulk"]
    for row in mixed["rows"]:
        values = row["values"]
        assert 0 < values["p50_ms"] <= values["p99_ms"] <= values["max_ms"]
        assert bool(row["bars"]) == bool(values["written"]) == bool(values["read"])


@pytest.mark.soak
def test_the_quick_benchmark_of_reading_writes_its_figures(tmp_path: Path) -> None:
    done = benchmarks("--quick", "flight_read", "--json", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    (read,) = json.loads((tmp_path / "figures").read_text())["flight_read"]["tables"]
    assert [len(row["bars"]) for row in read["rows"]] == [2, 2, 0]
    assert all(row["values"]["rate"] > 0 for row in read["rows"])


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_the_quick_benchmarks_of_spark_share_a_session_and_leave_nothing(tmp_path: Path) -> None:
    names = [name for name in BENCHMARKS if name.startswith("spark_")]
    figures, drawn = tmp_path / "figures", tmp_path / "drawn"
    done = benchmarks(
        *("--quick", *names, "--json", str(figures), "--plot-spark", str(drawn), "--folder", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(figures.read_text())
    (read, memory), (stream,), (sink,), (tasks,) = (results[name]["tables"] for name in names)
    assert [bool(row["bars"]) for row in read["rows"]] == [True, False, True, False, False, False]
    assert all(row["values"]["before"] > 0 for row in memory["rows"])
    assert [row["values"]["batches"] for row in stream["rows"]] == [1, 3]
    assert [row["values"]["sink"] for row in sink["rows"] if row["bars"]] == ["Stafeta"] * 3
    for table in (read, stream, sink, tasks):
        assert "spark.driver.memory=" in table["note"]
        assert all(row["values"]["rate"] > 0 for row in table["rows"])
    assert "batchRows" in drawn.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"figures", "drawn"}


def test_a_benchmark_without_its_peer_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "command", lambda: None)
    assert peers.about() == peers.MISSING
    with pytest.raises(BrokerFailed, match="make peers"), peers.Mosquitto(tmp_path):
        pass


def test_packets_of_mqtt_are_as_the_standard_has_them() -> None:
    assert mqtt.connect("ab", clean=True) == b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab"
    assert mqtt.connect("ab", clean=False)[9] == 0
    assert mqtt.subscribe("a/b", 1) == b"\x82\x08\x00\x01\x00\x03a/b\x01"
    short = Reading("a", STRING, b"hi")
    assert mqtt.publish(short) == b"\x30\x05\x00\x01ahi"
    assert mqtt.publish(short, 258) == b"\x32\x07\x00\x01a\x01\x02hi"
    assert mqtt.publish(Reading("a", STRING, b"x" * 318))[:3] == b"\x30\xc1\x02"


@given(st.integers(1, 9), st.integers(0, 400))
def test_every_message_is_acknowledged_once_however_the_stream_is_cut(total: int, cut: int) -> None:
    reading = Reading("a", STRING, b"x" * 40)
    stream = b"".join(mqtt.publish(reading, identifier) for identifier in range(1, total + 1))
    cut = min(cut, len(stream))
    here, there = socket.socketpair()
    with here, there:
        mqtt.acknowledge(here, reading, memoryview(stream)[:cut], 0)
        mqtt.acknowledge(here, reading, memoryview(stream), cut)
        here.shutdown(socket.SHUT_WR)
        answers = there.recv(4 * total, socket.MSG_WAITALL)
        assert answers == b"".join(b"\x40\x02\x00" + bytes([each]) for each in range(1, total + 1))
        assert there.recv(1) == b""


def test_a_paced_publisher_sends_every_reading_in_turn_with_its_number() -> None:
    total = 3 * len(SIXTEEN) + 5
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        line.settimeout(PATIENCE)
        publisher = Datagrams(line.getsockname(), SIXTEEN, [devices.datagram(each) for each in SIXTEEN])
        sent = paced(publisher, 10_000, total)
        publisher.close()
        got = [line.recv(2000) for _ in range(total)]
    assert sent.totals[-1] == publisher.sent == total
    for place, datagram in enumerate(got):
        reading = SIXTEEN[place % len(SIXTEEN)]
        assert datagram[:51] == reading.topic.encode().ljust(50, b"\0") + bytes([reading.kind])
        content = number(place) + reading.content[DIGITS:] if reading.numbered else reading.content
        assert datagram[51:] == content


def test_readings_that_are_lost_doubled_or_cut_are_noticed() -> None:
    size = 8 + PAYLOAD
    stream = b"".join(b"\0" * 8 + number(place) + b"x" * (PAYLOAD - DIGITS) for place in range(5, 9))
    assert in_order(memoryview(stream), size, 5)
    assert not in_order(memoryview(stream), size, 4)
    assert not in_order(memoryview(stream[:size] + stream[2 * size :]), size, 5)
    assert not in_order(memoryview(stream[:size] + stream), size, 5)
    assert not in_order(memoryview(stream[:-1]), size, 5)


def benchmarks(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
