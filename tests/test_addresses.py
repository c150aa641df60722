"""How addresses are read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.addresses import Address, peer, read, read_host, split
from stafeta.errors import ConfigError


@given(st.ip_addresses().map(str), st.integers(0, 65535))
def test_an_ip_address_is_read_as_it_is_written(ip: str, port: int) -> None:
    host = read_host(ip)
    assert read(str(Address(host, port))) == split(str(Address(host, port))) == Address(host, port)
    assert read_host(f"[{ip}]") == host


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[0:0:0:0:0:0:0:1]:9", Address("::1", 9)),
        ("[::FFFF:127.0.0.1]:9", Address("127.0.0.1", 9)),
        ("a_name-of.5.machines:9", Address("a_name-of.5.machines", 9)),
    ],
)
def test_there_is_one_way_to_write_an_address(text: str, address: Address) -> None:
    assert read(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":9", "::1:9", "::1", "a b:9", "12:9", "1.2.3:9", "1.2.3.4%eth0:9", "a", "a:-1", "a:٣"),
        *("[::1]", "[::1]9", "[::1]:", "[::1]:x", "[::1]:65536", "[a]:9", "[1.2.3.4]:9"),
        *("[fe80::1%eth0]:9", "[::g]:9"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is not HOST:PORT; .*\[::1\]:9001|is not an address; .*::1 or localhost"
    ):
        read(text)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (("10.0.0.1", 9), "10.0.0.1:9"),
        (("::1", 9, 0, 0), "[::1]:9"),
        (("::ffff:10.0.0.1", 9, 0, 0), "10.0.0.1:9"),
        (None, "0"),
    ],
)
def test_a_peer_is_shown_as_people_know_it(place: object, shown: str) -> None:
    assert peer(place) == shown


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST")),
        *((host, False) for host in ("10.0.0.1", "::", "127.example", "fe80::1%lo")),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Address(host, 9).loopback is loopback
