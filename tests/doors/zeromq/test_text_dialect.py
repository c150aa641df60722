"""The text dialect, as docs/protocols/zeromq.md has it, through real sockets."""

import json
import random
from collections.abc import Iterator

import pytest
import zmq

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, ack_body, read_get, request
from tests.waiting import wait_until

GET_REPLY = 2048


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short GET replies that collects at once."""
    options = ("--set", f"zeromq.get_reply={GET_REPLY}", "--set", "store.sweep=20ms")
    with BrokerProcess(tmp_path_factory.mktemp("text") / "data", *options) as process:
        yield process


@pytest.fixture(params=[zmq.REQ, zmq.DEALER], ids=["REQ", "DEALER"])
def peer(request: pytest.FixtureRequest, small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address, request.param) as peer:
        yield peer


@pytest.fixture
def dealer(small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address) as peer:
        yield peer


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


# --- anything else


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "'' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"HELLO", "'HELLO' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"login", "'login' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b" LOGIN", "'' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"LOGIN me", "LOGIN takes nothing more, and got 1 words."),
        (b"SUB", "SUB takes an id and a topic, and got 0 words."),
        (b"UNSUB a", "UNSUB takes an id and a topic, and got 1 words."),
        (b"UNSUB a b c", "UNSUB takes an id and a topic, and got 3 words."),
        (b"GET a", "GET takes an id and a topic, and got 1 words."),
        (b"GET a b c", "GET takes an id and a topic, and got 3 words."),
        (b"GET a  b", "GET takes an id and a topic, and got 3 words."),
        (b"PUT", "PUT takes a topic and data: PUT <topic> <data>."),
        (b"PUT t", "PUT takes a topic and data: PUT <topic> <data>."),
        (b"ACK a t", "ACK takes an id, a topic and message ids separated by commas, and got 2 words."),
        (b"ACK a t 1, 2", "ACK takes an id, a topic and message ids separated by commas, and got 4 words."),
        (b"ACK a t 1,,2", "'' is not a message id; ACK takes numbers separated by commas."),
        (b"ACK a t one", "'one' is not a message id; ACK takes numbers separated by commas."),
        (b"ACK a t -1", "'-1' is not a message id; ACK takes numbers separated by commas."),
        ("ACK a t ²".encode(), "'²' is not a message id; ACK takes numbers separated by commas."),
        (
            b"ACK a t " + b"9" * 400,
            f"'{'9' * 20}' is not a message id; ACK takes numbers separated by commas.",
        ),
        (b"PUT t \xff", "The request is not UTF-8: byte 7 cannot be read."),
        (b"SUB  t", "The client id is empty."),
    ],
)
def test_anything_else_is_a_bad_request_that_says_why(peer: Peer, wrong: bytes, why: str) -> None:
    assert peer.ask(wrong) == f"BAD_REQUEST {why}"
    assert peer.ask("LOGIN").startswith("LOGIN:")


def test_a_client_id_that_is_too_long_is_a_bad_request(peer: Peer, topic: str) -> None:
    assert peer.ask(f"SUB {'i' * 255} {topic}") == "ACK"
    assert peer.ask(f"SUB {'i' * 256} {topic}").startswith("BAD_REQUEST The client id ")


def test_more_ids_than_are_allowed_at_once_are_a_bad_request(dealer: Peer, topic: str) -> None:
    reply = dealer.ask(f"ACK a {topic} {','.join(['1'] * 100_001)}")
    assert reply == "BAD_REQUEST ACK has 100001 ids; at most 100000 are allowed at once."


# --- filters


def test_a_filter_reads_all_that_it_matches_by_position(dealer: Peer, topic: str) -> None:
    assert dealer.ask(f"SUB a {topic}/+") == "ACK"
    dealer.ask(f"PUT {topic}/x one")
    dealer.ask(f"PUT {topic}/y two")
    dealer.ask(f"PUT {topic}/x three")
    assert dealer.ask(f"PUT {topic}/x/deeper four") == "NON_EXISTENT"
    messages = dealer.got("a", f"{topic}/+")
    positions = [position for position, _ in messages]
    assert [text for _, text in messages] == ["one", "two", "three"]
    assert positions == sorted(set(positions))
    assert dealer.got("a", f"{topic}/x") == [(1, "one"), (2, "three")]  # by name: with the topic's own ids
    assert dealer.got("a", f"{topic}/y") == [(1, "two")]
    assert dealer.ask(f"ACK a {topic}/+ {positions[1]}") == "ACK"
    assert dealer.got("a", f"{topic}/+") == [messages[0], messages[2]]
    assert dealer.ask(f"ACK a {topic}/x 1") == "ACK"
    assert dealer.got("a", f"{topic}/+") == [messages[2]]
    assert dealer.ask(f"ACK a {topic}/+ {positions[2]},{positions[0]}") == "ACK"
    assert dealer.ask(f"GET a {topic}/+") == "NO_MESSAGES"
    assert dealer.ask(f"ACK a {topic}/+ {positions[2] + 1_000_000}").startswith("BAD_REQUEST ")


def test_a_filter_is_ended_as_it_was_written(dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}/#")
    dealer.ask(f"PUT {topic}/x one")
    assert dealer.ask(f"GET a {topic}/*") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"UNSUB a {topic}/x") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"UNSUB a {topic}/#") == "ACK"
    assert dealer.ask(f"UNSUB a {topic}/#") == "NOT_SUBSCRIBED"
    assert dealer.ask(f"PUT {topic}/x two") == "NON_EXISTENT"


@pytest.mark.parametrize("wild", ["#", "*"])
def test_any_number_of_levels_is_none_too(dealer: Peer, topic: str, wild: str) -> None:
    dealer.ask(f"SUB a {topic}/{wild}")
    for name in (topic, f"{topic}/x", f"{topic}/x/y"):
        assert dealer.ask(f"PUT {name} to {name}") == "ACK"
    texts = [text for _, text in dealer.got("a", f"{topic}/{wild}")]
    assert texts == [f"to {topic}", f"to {topic}/x", f"to {topic}/x/y"]


# --- both dialects, one broker


def test_the_dialects_see_each_others_messages_and_subscriptions(dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}")
    assert dealer.acked("SUB", topic, "b") == {"last_publication_id": 0}
    dealer.ask(f"PUT {topic} in text: ș")
    dealer.acked("PUT", topic, "b", counter=1, publication="in JSON: ș")
    assert dealer.got("a", topic) == [(1, "in text: ș"), (2, "in JSON: ș")]
    assert dealer.got("b", topic) == dealer.got("a", topic)
    single = dealer.acked("GET", topic, "a", last_publication_id=0)
    assert single == {"publication": "in text: ș", "publication_id": 1}
    dealer.acked("GET", topic, "a", last_publication_id=1)
    assert dealer.got("a", topic) == [(2, "in JSON: ș")]
    dealer.ask(f"ACK b {topic} 1")
    assert dealer.acked("SUB", topic, "b") == {"last_publication_id": 1}
    assert dealer.told("UNSUB", topic, "a") == {"type": "ACK"}
    assert dealer.ask(f"GET a {topic}") == "NOT_SUBSCRIBED"


# --- pipelines


def test_replies_come_in_the_order_of_the_requests_whatever_these_are(dealer: Peer, topic: str) -> None:
    chance = random.Random(2)
    stored: list[str] = []
    open_ids: list[int] = []
    known = 0  # what a GET has made known
    expected: list[str | list[tuple[int, str]]] = []

    def ask(wanted: str | list[tuple[int, str]], body: str) -> None:
        dealer.send(body)
        expected.append(wanted)

    ask("ACK", f"SUB a {topic}")
    for number in range(3000):
        match chance.randrange(8):
            case 0 | 1 | 2:
                stored.append(f"message {number}")
                open_ids.append(len(stored))
                ask("ACK", f"PUT {topic} message {number}")
            case 3:
                stored.append(f"counted {number}")
                open_ids.append(len(stored))
                body = request("PUT", topic, "p", counter=number, publication=f"counted {number}")
                ask(f'{{"type":"ACK","body":{{"current_publication_id":{len(stored)}}}}}', body)
            case 4:
                known = len(stored)
                ask([(id_, stored[id_ - 1]) for id_ in open_ids] or "NO_MESSAGES", f"GET a {topic}")
            case 5 if open_ids and open_ids[0] <= known:
                ids = [id_ for id_ in open_ids if id_ <= known]
                done = chance.sample(ids, min(len(ids), chance.randrange(1, 8)))
                open_ids = [id_ for id_ in open_ids if id_ not in done]
                ask("ACK", f"ACK a {topic} {','.join(map(str, done))}")
            case 6:
                ask("ACK", f"SUB a {topic}")
            case _:
                ask(
                    f"BAD_REQUEST 'wrong{number}' is not a request; "
                    "the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK.",
                    f"wrong{number}",
                )
    for wanted in expected:
        reply = dealer.receive()
        if isinstance(wanted, str):
            assert reply == wanted
        else:  # as many as fit the reply, the first ones
            messages = read_get(reply)
            assert messages
            assert messages == wanted[: len(messages)]


def test_a_pipeline_does_not_hold_up_others(small: BrokerProcess, dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}")
    dealer.send(request("GET", topic, "a", last_publication_id=0, wait=30))
    dealer.send("LOGIN")
    with Peer(small.address, zmq.REQ) as other:
        assert other.ask(f"PUT {topic} finally") == "ACK"
    assert ack_body(json.loads(dealer.receive())) == {"publication": "finally", "publication_id": 1}
    assert dealer.receive().startswith("LOGIN:")


def test_replies_stay_in_order_when_they_are_read_late(lasting: BrokerProcess, topic: str) -> None:
    rounds, count, topics = 40, 50, 300
    with Peer(lasting.address) as peer:
        for number in range(topics):
            peer.send(f"SUB a {topic}/{number}")
        assert [peer.receive() for _ in range(topics)] == ["ACK"] * topics
    # More than the door holds for it: some replies wait for it while a later request waits for a message.
    with Peer(lasting.address, deaf=True) as late:
        for number in range(rounds):
            for _ in range(count):
                late.send(request("TOPICS", filter=f"{topic}/+"))
            late.send(request("GET", f"{topic}/{number}", "a", last_publication_id=0, limit=1, wait=0.05))
            late.send("wrong")
        for _ in range(rounds):
            for _ in range(count):
                assert late.receive().startswith('{"type":"ACK","body":{"topics":[')
            assert late.receive() == '{"type":"ACK","body":{"publications":[]}}'
            assert late.receive().startswith("BAD_REQUEST")
