"""What a stranger sends cannot use up more than its size says, nor keep others from being served."""

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, refused, rows_of

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose memory is looked at."""
    data = tmp_path_factory.mktemp("strangers") / "data"
    with BrokerProcess(data, "--durability", "os", doors=("flight",)) as process:
        yield process


@pytest.fixture
def guest(alone: BrokerProcess) -> Iterator[Peer]:
    with Peer(alone.door("flight")) as peer:
        yield peer


def views_of(value: bytes, count: int) -> Any:
    """The same value so many times, which is there once."""
    view = struct.pack("<i4sii", len(value), value[:4], 0, 0)
    return pa.Array.from_buffers(
        pa.binary_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(value)]
    )


def test_views_of_one_value_count_as_often_as_they_are_there(guest: Peer, topic: str) -> None:
    with refused() as told:
        guest.put(topic, pa.record_batch({"payload": views_of(bytes(8 * MEGABYTE), 512)}))
    assert "flight.max_batch" in told.message
    short = views_of(b"x" * 100, 1000)
    guest.subscribe("reader", topic)
    guest.put(topic, pa.record_batch({"payload": short.slice(10, 500)}))
    assert guest.texts(topic) == ["x" * 100] * 500


@pytest.mark.parametrize("column", ["payload", "kind", "topic"])
def test_a_dictionary_counts_with_its_words_spelt_out(guest: Peer, topic: str, column: str) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * MEGABYTE]))
    columns = {"payload": pa.array(["x"] * 1000)} | {column: words}
    with refused() as told:
        guest.put(topic, pa.record_batch(columns))
    assert "flight.max_batch" in told.message


def test_what_is_set_anew_does_not_stay_in_memory(alone: BrokerProcess, guest: Peer, topic: str) -> None:
    guest.subscribe("reader", topic)
    guest.put_texts(topic, ["first"])
    guest.texts(topic)  # read, so that what comes stays in memory for a while
    before = psutil.Process(alone.pid).memory_info().rss
    with guest.putting(topic, rows_of(["x"], source=pa.array(["y"])).schema) as stream:
        for _ in range(20):
            stream.send(rows_of(["x"], source=pa.array(["y" * 20 * MEGABYTE])))
            stream.answer()
    grown = psutil.Process(alone.pid).memory_info().rss - before
    assert grown < 200 * MEGABYTE, "400 MB have come, of which 20 bytes are wanted"


def test_millions_of_empty_messages_are_read_in_small_portions(
    alone: BrokerProcess, guest: Peer, topic: str
) -> None:
    name = f"{topic}/{'long' * 40}"
    guest.subscribe("reader", name)
    rows = pa.record_batch({"payload": pa.array([b""]).take(pa.array([0] * 3_000_000))})
    guest.put(name, rows)
    before = psutil.Process(alone.pid).memory_info().rss
    assert sum(batch.num_rows for batch in guest.get(name).to_batches()) == 3_000_000
    assert psutil.Process(alone.pid).memory_info().rss - before < 400 * MEGABYTE


def test_no_more_ranges_are_acknowledged_at_once_than_a_cursor_bears(guest: Peer, topic: str) -> None:
    guest.subscribe("reader", topic)
    guest.put_texts(topic, map(str, range(4000)))
    apart = [(topic, at, at + 1) for at in range(1, 4000, 2)]
    with refused() as told:
        guest.ack("reader", topic, *apart)
    assert "at most 1000" in told.message
    guest.ack("reader", topic, *apart[:1000])


def test_more_endpoints_than_anyone_reads_are_refused(guest: Peer, topic: str) -> None:
    for number in range(3):
        guest.subscribe("reader", f"{topic}/{number}")
    with refused() as told:
        guest.info({"filter": f"{topic}/#", "partitions": 9000})
    assert "more than 10000 endpoints" in told.message


def test_a_name_cannot_be_that_of_a_reader_without_one(guest: Peer, topic: str) -> None:
    for number in range(1, 30):
        guest.subscribe(f"~{number}", topic)
        guest.subscribe(f"{number}", topic)
    guest.put_texts(topic, ["a", "b"])
    assert guest.texts({"filter": topic}) == ["a", "b"]
    for number in range(1, 30):
        assert guest.texts({"client": f"~{number}", "filter": topic}) == ["a", "b"]


def test_someone_with_one_message_does_not_wait_for_those_who_pour(tmp_path: Path) -> None:
    pouring = rows_of(["x" * 100] * 10_000)
    stopping = threading.Event()

    def pour(place: tuple[str, int]) -> None:
        with Peer(place, 100) as peer, peer.putting("poured", pouring.schema) as stream:
            while not stopping.is_set():
                for _ in range(20):
                    stream.send(pouring)
                stream.answers(20)

    with BrokerProcess(tmp_path / "data", doors=("flight",)) as broker, Peer(broker.door("flight")) as peer:
        threads = [threading.Thread(target=pour, args=[broker.door("flight")]) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            slowest = 0.0
            for _ in range(20):
                began = time.monotonic()
                peer.put_texts("t", ["one"])
                slowest = max(slowest, time.monotonic() - began)
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
    assert slowest < 10, "with nobody's turn kept it waited for as long as the others poured"
