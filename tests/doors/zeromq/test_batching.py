import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from stafeta.clients.zeromq.batching import Batcher
from stafeta.clients.zeromq.requests import Entry, PublishBatch, put

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MIXED = st.lists(st.one_of(TEXT, st.binary()), max_size=30)
LARGE = st.lists(st.integers(0, 300_000).map(lambda size: "\1" * size), max_size=8)


def packed(items: list[str | bytes], kind: str | None = None) -> list[PublishBatch]:
    batcher = Batcher(kind)
    left = iter(items)
    batches = []
    while batch := batcher.fill(left):
        batches.append(batch)
    rest = batcher.rest()
    return [*batches, rest] if rest else batches


def unpacked(batch: PublishBatch) -> list[bytes]:
    texts = json.loads(batch.publications)
    assert len(texts) == batch.length
    return [b64decode(text) if batch.encoding == "base64" else text.encode() for text in texts]


def raw(item: str | bytes) -> bytes:
    return item.encode() if isinstance(item, str) else item


@given(MIXED | LARGE, st.sampled_from([None, "string", "bytes"]))
def test_what_is_packed_is_unpacked_in_order(items: list[str | bytes], kind: str | None) -> None:
    found = [(data, batch.kind) for batch in packed(items, kind) for data in unpacked(batch)]
    assert found == [(raw(item), kind or ("string" if isinstance(item, str) else "bytes")) for item in items]


@given(MIXED | LARGE)
def test_a_parcel_is_small_or_a_single_message(items: list[str | bytes]) -> None:
    for batch in packed(items):
        assert batch.length == 1 or sum(map(len, unpacked(batch))) <= 256 * 1024


def test_a_parcel_has_at_most_a_thousand_messages() -> None:
    assert [batch.length for batch in packed(["x"] * 2500)] == [1000, 1000, 500]


@given(st.text(), TEXT, MIXED)
def test_a_parcel_goes_into_its_request_as_it_is(client: str, topic: str, items: list[str | bytes]) -> None:
    for batch in packed(items):
        request = json.loads(put(client, Entry(1, topic, 7, batch)))
        assert (request["type"], request["client_id"], request["topic"]) == ("PUT", client, topic)
        body = request["body"]
        assert (body["sequence"], body["kind"], body.get("encoding", "")) == (7, batch.kind, batch.encoding)
        assert body["publications"] == json.loads(batch.publications)
