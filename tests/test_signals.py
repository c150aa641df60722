"""What a broker does when it is told to leave, or to read its configuration again."""

import signal
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer
from tests.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_leave_it_answers_what_it_has_taken_and_leaves(
    tmp_path: Path, number: signal.Signals
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Peer(broker.address) as peer:
            assert peer.ask("SUB a t") == "ACK"
            for _ in range(2000):
                peer.send("PUT t message")
            assert peer.receive() == "ACK"
            assert broker.stop(number) == 0
            answered = 1
            peer.socket.rcvtimeo = 200
            while peer.socket.poll(200):
                assert peer.receive() == "ACK"
                answered += 1
        broker.start()
        with Peer(broker.address) as peer:
            assert len(peer.got("a", "t")) >= answered, "what was acknowledged is there"
        assert "stopped" in broker.stderr


def test_it_leaves_while_a_get_waits(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.ask("SUB a t")
        peer.send(
            '{"type": "GET", "topic": "t", "client_id": "a", "body": {"last_publication_id": 0, "wait": 30}}'
        )
        with Peer(broker.address) as other:
            assert other.ask("LOGIN") == "LOGIN:1"
        assert broker.stop() == 0


def test_sighup_reloads_logs_and_retention(tmp_path: Path) -> None:
    file = tmp_path / "stafeta.toml"
    file.write_text('log_level = "error"\n')
    with BrokerProcess(tmp_path / "data", "--config", str(file)) as broker:
        with Peer(broker.address) as peer:
            assert peer.ask("SUB a t") == "ACK"
            for _ in range(5):
                assert peer.ask("PUT t x") == "ACK"
            file.write_text('log_level = "info"\n[topics."#"]\nkeep = "2 messages"\n')
            broker.send_signal(signal.SIGHUP)
            broker.wait_for_line("the configuration was reloaded")
            assert peer.ask("UNSUB a t") == "ACK"
            wait_until(lambda: peer.acked("TOPICS")["topics"] == [topic("t", 4, 6)])
        assert "connected" not in broker.stderr.splitlines()[0]


def topic(name: str, first: int, next_: int) -> dict[str, object]:
    return {"name": name, "first": first, "next": next_, "subscriptions": 0}


def test_sighup_with_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "stafeta.toml"
    file.write_text("")
    with BrokerProcess(tmp_path / "data", "--config", str(file)) as broker:
        file.write_text('log_level = "loud"\n')
        broker.send_signal(signal.SIGHUP)
        line = broker.wait_for_line("the configuration was not reloaded")
        assert "loud" in line
        with Peer(broker.address) as peer:
            assert peer.ask("SUB a t") == "ACK"
