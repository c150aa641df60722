"""The options of source and sink that are right, and what is made of them."""

import pytest

from stafeta.credentials import Login
from stafeta.pipeline.connector.options import Address, ReadOptions, StartOffset, WriteOptions
from tests.pipeline.test_options import STREAM, reading, writing

SEPTEMBER = 1_788_566_400_000_000  # 2026-09-05T00:00:00Z, in microseconds


def test_what_is_not_said_is_as_the_page_says() -> None:
    batch, stream = reading(), reading(STREAM)
    assert (batch.start, batch.end) == (StartOffset("earliest"), StartOffset("latest"))
    assert stream.start == StartOffset("latest")
    assert batch.address == Address("grpc://127.0.0.1:8815", 120.0)
    assert (batch.min_partitions, batch.max_records, batch.batch_rows) == (1, None, None)
    assert (stream.max_offsets, stream.min_offsets, stream.max_delay) == (None, None, 900.0)
    assert batch.fail_on_data_loss
    assert not batch.pushdown
    assert (batch.durable, batch.columns, batch.decode) == (None, None, False)
    assert writing() == WriteOptions(Address(), None, None, None)


def test_names_are_taken_in_large_and_small_letters() -> None:
    found = ReadOptions.of({"SUBSCRIBE": "a", "startingoffsets": "Latest", "DeCode": "TRUE"}, streaming=False)
    assert (found.filters, found.start, found.decode) == (("a",), StartOffset("latest"), True)


def test_several_filters_have_commas_between_them() -> None:
    assert reading(subscribe="a/+, b/#,a/+ ,c").filters == ("a/+", "b/#", "c")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", "earliest"),
        (" LATEST ", "latest"),
        ('{"a": 23, "b": "latest"}', {"a": 23, "b": "latest"}),
        ('{"a": -2, "b": -1, "c": "earliest"}', {"a": "earliest", "b": "latest", "c": "earliest"}),
        ('{"a": 0}', {"a": 1}),
        ('{"a": 5, "new topics": {"a": 1}}', {"a": 5}),
        ("{}", {}),
    ],
)
def test_offsets_in_all_their_forms(streaming: bool, text: str, offsets: object) -> None:
    found = ReadOptions.of({"subscribe": "#", "startingOffsets": text}, streaming=streaming)
    assert found.start.offsets == offsets
    if not streaming:
        assert (
            ReadOptions.of({"subscribe": "#", "endingOffsets": text}, streaming=False).end.offsets == offsets
        )


def test_topics_that_are_not_named_are_at_the_edge() -> None:
    place = StartOffset({"a": 23})
    assert (place.of("a", "earliest"), place.of("b", "earliest"), place.of("b", "latest")) == (
        23,
        "earliest",
        "latest",
    )
    assert StartOffset("latest").of("b", "earliest") == "latest"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (str(SEPTEMBER // 1000), SEPTEMBER),
        ("2026-09-05T00:00:00Z", SEPTEMBER),
        ("2026-09-05T02:00:00.000001+02:00", SEPTEMBER + 1),
        (" 0 ", 0),
        ("-1", -1000),
    ],
)
def test_times_in_all_their_forms(text: str, time: int) -> None:
    found = reading(startingTimestamp=text, endingTimestamp=text)
    assert (found.start.time, found.end.time) == (time, time)
    assert reading(STREAM, startingTimestamp=text).start.time == time


def test_every_other_option_of_a_stream_is_taken() -> None:
    found = reading(
        STREAM,
        maxOffsetsPerTrigger="1_000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="500ms",
        idleTrigger="2s",
        idleTriggerFor="1m",
        minPartitions="3",
        maxRecordsPerPartition="7",
        failOnDataLoss="false",
        durable="rollups",
        columns="payload, topic",
        batchRows="100",
        checkpointLocation="checkpoints",
        queryName="copies",
    )
    assert (found.max_offsets, found.min_offsets, found.max_delay) == (1000, 10, 0.5)
    assert (found.idle_trigger, found.idle_trigger_for) == (2.0, 60.0)
    assert (found.min_partitions, found.max_records, found.fail_on_data_loss) == (3, 7, False)
    assert (found.durable, found.columns, found.batch_rows) == ("rollups", ("payload", "topic"), 100)


def test_filters_are_pushed_if_that_is_wanted() -> None:
    assert reading(pushdown=" True").pushdown


def test_a_delay_of_nothing_is_none() -> None:
    assert reading(STREAM, minOffsetsPerTrigger="10", maxTriggerDelay="0s").max_delay == 0


def test_the_address_is_the_same_for_source_and_sink() -> None:
    options = {
        "broker": "grpc+tls://example:1",
        "timeout": "3s",
        "token": "t",
        "tlsRoots": "r",
        "tlsCertificate": "c",
        "tlsKey": "k",
        "tlsHostname": "h",
    }
    address = Address("grpc+tls://example:1", 3.0, Login(token="t"), "r", "c", "k", "h")
    assert reading(**options).address == writing(**options).address == address


def test_every_option_of_the_sink_is_taken() -> None:
    found = writing(topic="copies", kind="json", txnAppId="app", txnVersion="0")
    assert (found.topic, found.kind, found.transaction) == ("copies", "json", ("app", 0))
    assert writing(STREAM, checkpointLocation="x", queryName="y", topic="copies").topic == "copies"
