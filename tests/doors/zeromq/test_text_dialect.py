"""The text dialect, as docs/protocols/zeromq.md has it, through real sockets."""

import pytest

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import GET_REPLY, Peer, read_get
from tests.waiting import wait_until

# --- LOGIN


def test_ids_count_up_and_are_never_given_twice(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        assert [peer.ask("LOGIN") for _ in range(3)] == ["LOGIN:1", "LOGIN:2", "LOGIN:3"]
        assert peer.acked("REQUEST_ID") == {"id": "4"}
    broker.restart()
    with Peer(broker.address) as peer:
        assert peer.ask("LOGIN") == "LOGIN:5"
    assert broker.stop() == 0
    broker.start()
    with Peer(broker.address) as peer:
        assert peer.ask("LOGIN") == "LOGIN:6"


def test_an_id_that_is_in_use_is_not_given(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.ask("SUB 1 t")
        peer.ask("SUB 3 t")
        assert [peer.ask("LOGIN") for _ in range(2)] == ["LOGIN:2", "LOGIN:4"]


# --- SUB, UNSUB


def test_subscribing_creates_the_topic_and_may_be_repeated(peer: Peer, topic: str) -> None:
    assert peer.ask(f"PUT {topic} too early") == "NON_EXISTENT"
    assert peer.ask(f"SUB a {topic}") == "ACK"
    assert peer.ask(f"PUT {topic} now") == "ACK"
    assert peer.ask(f"SUB a {topic}") == "ACK"
    assert peer.got("a", topic) == [(1, "now")]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "two words",
        "trailing ",
        "tab\tin",
        "line\nbreak",
        "no\u00a0break",
        "nul\0",
        "half+wild",
        "x" * 256,
    ],
)
def test_a_name_that_is_not_allowed_is_an_invalid_topic(peer: Peer, name: str) -> None:
    assert peer.ask(f"SUB a {name}") == "INVALID_TOPIC"


def test_a_name_of_255_bytes_is_allowed_whatever_it_is_written_in(peer: Peer, topic: str) -> None:
    name = topic + "ș" * ((255 - len(topic)) // 2)
    assert peer.ask(f"SUB a {name}") == "ACK"
    assert peer.ask(f"PUT {name} ștafetă") == "ACK"
    assert peer.got("a", name) == [(1, "ștafetă")]


def test_unsubscribing(peer: Peer, topic: str) -> None:
    assert peer.ask(f"UNSUB a {topic}") == "NON_EXISTENT"
    assert peer.ask("UNSUB a tab\tin") == "NON_EXISTENT"
    peer.ask(f"SUB a {topic}")
    assert peer.ask(f"UNSUB b {topic}") == "NOT_SUBSCRIBED"
    assert peer.ask(f"UNSUB a {topic}") == "ACK"
    assert peer.ask(f"UNSUB a {topic}") == "NON_EXISTENT"


def test_a_topic_goes_with_its_last_subscriber_and_its_ids_go_on_when_it_is_back(
    peer: Peer, topic: str
) -> None:
    peer.ask(f"SUB a {topic}")
    peer.ask(f"SUB b {topic}")
    for text in ("one", "two"):
        peer.ask(f"PUT {topic} {text}")
    assert peer.ask(f"UNSUB a {topic}") == "ACK"
    assert peer.ask(f"GET a {topic}") == "NOT_SUBSCRIBED"
    assert peer.got("b", topic) == [(1, "one"), (2, "two")]
    assert peer.ask(f"UNSUB b {topic}") == "ACK"
    assert peer.ask(f"PUT {topic} nobody") == "NON_EXISTENT"
    assert peer.ask(f"GET b {topic}") == "NON_EXISTENT"
    peer.ask(f"SUB b {topic}")
    assert peer.ask(f"GET b {topic}") == "NO_MESSAGES"
    assert peer.ask(f"PUT {topic} three") == "ACK"
    assert peer.got("b", topic) == [(3, "three")]


def test_unsubscribing_releases_what_was_held(peer: Peer, topic: str) -> None:
    def held() -> tuple[int, int]:
        (line,) = peer.acked("TOPICS", filter=topic)["topics"]
        return line["first"], line["next"]

    peer.ask(f"SUB slow {topic}")
    peer.ask(f"SUB quick {topic}")
    for number in range(1, 6):
        peer.ask(f"PUT {topic} {number}")
    assert peer.ask(f"ACK quick {topic} 1,2,3,4,5") == "ACK"
    assert held() == (1, 6)
    assert peer.ask(f"UNSUB slow {topic}") == "ACK"
    wait_until(lambda: held() == (6, 6))


# --- PUT


def test_data_keeps_its_spaces(peer: Peer, topic: str) -> None:
    peer.ask(f"SUB a {topic}")
    texts = ["plain", " leading", "trailing ", "  two  and  two  ", "", " ", "lines\r\nand\ttabs\0", "ζ🙂"]
    for text in texts:
        assert peer.ask(f"PUT {topic} {text}") == "ACK"
    assert [text for _, text in peer.got("a", topic)] == texts


@pytest.mark.parametrize("name", ["", "tab\tin", "a/+", "a/#", "*", "x" * 256])
def test_a_name_that_is_not_allowed_cannot_exist(peer: Peer, name: str) -> None:
    assert peer.ask(f"PUT {name} data") == "NON_EXISTENT"


def test_a_message_over_the_limit_is_refused_with_its_size(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.ask("SUB a t")
        limit = 8 << 20
        assert peer.ask("PUT t " + "x" * limit) == "ACK"
        reply = peer.ask("PUT t " + "x" * (limit + 1))
        assert reply.startswith("BAD_REQUEST ")
        assert str(limit + 1) in reply
        ((id_, text),) = peer.got("a", "t")
        assert (id_, len(text)) == (1, limit)


# --- GET


def test_getting(peer: Peer, topic: str) -> None:
    assert peer.ask(f"GET a {topic}") == "NON_EXISTENT"
    assert peer.ask("GET a tab\tin") == "NON_EXISTENT"
    peer.ask(f"SUB a {topic}")
    assert peer.ask(f"GET b {topic}") == "NOT_SUBSCRIBED"
    assert peer.ask(f"GET a {topic}") == "NO_MESSAGES"
    peer.ask(f"PUT {topic} one")
    peer.ask(f"SUB b {topic}")
    peer.ask(f"PUT {topic} two")
    for _ in range(2):  # nothing is taken away by reading it
        assert peer.got("a", topic) == [(1, "one"), (2, "two")]
        assert peer.got("b", topic) == [(2, "two")]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("plain", "1::plain"),
        ("", "1::"),
        ("a:b", "1::a::b"),
        (":/", "1::::/"),
        (":", "1::::"),
        ("::", "1::::::"),
        ("/", "1::/"),
        ("ends with :", "1::ends with ::"),
    ],
)
def test_every_colon_of_an_entry_is_doubled(peer: Peer, topic: str, text: str, entry: str) -> None:
    peer.ask(f"SUB a {topic}")
    peer.ask(f"PUT {topic} {text}")
    assert peer.ask(f"GET a {topic}") == entry
    peer.ask(f"PUT {topic} {text}")
    reply = peer.ask(f"GET a {topic}")
    assert reply == f"{entry}:/2{entry[1:]}"
    assert read_get(reply) == [(1, text), (2, text)]


