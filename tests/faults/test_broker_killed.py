"""A broker killed at any instant: what was acknowledged is there, once, in order, and a retry is answered as before."""

import json
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import LazyPirate, Peer, ack_body, read_get, request
from tests.faults.dying_broker import CHECKPOINT_POINTS, POINTS
from tests.fork_server import FORKS, Program
from tests.waiting import PATIENCE, wait_until

# --- killed under load

KILLS = 32
TOPICS = ["load/a", "load/b"]


class Load:
    """Threads that put and get for as long as the broker is being killed, and what each of them has seen."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.over = threading.Event()  # no more kills: finish what is begun
        self.put_over = threading.Event()  # no more messages: read to the end
        self.acknowledged: dict[str, list[tuple[int, str]]] = {}  # by "topic producer": id, text
        self.received: dict[str, list[tuple[int, str]]] = {}  # by "topic subscriber"
        self.retries: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    def put_counted(self, pirate: LazyPirate, name: str, topic: str, counters: Iterator[int]) -> None:
        """A producer with one request outstanding, and a counter a message."""
        done = self.acknowledged.setdefault(f"{topic} {name}", [])
        for number, counter in enumerate(counters):
            if self.over.is_set():
                break
            text = f"{name} {number}"
            reply = pirate.ask(request("PUT", topic, name, counter=counter, publication=text))
            done.append((acked(reply)["current_publication_id"], text))

    def put_with_client(self, _: LazyPirate, name: str, topic: str) -> None:
        """Stafeta's own client, which keeps what it sends in a folder; in parcels."""
        done = self.acknowledged.setdefault(f"{topic} {name}", [])
        number = 0
        with Client(self.broker.address, self.folder / name, timeout=1, retries=1000) as client:
            while not self.over.is_set():
                texts = [f"{name} {number + at}" for at in range(50)]
                client.put_many(topic, texts)
                number += len(texts)
                done += [(0, text) for text in texts]  # the parcels of others may lie between

    def get_text(self, pirate: LazyPirate, name: str, topic: str) -> None:
        """Gets and acknowledges in the text dialect; what comes again because the ACK was lost has a known id."""
        seen = self.received[f"{topic} {name}"] = []
        while True:
            finish = self.put_over.is_set()
            messages = read_get(pirate.ask(f"GET {name} {topic}"))
            seen += [message for message in messages if not seen or message[0] > seen[-1][0]]
            if messages:
                ids = ",".join(str(id_) for id_, _ in messages)
                assert pirate.ask(f"ACK {name} {topic} {ids}") == "ACK"
            elif finish:
                return

    def get_json(self, pirate: LazyPirate, name: str, topic: str) -> None:
        """Gets message by message; the last id goes with the next GET as its acknowledgement."""
        seen = self.received[f"{topic} {name}"] = []
        last = 0
        while True:
            finish = self.put_over.is_set()
            body = request("GET", topic, name, last_publication_id=last, limit=500, wait=0.2)
            found = acked(pirate.ask(body))["publications"]
            seen += [(one["id"], one["text"]) for one in found]
            last = seen[-1][0] if seen else 0
            if finish and not found:
                return

    def get_with_client(self, _: LazyPirate, name: str, filter_: str) -> None:
        """Stafeta's own client on a filter, killed and made anew now and then."""
        seen = self.received[f"{filter_} {name}"] = []
        while True:
            with Client(self.broker.address, self.folder / name, timeout=1, retries=1000) as client:
                for _turn in range(20):
                    finish = self.put_over.is_set()
                    found = client.get_many(filter_, wait=0.2)
                    client.ack(found)
                    seen += [(one.id, one.text) for one in found]
                    if finish and not found:
                        return

    def go_on(self, count: int) -> None:
        """Waits until so many more messages are acknowledged."""
        goal = sum(map(len, self.acknowledged.values())) + count
        wait_until(lambda: sum(map(len, self.acknowledged.values())) >= goal or self.over.is_set())

    def start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            with LazyPirate(self.broker.address, 0.5, 1000) as pirate:
                try:
                    work(pirate, *arguments)
                except BaseException as error:  # noqa: BLE001 - told by the test itself
                    self.errors.append(error)
                    self.over.set()
                    self.put_over.set()
                self.retries[threading.current_thread().name] += pirate.retries

        thread = threading.Thread(target=run, name=f"{work.__name__} {arguments[0]}")
        thread.start()
        return thread


