"""Pickles that would do harm, none of which does any; and pickles of plain data, in every protocol."""

import copyreg
import pickle
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.doors.frames.pickle_bodies import PickleBodies
from stafeta.doors.frames.unpickling import loads
from stafeta.errors import InvalidFrame, InvalidMessage
from tests.doors.frames.attacks import ATTACKS, MARK, shared
from tests.doors.frames.plain_data import PLAIN_DATA, alike


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that an attack makes if it succeeds."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / MARK
    assert not (tmp_path / MARK).exists(), "the attack has run"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_with_a_sentence(name: str, mark: Path) -> None:
    with pytest.raises(InvalidFrame, match=r"^The pickle .+\.$"):
        loads(ATTACKS[name])


@pytest.mark.parametrize("name", [name for name in ATTACKS if name.startswith("os.system")])
def test_python_itself_would_have_fallen_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copyreg.add_extension("os", "system", 0x42)
    try:
        with suppress(TypeError):  # what comes of it is of no use to the rest of the pickle
            pickle.loads(ATTACKS[name])
    finally:
        copyreg.remove_extension("os", "system", 0x42)
    assert (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(a=1),
        Decimal(1),
        Path("x"),
        print,
        int,
        frozenset([1]),
        bytearray(b"x"),
        1j,
        range(3),
        InvalidFrame("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(InvalidFrame, match=r"The pickle (names|has the opcode) "):
            loads(pickle.dumps([value], protocol))


# --- bombs


def quickly(work: Callable[[], object]) -> None:
    begin = time.process_time()
    work()
    assert time.process_time() - begin < 2


def test_a_memo_index_of_four_billion_costs_nothing() -> None:
    quickly(lambda: loads(b"\x80\x02]" + b"r\xff\xff\xff\xff" + b"r\xfe\xff\xff\xff" + b"."))


@pytest.mark.parametrize("opcode", [b"X", b"B", b"T"])
def test_a_length_that_is_not_there_costs_nothing(opcode: bytes) -> None:
    with pytest.raises(InvalidFrame):
        loads(opcode + b"\xff\xff\xff\x7fabc.")


def test_a_frame_of_an_exabyte_costs_nothing() -> None:
    with pytest.raises(InvalidFrame):
        loads(b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"X")


@pytest.mark.parametrize("container", ["list", "tuple", "dict"])
def test_a_billion_laughs_are_refused_when_they_are_written_out(container: str) -> None:
    def read() -> None:
        with pytest.raises(InvalidMessage, match=r"larger than|nested more than"):
            PickleBodies().read(shared(container, 40))

    quickly(read)


def test_a_billion_laughs_as_a_key_are_refused_before_they_are_hashed() -> None:
    layers = b"".join([b")", *[b"2\x86"] * 60])  # t = (t, t), sixty times
    for put in (b"\x80\x02}" + layers + b"Ns.", b"\x80\x02}(" + layers + b"Nu.", b"(" + layers + b"Nd."):
        with pytest.raises(InvalidFrame, match="too large or nested too deep"):
            loads(put)
    for made in (b"\x80\x04\x8f(" + layers + b"\x90.", b"c__builtin__\nset\n(](" + layers + b"etR."):
        with pytest.raises(InvalidFrame, match="too large or nested too deep"):
            loads(made)


def test_a_key_that_is_nested_60000_deep_does_not_end_the_process() -> None:
    with pytest.raises(InvalidFrame, match="too large or nested too deep"):
        loads(b"\x80\x02})" + b"\x85" * 60_000 + b"Ns.")


def test_keys_with_the_same_hash_do_not_hold_others_up() -> None:
    collisions = {number * ((1 << 61) - 1): None for number in range(1, 4000)}

    def read() -> None:
        with pytest.raises(InvalidFrame, match="too many keys that are huge numbers"):
            loads(pickle.dumps(collisions))

    quickly(read)


def test_a_list_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(InvalidMessage, match="contains itself"):
        PickleBodies().read(pickle.dumps({"message": value}))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "EOFError"),
        (b".", "pop from empty list"),
        (b"\x80\x09.", "unsupported pickle protocol: 9"),
        (b"\x80\x04]\x94(K\x01K\x02u.", "no dictionary"),
        (b"\x80\x04}(K\x01u.", "no dictionary"),
        (b"\x80\x04](K\x01\x90.", "to a set where there is none"),
        (b"\x80\x02K\x01K\x02R.", "int"),
        (b"I" + b"9" * 5000 + b"\n.", "4300"),
        (b"h\x07.", "Memo value not found"),
        (b"S'\\xff'\n.", "utf-8"),
        (b"c__builtin__\nset\n(K\x01tR.", "no list"),
        (b"c_codecs\nencode\n(X\x01\0\0\0aX\x04\0\0\0zlibtR.", "_codecs.encode"),
        (b"\xff", "opcode 0xff"),
    ],
)
def test_a_broken_pickle_is_refused_with_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(InvalidFrame, match=re.escape(why)):
        loads(data)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InvalidFrame):
        loads(data)


@given(PLAIN_DATA, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_is_read_in_every_protocol(value: Any, protocol: int) -> None:
    assert alike(loads(pickle.dumps(value, protocol)), value)


def test_text_of_python_2_is_text() -> None:
    assert loads(b"(S'topic'\np0\nU\x01aT\x02\x00\x00\x00\xc3\xa9t.") == ("topic", "a", "é")
