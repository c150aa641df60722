"""The broker's own troubles: a disk that takes no more, more than it can store at once, its end."""

import resource
import subprocess
import sys
from pathlib import Path

import psutil

from tests.brokers import BrokerProcess
from tests.doors.frames.peers import PICKLE, Peer, Place
from tests.waiting import PATIENCE, wait_until


def test_a_publisher_whose_messages_cannot_be_stored_notices(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as publisher, Peer(place) as subscriber, Peer(place) as asking:
            subscriber.subscribe("/a")
            publisher.publish("/a", "stored")
            assert subscriber.get(1) == [("/a", "stored")]
            process = psutil.Process(broker.pid)
            before = process.rlimit(resource.RLIMIT_FSIZE)
            process.rlimit(resource.RLIMIT_FSIZE, (1, before[1]))  # no file may grow
            for number in range(3):
                with Peer(place) as another:
                    another.publish("/b", number)
                    assert another.is_closed()
            publisher.publish("/a", "lost", "lost too")
            assert publisher.is_closed()
            broker.wait_for_line("the connection is closed, what it said could not be stored: ")
            wait_until(lambda: broker.stderr.count("could not be stored") == 4)  # a line for each connection
            process.rlimit(resource.RLIMIT_FSIZE, before)
            assert asking.topics() == ["/a"], "nothing is half there"
            asking.publish("/a", "stored again")
            assert subscriber.get(1) == [("/a", "stored again")], "whoever only reads stays"


def test_a_publisher_that_is_faster_than_the_disk_is_slowed_down(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "limits.max_pending=1KiB", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place, PICKLE) as publisher, Peer(place) as subscriber:
            subscriber.subscribe("/a")
            publisher.publish("/a", *range(3000))
            assert subscriber.get(3000) == [("/a", number) for number in range(3000)]


def test_connections_end_with_the_broker_and_what_was_said_is_kept(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as subscriber, Peer(place) as publisher, Peer(place) as silent:
            subscriber.subscribe("/a")
            publisher.publish("/a", *range(100))
            assert subscriber.get(100)
            assert broker.stop() == 0
            assert subscriber.is_closed()
            assert publisher.is_closed()
            assert silent.is_closed()
        broker.start()
        with Peer(place) as subscriber:
            subscriber.say("subscribe", topic="/a")
            assert subscriber.get(1) == [("/a", 99)]


def test_what_was_said_just_before_leaving_is_kept(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as subscriber:
            subscriber.subscribe("/a")
            with Peer(place) as publisher:
                publisher.publish("/a", *range(2000))
            assert subscriber.get(2000) == [("/a", number) for number in range(2000)]


def test_the_subscriptions_of_a_connection_end_with_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as publisher:
            publisher.publish("/a", 1)
            publisher.topics()
            process = psutil.Process(broker.pid)
            idle = process.num_fds()
            for _ in range(20):
                with Peer(place) as subscriber:
                    subscriber.say("subscribe", topic="/a")
                    assert subscriber.get(1) == [("/a", 1)]
            wait_until(lambda: process.num_fds() == idle)
            publisher.publish("/a", 2)
            assert publisher.topics() == ["/a"]


def test_an_address_that_is_taken_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        _, port = broker.door("frames")
        command = [sys.executable, "-m", "stafeta", "serve", "--data", str(tmp_path / "other")]
        command += [
            "--zeromq",
            "off",
            "--devices",
            "off",
            "--flight",
            "off",
            "--http",
            "off",
            "--frames",
            str(port),
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert found.returncode == 2
    assert f"The frames door cannot listen on 127.0.0.1:{port}: Address already in use." in found.stderr