@pytest.mark.slow
def test_whatever_was_acknowledged_comes_once_and_in_order_through_32_kills(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    load = Load(broker, tmp_path)
    chance = random.Random(7)
    with Peer(broker.address) as peer:
        for topic in TOPICS:
            for name in ("text", "json"):
                peer.acked("SUB", topic, name)
    with Client(broker.address, tmp_path / "wide") as wide:
        wide.subscribe("load/#")
    begin = time.monotonic()
    putting = [
        load.start(load.put_counted, "upwards", TOPICS[0], iter(range(1, 1 << 60))),
        load.start(load.put_counted, "random", TOPICS[0], iter(lambda: chance.randint(1, 10_000_000), None)),
        load.start(load.put_counted, "other", TOPICS[1], iter(range(1, 1 << 60))),
        load.start(load.put_with_client, "client", TOPICS[0]),
        load.start(load.put_with_client, "second", TOPICS[1]),
    ]
    getting = [load.start(load.get_text, "text", topic) for topic in TOPICS]
    getting += [load.start(load.get_json, "json", topic) for topic in TOPICS]
    getting += [load.start(load.get_with_client, "wide", "load/#")]
    kills = 0
    while kills < KILLS and not load.over.is_set():
        load.go_on(50)
        load.over.wait(chance.random() * 0.2)  # anywhere between two replies
        broker.restart()
        kills += 1
    load.over.set()
    for thread in putting:
        thread.join()
    load.put_over.set()
    for thread in getting:
        thread.join()
    assert not load.errors, load.errors
    counts = (
        f"{kills} kills in {time.monotonic() - begin:.1f} s, {sum(load.retries.values())} retries; "
        f"{sum(map(len, load.acknowledged.values()))} messages acknowledged "
        f"({', '.join(f'{key}: {len(done)}' for key, done in load.acknowledged.items())}); "
        f"received {', '.join(f'{key}: {len(seen)}' for key, seen in load.received.items())}"
    )
    print(counts)
    assert kills == KILLS
    for subscriber, seen in load.received.items():
        filter_ = subscriber.split()[0]
        ids = [id_ for id_, _ in seen]
        assert ids == sorted(set(ids)), f"{subscriber}: not in order, or more than once; {counts}"
        if filter_ in TOPICS:
            assert ids == list(range(1, len(ids) + 1)), f"{subscriber}: with gaps; {counts}"
        for producer, done in load.acknowledged.items():
            topic, name = producer.split()
            if filter_ not in (topic, "load/#"):
                continue
            mine = [(id_, text) for id_, text in seen if text.startswith(f"{name} ")]
            assert [text for _, text in mine] == [text for _, text in done], (
                f"{producer} to {subscriber}; {counts}"
            )
            if filter_ == topic and done and done[0][0]:
                assert mine == done, (
                    f"{producer} to {subscriber}: under other ids than acknowledged; {counts}"
                )
    assert broker.stop() == 0


# --- killed at a point


def insist(broker: BrokerProcess, body: str) -> str:
    with LazyPirate(broker.address) as pirate:
        return pirate.ask(body)


class DyingBroker(BrokerProcess):
    """Dies at a point once a request with a mark has come."""

    point = ""
    mark = ""

    def _spawn(self) -> Program:
        program = str(Path(__file__).with_name("dying_broker.py"))
        words = [program, self.point, self.mark, "serve", *self.serve_words()]
        return FORKS.start(words, {}, read_errors=True)

    def die_at(self, point: str, mark: str) -> None:
        """From the next start on."""
        self.point, self.mark = point, mark

    def has_died(self) -> None:
        """Waits until it has killed itself."""
        process = self._process
        assert process is not None
        assert process.wait(PATIENCE) == -signal.SIGKILL, self.stderr
        self.kill()


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[DyingBroker]:
    # Nothing is collected meanwhile, so that the first to come to the point is the marked request.
    broker = DyingBroker(tmp_path / "data", "--set", "store.sweep=1h")
    yield broker
    broker.kill()


def ask_until_it_dies(broker: DyingBroker, body: str) -> str | None:
    """Asks a broker that will die of it; the reply, if that got out before."""
    with Peer(broker.address, zmq.DEALER, 0.05) as peer:
        peer.send(body)
        broker.has_died()
        try:
            return peer.receive()
        except zmq.Again:
            return None


def marked(mark: str, kind: str, topic: str = "", client: str = "", **body: object) -> str:
    return json.dumps(json.loads(request(kind, topic, client, **body)) | {"mark": mark})


def acked(reply: str) -> dict[str, Any]:
    return ack_body(json.loads(reply))


@pytest.mark.parametrize("point", POINTS)
def test_a_retry_is_answered_as_the_first_time_wherever_the_broker_was_killed(
    dying: DyingBroker, point: str
) -> None:
    dying.die_at(point, "PUT 1")
    dying.start()
    with Peer(dying.address) as peer:
        peer.acked("SUB", "t", "reader")
        peer.acked("SUB", "t", "leaver")
        assert peer.acked("PUT", "t", "p", counter=500, publication="before") == {"current_publication_id": 1}
        peer.acked("PUT", "t", "q", sequence=1, publications=["q1"])
        given = {peer.acked("REQUEST_ID")["id"]}
    stored = ["before", "q1"]

    def killed_while(body: str, next_mark: str) -> str:
        """Asks, restarts, asks again; the reply. Whatever got out the first time was the same."""
        first = ask_until_it_dies(dying, body)
        dying.die_at(point, next_mark)
        dying.start()
        second = insist(dying, body.replace('"mark"', '"again"').replace(dying.mark, ""))
        assert first in (None, second)
        return second

    # A PUT with a counter that is lower than the last; then one in a sequence, half of it known.
    body = marked("PUT 1", "PUT", "t", "p", counter=7, publication="counted")
    assert acked(killed_while(body, "PUT 2")) == {"current_publication_id": 3}
    assert acked(insist(dying, body)) == {"current_publication_id": 3}
    body = marked("PUT 2", "PUT", "t", "q", sequence=1, publications=["q1", "q2", "q3"])
    assert acked(killed_while(body, "SUB")) == {"first_publication_id": 2, "current_publication_id": 5}
    stored += ["counted", "q2", "q3"]
    # A SUB: from here on.
    body = marked("SUB", "SUB", "t", "late", counter=1)
    assert acked(killed_while(body, "ACK")) == {"last_publication_id": 5}
    # An ACK of some.
    body = marked("ACK", "ACK", "t", "reader", ids=[2, 4])
    assert killed_while(body, "UNSUB") == '{"type":"ACK"}'
    # An UNSUB: the retry may find that it is done.
    body = marked("UNSUB", "UNSUB", "t", "leaver")
    first = ask_until_it_dies(dying, body)
    assert first in (None, '{"type":"ACK"}')
    dying.die_at(point, "REQUEST_ID")
    dying.start()
    assert insist(dying, request("UNSUB", "t", "leaver")) in (
        '{"type":"ACK"}',
        '{"type":"NAK","body":{"error_message":"Client \'leaver\' has no subscription to \'t\'."}}',
    )
    # An id: another one, never one that was given before.
    first = ask_until_it_dies(dying, marked("REQUEST_ID", "REQUEST_ID"))
    if first is not None:
        given.add(acked(first)["id"])
    dying.die_at(point, "no more")
    dying.start()
    with Peer(dying.address) as peer:
        assert peer.acked("REQUEST_ID")["id"] not in given
        assert peer.acked("PUT", "t", "p", counter=8, publication="after") == {"current_publication_id": 6}
        stored.append("after")
        assert peer.refused("GET", "t", "leaver", last_publication_id=0)
        assert peer.got("reader", "t") == [(id_, stored[id_ - 1]) for id_ in (1, 3, 5, 6)]
        assert peer.got("late", "t") == [(6, "after")]
    assert dying.stop() == 0
    dying.start()
    with Peer(dying.address) as peer:
        assert peer.got("reader", "t") == [(id_, stored[id_ - 1]) for id_ in (1, 3, 5, 6)]


@pytest.mark.parametrize("point", CHECKPOINT_POINTS)
def test_a_checkpoint_may_be_killed_at_any_point(tmp_path: Path, point: str) -> None:
    topics = ["a", "b", "c"]
    sent: dict[str, list[str]] = {topic: [] for topic in topics}
    options = ("--set", "store.sweep=1h", "--set", "store.checkpoint_rows=30")
    broker = DyingBroker(tmp_path / "data", *options)
    broker.die_at(point, "the last")

    def put(peer: Peer, topic: str, text: str) -> None:
        sent[topic].append(text)
        body = peer.acked("PUT", topic, "p", counter=len(sent[topic]), publication=text)
        assert body == {"current_publication_id": len(sent[topic])}

    with broker:
        with Peer(broker.address) as peer:
            for topic in topics:
                peer.acked("SUB", topic, "reader")
            for number in range(30):  # with the last of them it begins
                put(peer, topics[number % 3], f"message {number}")
            if "checkpoint" in point:
                for topic in topics:  # a slice each
                    put(peer, topic, "with a slice")
        sent["a"].append("the last")
        body = request("PUT", "a", "p", counter=len(sent["a"]), publication="the last")
        assert ask_until_it_dies(broker, body) is None
        unfinished, mark = _checkpoint(broker.data)
        committed = (
            "a slice has been committed",
            "the checkpoint is finished",
            "the checkpoint has been written",
        )
        assert unfinished == (point in committed)
        assert (mark > 0) == (point == "the checkpoint has been committed")
        broker.die_at(point, "never")
        broker.start()
        assert acked(insist(broker, body)) == {"current_publication_id": len(sent["a"])}
        _all_there(broker, sent)
        with Peer(broker.address) as peer:
            for _ in range(20):  # through the checkpoint that comes now
                for topic in topics:
                    put(peer, topic, "later")
        broker.kill()
        broker.start()
        _all_there(broker, sent)
        assert broker.stop() == 0
        broker.start()
        _all_there(broker, sent)


def _checkpoint(data: Path) -> tuple[bool, int]:
    """Whether a part of a checkpoint is in the index, and up to which block it is whole."""
    with closing(sqlite3.connect(data / "stafeta.db")) as connection:
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    return bool(meta.get("unfinished")), int(meta.get("checkpoint", 0))


def _all_there(broker: BrokerProcess, sent: dict[str, list[str]]) -> None:
    with Peer(broker.address) as peer:
        for topic, texts in sent.items():
            assert peer.got("reader", topic) == list(enumerate(texts, 1))
            for counter in range(len(texts) - 7, len(texts) + 1):  # the last 8 are recognised
                body = peer.acked("PUT", topic, "p", counter=counter, publication=texts[counter - 1])
                assert body == {"current_publication_id": counter}
