"""Frames and what they say: any bytes, cut anywhere."""

import json
import pickle
import re
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.doors.frames.codec import (
    HEAD,
    MAX_BODY,
    Command,
    Commands,
    ListTopics,
    Publish,
    Subscribe,
    Unsubscribe,
    frame,
    topics_frame,
)
from stafeta.doors.frames.serializers import SERIALIZERS, XML, Serializer
from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind
from tests.doors.frames.plain_data import JSON_VALUES, PLAIN_DATA, WHOLE


def framed(code: int, body: bytes) -> bytes:
    return HEAD.pack(code, len(body)) + body


def told(data: bytes, cuts: Sequence[int] = ()) -> tuple[list[Command], str | None]:
    """The commands in a stream that is cut at these places, and why the rest cannot be read."""
    commands = Commands()
    found: list[Command] = []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        commands.add(data[start:end])
        try:
            while (command := commands.next()) is not None:
                found.append(command)
        except InvalidFrame as error:
            return found, str(error)
    return found, None


# --- what cannot be read


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x03", "A frame has the serializer 3; there are 0 (JSON), 1 (XML), 2 (pickle)."),
        (b"GET / HTTP/1.1\r\n", "A frame has the serializer 71"),
        (b"\x00\x00\x00", "length 0"),
        (framed(0, b'{"command":"listTopics"}') + b"\x01", "this connection's is 0 (JSON)"),
        (framed(0, b"{}"), "under 'command' or 'type'; it has neither"),
        (framed(0, b'{"command":"listTopics","type":"listTopics"}'), "it has both"),
        (framed(0, b'{"command":"PUBLISH"}'), "'PUBLISH' is no verb; the verbs are subscribe, unsubscribe"),
        (framed(0, b'{"command":null}'), "None is no verb"),
        (framed(0, b'{"command":["publish"]}'), "['publish'] is no verb"),
        (framed(0, b'{"command":"publish","topic":"/a"}'), "A publish has no 'message'."),
        (framed(0, b'{"command":"publish","message":1}'), "'topic' must be text."),
        (framed(0, b'{"command":"subscribe","topic":["/a"]}'), "'topic' must be text."),
        (framed(1, b"<x/>"), "neither"),
        (framed(1, b"<x"), "The body is not XML"),
        (framed(2, b"cos\nsystem\n."), "The pickle names os.system"),
        (framed(2, pickle.dumps({b"command": "listTopics"})), "neither"),
        (
            framed(2, pickle.dumps({"command": "publish", "topic": "/a", "message": 10**5000})),
            "more than 4,300 digits",
        ),
    ],
)
def test_a_stream_that_cannot_be_read_says_why(data: bytes, why: str) -> None:
    commands, reason = told(data)
    assert reason is not None
    assert re.search(re.escape(why), reason), reason
    assert len(commands) == (1 if "this connection's" in why else 0)


def test_what_came_before_it_is_read() -> None:
    good = framed(0, b'{"command":"subscribe","topic":"/a"}')
    commands, reason = told(good + good + framed(0, b"{"))
    assert commands == [Subscribe("/a")] * 2
    assert reason is not None


def test_half_a_frame_is_no_command_yet() -> None:
    data = framed(0, b'{"command":"listTopics"}')
    commands = Commands()
    for byte in data[:-1]:
        commands.add(bytes((byte,)))
        assert commands.next() is None
    assert commands.unfinished
    commands.add(data[-1:])
    assert commands.next() == ListTopics()
    assert not commands.unfinished


# --- what is read


def dumped(serializer: Serializer, **fields: object) -> bytes:
    return framed(serializer.code, serializer.dump(fields))


@pytest.mark.parametrize("key", ["command", "type"])
@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda serializer: serializer.name)
def test_every_verb_is_read_under_either_key(serializer: Serializer, key: str) -> None:
    commands = Commands()
    assert commands.key == "command", "before anything was said"
    for fields in (
        {key: "subscribe", "topic": "/a"},
        {key: "unsubscribe", "topic": "/a"},
        {key: "publish", "topic": "/a", "message": "ș"},
        {key: "listTopics", "more": "is ignored"},
    ):
        commands.add(dumped(serializer, **fields))
    told = [commands.next() for _ in range(5)]
    assert told == [
        Subscribe("/a"),
        Unsubscribe("/a"),
        Publish("/a", Kind.STRING, "ș".encode()),
        ListTopics(),
        None,
    ]
    assert (commands.key, commands.serializer) == (key, serializer)


def _streams(serializer: Serializer) -> st.SearchStrategy[bytes]:
    values = {"JSON": JSON_VALUES, "XML": WHOLE, "pickle": PLAIN_DATA}[serializer.name]
    verbs = st.sampled_from(["subscribe", "unsubscribe", "listTopics", "publish"])
    frames = st.builds(
        lambda verb, topic, message: dumped(serializer, command=verb, topic=topic, message=message),
        verbs,
        WHOLE,
        values,
    )
    return st.lists(frames | st.binary(max_size=4), max_size=6).map(b"".join)


STREAMS = st.one_of(*map(_streams, SERIALIZERS), st.binary())


@given(STREAMS, st.data())
def test_a_stream_says_the_same_however_it_is_cut(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream))))
    assert told(stream, cuts) == told(stream)
    assert told(stream, range(len(stream))) == told(stream)


@pytest.mark.parametrize("piece", [1, 1000])
def test_large_frames_in_small_pieces_take_time_in_proportion(piece: int) -> None:
    body = b'{"command":"publish","topic":"/a","message":"%b"}' % (b"x" * (MAX_BODY - 60))
    stream = framed(0, body) * 8
    begin = time.process_time()
    assert len(told(stream, range(0, len(stream), piece))[0]) == 8
    assert time.process_time() - begin < 5


# --- what is written


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda serializer: serializer.name)
def test_a_frame_that_would_be_too_large_is_refused(serializer: Serializer) -> None:
    with pytest.raises(InvalidMessage, match=re.escape("a frame holds at most 65,535")):
        frame(serializer, {"command": "publish", "topic": "/a", "message": "x" * MAX_BODY})
    made = frame(serializer, {"command": "publish", "topic": "/a", "message": "x" * (MAX_BODY - 80)})
    assert told(made)[0] == [Publish("/a", Kind.STRING, b"x" * (MAX_BODY - 80))]


@pytest.mark.parametrize("count", [0, 1, 1_000, 30_000])
@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda serializer: serializer.name)
def test_an_answer_has_as_many_topics_as_fit(serializer: Serializer, count: int) -> None:
    names = [f"/topic/{number:06}" for number in range(count)]
    made, fitting = topics_frame(serializer, "type", names)
    fields = serializer.load(made[HEAD.size :])
    topics = json.loads(fields["topics"]) if serializer is XML else fields["topics"]
    assert fields["type"] == "listTopics"
    assert topics == names[:fitting]
    assert HEAD.unpack_from(made) == (serializer.code, len(made) - HEAD.size)
    assert (
        fitting == count
        or len(serializer.dump({"type": "listTopics", "topics": names[: fitting + 1]})) > MAX_BODY
    )
