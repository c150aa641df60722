"""Signed datagrams, and those that are refused."""

import hashlib
import hmac
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.doors.devices.signing import REMEMBERED, WINDOW, Verifier, read_key, sign
from stafeta.errors import ConfigError, InvalidDatagram

KEY = bytes(range(32))
NOW = 1_800_000_000.0
MICROS = int(NOW * 1_000_000)


class Clock:
    def __init__(self) -> None:
        self.now = NOW - 10

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> Verifier:
    verifier = Verifier(KEY, clock)
    clock.now = NOW
    return verifier


def test_the_bytes_are_those_of_the_page() -> None:
    datagram = b"hall".ljust(50, b"\0") + b"\3" + b"warm"
    stamped = datagram + struct.pack(">QQ", 7, MICROS)
    assert sign(datagram, KEY, 7, MICROS) == stamped + hmac.new(KEY, stamped, hashlib.sha256).digest()[:16]


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.data())
def test_what_was_changed_is_refused(datagram: bytes, sender: int, data: st.DataObject) -> None:
    signed = bytearray(sign(datagram, KEY, sender, MICROS))
    clock = Clock()
    verifier = Verifier(KEY, clock)
    clock.now = NOW
    bit = data.draw(st.integers(0, len(signed) * 8 - 1))
    changed = bytearray(signed)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidDatagram):
        verifier.verify(bytes(changed))
    assert verifier.verify(bytes(signed)) == datagram
    with pytest.raises(InvalidDatagram, match="has come before"):
        verifier.verify(bytes(signed))


@pytest.mark.parametrize("data", [b"", b"x", bytes(31), bytes(100)])
def test_what_is_not_signed_is_refused(verifier: Verifier, data: bytes) -> None:
    with pytest.raises(InvalidDatagram, match="signed"):
        verifier.verify(data)


def test_another_key_is_refused(verifier: Verifier) -> None:
    with pytest.raises(InvalidDatagram, match="not signed with the door's key"):
        verifier.verify(sign(b"x", bytes(32), 1, MICROS))


def test_a_little_out_of_order_is_taken_and_nothing_twice(verifier: Verifier) -> None:
    order = [3, 1, 2, 5, 4]
    for number in order:
        assert verifier.verify(sign(b"x", KEY, 1, MICROS + number)) == b"x"
    for number in order:
        with pytest.raises(InvalidDatagram):
            verifier.verify(sign(b"x", KEY, 1, MICROS + number))
    for number in range(10, 10 + REMEMBERED):
        verifier.verify(sign(b"x", KEY, 1, MICROS + number))
    for number in (0, *order, 6, 10):  # one of them never came, and now is too late
        with pytest.raises(InvalidDatagram):
            verifier.verify(sign(b"x", KEY, 1, MICROS + number))
    assert verifier.verify(sign(b"x", KEY, 2, MICROS)) == b"x"  # another sender has his own


def test_times_that_are_far_or_before_the_start_are_refused(verifier: Verifier, clock: Clock) -> None:
    for seconds in (-WINDOW - 1, WINDOW + 1, -11.0):
        with pytest.raises(InvalidDatagram, match="too far from the broker's, or before its start"):
            verifier.verify(sign(b"x", KEY, 1, MICROS + int(seconds * 1_000_000)))


def test_a_restart_takes_nothing_that_was_recorded_before(verifier: Verifier, clock: Clock) -> None:
    recorded = [sign(b"x", KEY, 1, MICROS + number) for number in range(5)]
    for signed in recorded:
        verifier.verify(signed)
    clock.now = NOW + 1
    restarted = Verifier(KEY, clock)
    for signed in recorded:
        with pytest.raises(InvalidDatagram, match="before its start"):
            restarted.verify(signed)


def test_who_is_silent_is_forgotten_and_is_not_replayed(verifier: Verifier, clock: Clock) -> None:
    for sender in range(1000):
        verifier.verify(sign(b"x", KEY, sender, MICROS))
    clock.now = NOW + 2 * WINDOW
    verifier.verify(sign(b"x", KEY, 5000, int(clock.now * 1_000_000)))
    assert len(verifier._senders) == 1
    with pytest.raises(InvalidDatagram):
        verifier.verify(sign(b"x", KEY, 1, MICROS))


def test_a_key_is_its_owners_and_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY.hex() + "\n")
    path.chmod(0o600)
    assert read_key(path) == KEY
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("abcd")
    with pytest.raises(ConfigError, match="at least 32 hexadecimal digits"):
        read_key(path)
