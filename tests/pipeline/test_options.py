"""What a query may say to the source and to the sink, and the sentence it gets for what it may not."""

import re

import pytest

from stafeta.errors import ConfigError
from stafeta.pipeline.connector.options import ReadOptions, WriteOptions

STREAM = True


def reading(streaming: bool = False, /, **options: str) -> ReadOptions:
    return ReadOptions.of({"subscribe": "upb/hall"} | options, streaming=streaming)


def writing(streaming: bool = False, /, **options: str) -> WriteOptions:
    return WriteOptions.of(options, streaming=streaming)


def trouble(streaming: bool = False, /, **options: str) -> str:
    """What a read with these options is told."""
    with pytest.raises(ConfigError) as caught:
        reading(streaming, **options)
    return str(caught.value)


def sink_trouble(streaming: bool = False, /, **options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        writing(streaming, **options)
    return str(caught.value)


def test_a_read_without_subscribe_says_what_to_name() -> None:
    with pytest.raises(ConfigError, match=r"The option 'subscribe' is missing: name a topic or a filter"):
        ReadOptions.of({}, streaming=False)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("subscribe", "", "has an empty name in it"),
        ("subscribe", "a,,b", "has an empty name in it"),
        ("subscribe", "a b", "white space in it, at position 2"),
        ("subscribe", "a/b+", "'b+' mixes a wildcard with text"),
        ("startingOffsets", "first", "neither 'earliest' nor 'latest' nor offsets by topic"),
        ("startingOffsets", "{", "neither 'earliest' nor 'latest' nor offsets by topic"),
        ("startingOffsets", "[1]", "[1] is no object of offsets by topic"),
        ("startingOffsets", "23", "23 is no object of offsets by topic"),
        ("startingOffsets", '{"upb/hall": -3}', "-3 is no offset of 'upb/hall'"),
        ("startingOffsets", '{"upb/hall": 1.5}', "1.5 is no offset of 'upb/hall'"),
        ("startingOffsets", '{"upb/hall": true}', "True is no offset of 'upb/hall'"),
        ("startingOffsets", '{"upb/hall": null}', "None is no offset of 'upb/hall'"),
        ("startingOffsets", '{"upb/hall": "7"}', "'7' is no offset of 'upb/hall'"),
        ("startingOffsets", '{"upb/+": 1}', "has '+' in it"),
        ("startingOffsets", '{"": 1}', "The topic is empty"),
        ("endingOffsets", "never", "neither 'earliest' nor 'latest' nor offsets by topic"),
        ("endingOffsets", '{"upb/hall": {}}', "{} is no offset of 'upb/hall'"),
        (
            "startingTimestamp",
            "yesterday",
            "'yesterday' is no time; write ISO 8601 with a zone",
        ),
        ("startingTimestamp", "2026-11-16T08:00:00", "ISO 8601 with a zone"),
        ("startingTimestamp", "", "'' is no time"),
        ("startingTimestamp", "1.5", "'1.5' is no time"),
        ("endingTimestamp", "2026-13-01T00:00:00Z", "is no time"),
        ("minPartitions", "0", "It must be 1 or more"),
        ("minPartitions", "two", "'two' is not a count"),
        ("minPartitions", "-1", "'-1' is not a count"),
        ("maxRecordsPerPartition", "0", "It must be 1 or more"),
        ("maxRecordsPerPartition", "1.5", "'1.5' is not a count"),
        ("failOnDataLoss", "yes", "'yes' is neither true nor false"),
        ("decode", "1", "'1' is neither true nor false"),
        ("pushdown", "on", "'on' is neither true nor false"),
        ("columns", "topic,", "has an empty name in it"),
        ("columns", "", "has an empty name in it"),
        ("batchRows", "0", "It must be 1 or more"),
        ("timeout", "10", "'10' is not a duration"),
        ("timeout", "soon", "'soon' is not a duration"),
        ("timeout", "0s", ""),
    ],
)
def test_a_wrong_value_is_told_with_its_option(option: str, value: str, why: str) -> None:
    found = trouble(**{option: value})
    assert found.startswith(f"The option {option!r}: "), found
    assert why in found
    assert found.endswith("."), found


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("maxOffsetsPerTrigger", "0", "It must be 1 or more"),
        ("maxOffsetsPerTrigger", "many", "'many' is not a count"),
        ("minOffsetsPerTrigger", "0", "It must be 1 or more"),
        ("minOffsetsPerTrigger", "-5", "'-5' is not a count"),
        ("maxTriggerDelay", "15", "'15' is not a duration"),
        ("maxTriggerDelay", "15min", "'15min' is not a duration"),
        ("idleTrigger", "often", "'often' is not a duration"),
        ("durable", "", "The client id is empty"),
        ("durable", "my query", "white space in it"),
        ("durable", "x" * 256, "at most 255 are allowed"),
    ],
)
def test_a_wrong_value_of_a_streams_option_is_told_with_it(option: str, value: str, why: str) -> None:
    found = trouble(STREAM, **{option: value})
    assert found.startswith(f"The option {option!r}: "), found
    assert why in found


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "pushdown"])
def test_what_is_for_batch_reads_does_not_go_with_a_stream(option: str) -> None:
    found = trouble(STREAM, **{option: "latest"})
    assert found == f"The option {option!r} does not count here: it is for batch reads."