def test_what_does_not_fit_a_reply_comes_with_the_next(peer: Peer, topic: str) -> None:
    peer.ask(f"SUB a {topic}")
    sent = [f"{number}:{'x' * (number * 7 % 300)}" for number in range(1, 101)]
    for text in sent:
        peer.ask(f"PUT {topic} {text}")
    received: list[tuple[int, str]] = []
    while (reply := peer.ask(f"GET a {topic}")) != "NO_MESSAGES":
        assert len(reply) <= GET_REPLY
        messages = read_get(reply)
        received += messages
        assert peer.ask(f"ACK a {topic} {','.join(str(id_) for id_, _ in messages)}") == "ACK"
    assert received == list(enumerate(sent, 1))


def test_a_message_longer_than_a_reply_comes_whole_and_alone(peer: Peer, topic: str) -> None:
    peer.ask(f"SUB a {topic}")
    sent = ["short", "l" * 3 * GET_REPLY, "o" * 3 * GET_REPLY, "short again"]
    for text in sent:
        peer.ask(f"PUT {topic} {text}")
    for expected in ([(1, sent[0])], [(2, sent[1])], [(3, sent[2])], [(4, sent[3])]):
        assert peer.got("a", topic) == expected
        peer.ask(f"ACK a {topic} {expected[0][0]}")


def test_bytes_that_are_no_text_are_written_as_hex(peer: Peer, topic: str) -> None:
    peer.ask(f"SUB a {topic}")
    peer.acked("PUT", topic, "p", kind="bytes", encoding="base64", publication="/0E6/w==")  # ff 41 3a ff
    assert peer.got("a", topic) == [(1, r"\xffA:\xff")]


# --- ACK


def test_acknowledging(peer: Peer, topic: str) -> None:
    assert peer.ask(f"ACK a {topic} 1") == "NON_EXISTENT"
    assert peer.ask("ACK a tab\tin 1") == "NON_EXISTENT"
    peer.ask(f"SUB a {topic}")
    for text in "abcde":
        peer.ask(f"PUT {topic} {text}")
    assert peer.ask(f"ACK b {topic} 1") == "NOT_SUBSCRIBED"
    assert peer.ask(f"ACK a {topic} 4,2") == "ACK"
    assert peer.got("a", topic) == [(1, "a"), (3, "c"), (5, "e")]
    assert peer.ask(f"ACK a {topic} 2,3,3,4") == "ACK"  # some of them again: a retry
    assert peer.got("a", topic) == [(1, "a"), (5, "e")]
    assert peer.ask(f"ACK a {topic} 1,5") == "ACK"
    assert peer.ask(f"GET a {topic}") == "NO_MESSAGES"


def test_acknowledging_what_is_collected_is_a_retry(peer: Peer, topic: str) -> None:
    peer.ask(f"SUB a {topic}")
    peer.ask(f"PUT {topic} one")
    peer.ask(f"ACK a {topic} 1")
    wait_until(lambda: peer.acked("TOPICS", filter=topic)["topics"][0]["first"] == 2)
    assert peer.ask(f"ACK a {topic} 1") == "ACK"


@pytest.mark.parametrize("ids", ["3", "1,3", "3,1", "0", "1,0", "999999999999999999"])
def test_an_id_that_no_message_has_is_a_bad_request_and_nothing_is_acknowledged(
    peer: Peer, topic: str, ids: str
) -> None:
    peer.ask(f"SUB a {topic}")
    peer.ask(f"PUT {topic} one")
    peer.ask(f"PUT {topic} two")
    assert peer.ask(f"ACK a {topic} {ids}").startswith("BAD_REQUEST ")
    assert peer.got("a", topic) == [(1, "one"), (2, "two")]
