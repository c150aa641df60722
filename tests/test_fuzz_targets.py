"""The targets of `make fuzz`, for a moment: what has been a bug stays mended, and a new one may show here first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.target import Target, streamed, unstreamed
from fuzz.targets import TARGETS

targets = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@targets
def test_what_a_target_begins_with_keeps_its_promise(target: Target) -> None:
    for seed in target.seeds:
        target.run(seed)


@targets
def test_a_codec_keeps_its_promise_whatever_the_bytes(target: Target) -> None:
    @given(st.binary(max_size=300) | spoiled(target))
    def run(data: bytes) -> None:
        target.run(data)

    run()


def spoiled(target: Target) -> st.SearchStrategy[bytes]:
    """A seed with a few stretches of it replaced."""
    changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), st.binary(max_size=20)), max_size=4)

    def spoil(seed: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
        for at, length, instead in changes:
            at %= len(seed) + 1
            seed = seed[:at] + instead + seed[at + length :]
        return seed

    return st.builds(spoil, st.sampled_from(target.seeds), changes)


@given(st.binary(), st.binary(max_size=4))
def test_a_stream_in_pieces_is_the_same_stream(stream: bytes, cuts: bytes) -> None:
    whole, pieces = unstreamed(streamed(stream, cuts))
    assert whole == b"".join(pieces) == stream