@pytest.mark.parametrize(
    "option",
    [
        "durable",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "idleTrigger",
        "idleTriggerFor",
    ],
)
def test_what_is_for_streams_does_not_go_with_a_batch_read(option: str) -> None:
    found = trouble(**{option: "1"})
    assert found == f"The option {option!r} does not count here: it is for streams."


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("subscribed", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("endingTimestamps", "endingTimestamp"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("minPartition", "minPartitions"),
        ("batch_rows", "batchRows"),
        ("tlsRoot", "tlsRoots"),
        ("kolumns", "columns"),
    ],
)
def test_a_misspelt_option_is_told_with_the_one_that_was_meant(written: str, meant: str) -> None:
    found = trouble(**{written: "1"})
    assert found == f"There is no option {written.lower()!r} for reading; did you mean {meant!r}?"


def test_an_option_like_none_is_told_with_all_that_there_are() -> None:
    found = trouble(STREAM, zzz="1")
    assert found.startswith("There is no option 'zzz' for reading; there are broker, timeout, ")
    for name in ("subscribe", "startingOffsets", "durable", "maxTriggerDelay", "columns", "decode", "token"):
        assert re.search(rf"\b{name}\b", found), name


def test_a_path_is_told_to_be_none() -> None:
    assert trouble(path="upb/hall").startswith("A topic is no path: name it with option('subscribe', …)")
    assert sink_trouble(path="upb/hall").startswith("A topic is no path")


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_topic_that_is_not_subscribed_to_are_an_error(option: str) -> None:
    found = trouble(subscribe="upb/+,x/#", **{option: '{"upb/hall": 1, "x": 2, "lab": 3}'})
    assert found == f"The option {option!r} names the topic 'lab', which 'upb/+, x/#' does not match."


def test_the_least_of_a_trigger_is_not_above_the_most() -> None:
    found = trouble(STREAM, minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    assert found == "The option 'minOffsetsPerTrigger' is above 'maxOffsetsPerTrigger'."
    assert reading(STREAM, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").min_offsets == 10


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("topic", "", "The topic is empty"),
        ("topic", "upb/+", "has '+' in it"),
        ("topic", "a b", "white space in it"),
        ("kind", "text", "'text' is no kind; there are int, short_real, float, string, json, bytes"),
        ("txnAppId", "my app", "white space in it"),
        ("txnVersion", "-1", "'-1' is not a count"),
        ("txnVersion", "v1", "'v1' is not a count"),
        ("timeout", "x", "'x' is not a duration"),
    ],
)
def test_a_wrong_value_of_the_sink_is_told_with_its_option(option: str, value: str, why: str) -> None:
    found = sink_trouble(**{option: value})
    assert found.startswith(f"The option {option!r}: "), found
    assert why in found


def test_a_transaction_has_both_a_name_and_a_version() -> None:
    for option, value in (("txnAppId", "app"), ("txnVersion", "1")):
        assert sink_trouble(**{option: value}) == (
            "The options 'txnAppId' and 'txnVersion' go together: give both, or none."
        )
        found = sink_trouble(STREAM, **{option: value})
        assert found.startswith(f"The option {option!r} does not count here: it is for batch writes")


@pytest.mark.parametrize(("option", "meant"), [("topics", "topic"), ("txnVersions", "txnVersion")])
def test_a_misspelt_option_of_the_sink_is_told_with_the_one_that_was_meant(option: str, meant: str) -> None:
    assert sink_trouble(**{option: "1"}).endswith(f"; did you mean {meant!r}?")
    assert "There is no option 'subscribe' for writing" in sink_trouble(subscribe="upb/hall")
