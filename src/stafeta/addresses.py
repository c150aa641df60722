"""Addresses: how `HOST:PORT` is read and written everywhere, and what it means to listen on one.

1. An IPv6 address is in brackets where a port follows: `[::1]:9001`. Without them nobody can tell where the port
   begins: `::1:9001` is no address.
2. `::` is every address of this machine, of IPv6 and of IPv4; `0.0.0.0` is every one of IPv4. Any other host is one
   address: of a name, the first of IPv4, or of IPv6 where it has no other.
3. Who comes by IPv4 to a socket that takes both is `::ffff:1.2.3.4` to the system, and 1.2.3.4 to everyone else.

Importing this is quick: a server can listen, and a command connect, before all else is there.
"""

import re
import socket
from contextlib import suppress
from typing import Any, Final, NamedTuple

from stafeta.errors import ConfigError

EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104 - only where it is asked for
EVERY: Final = "::"
MAX_PORT: Final = 0xFFFF
FLIGHT: Final = "grpc://127.0.0.1:8815"

_FORM: Final = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]*))(?::([0-9]{1,5}))?", re.ASCII)
_NAME: Final = re.compile(r"(?!.*\.\d+$)[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_MAPPED: Final = "::ffff:"
_FLIGHT_FORM: Final = re.compile(r"(?:grpc(\+tcp|\+tls)?://)?([^/]+)/?")
_FLIGHT_PORT: Final = 8815


class Address(NamedTuple):
    """Host and port. Where a door listens, no host means the one of the option `host`, and port 0 any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if host else str(self.port)

    @property
    def is_name(self) -> bool:
        """Whether somebody has to look up which address it is."""
        return _ip(self.host) is None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        ip = _ip(self.host)
        return self.host.lower() == "localhost" if ip is None else ip == "::1" or ip.startswith("127.")


def read(text: str, port: int | None = None) -> Address:
    """`HOST:PORT`, or `HOST` where a port is given for that. Raises `ConfigError`."""
    found = _FORM.fullmatch(text)
    number = None if found is None else int(found[3]) if found[3] else port
    if found is None or number is None or number > MAX_PORT:
        raise ConfigError(
            f"{text!r} is not HOST:PORT; write it as 127.0.0.1:9001, [::1]:9001 or localhost:9001, with a port up to "
            f"{MAX_PORT}."
        )
    return Address(read_host(found[1] or found[2]), number)


def read_host(text: object) -> str:
    """A host alone, in brackets or not: an IP address, written as the system writes it, or a name. Raises
    `ConfigError`."""
    if isinstance(text, str):
        host = without_brackets(text)
        if (ip := _ip(host)) is not None:
            return ip
        if host == text and _NAME.fullmatch(host) and not host.isdigit():
            return host
    raise ConfigError(
        f"{text!r} is not an address; write one such as 127.0.0.1, ::1 or localhost, or 0.0.0.0 for all of them with "
        "IPv4, :: for all."
    )


def read_flight(address: str, *, token: bool = False, tls: bool = False) -> str:
    """The address of a Flight door in full. Raises `ConfigError` where it is none, or says nothing of TLS where that is
    needed."""
    found = _FLIGHT_FORM.fullmatch(address)
    try:
        place = read(found[2] if found else "", _FLIGHT_PORT)
    except ConfigError:
        raise ConfigError(
            f"{address!r} is no address of a Flight door; write it as {FLIGHT} or grpc://[::1]:{_FLIGHT_PORT}."
        ) from None
    if found and found[1] == "+tls":
        return f"grpc+tls://{place}"
    if tls:
        raise ConfigError(f"{address!r} is an address without TLS; for it, write grpc+tls://{place}.")
    if token and not place.loopback:
        raise ConfigError(
            f"A token would go to {address!r} in the clear, for everyone on the way to read; write grpc+tls://{place}."
        )
    return f"grpc://{place}"


def without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def unmapped(host: str) -> str:
    """An IP address of a peer, as people know it."""
    return host.removeprefix(_MAPPED) if host.startswith(_MAPPED) and "." in host else host


def peer(place: Any) -> str:
    """Who is at the other end, from what the system tells: host, port, and more for IPv6."""
    host, port = (place or ("", 0))[:2]
    return str(Address(unmapped(host), port))


def split(source: str) -> Address:
    """Host and port of where a message came from: `1.2.3.4:5`, `[::1]:5`, or the host alone, with port 0. What cannot
    be read is taken for a host."""
    host, colon, port = source.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return Address(unmapped(without_brackets(source)), 0)
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT)) else 0
    return Address(unmapped(without_brackets(host)), number if number <= MAX_PORT else 0)


def network_of(source: str) -> str:
    """Of where something comes from, what one stranger has of addresses: one of IPv4, or a /64 of IPv6."""
    host = split(source).host
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


def resolve(host: str) -> str:
    """The IP address that a host stands for where a door listens. Raises `OSError`."""
    found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
    *_, (ip, *_) = min(found, key=lambda one: one[0] != socket.AF_INET)
    return str(ip)


def bind(host: str, port: int, type_: socket.SocketKind) -> socket.socket:
    """A socket on an address. Raises `OSError`."""
    ip = resolve(host)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    bound = socket.socket(family, type_)
    try:
        if type_ == socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ip != EVERY)
        bound.bind((ip, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _ip(host: str) -> str | None:
    """An IP address as the system writes it; None where it is a name, or nonsense."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            return unmapped(socket.inet_ntop(family, socket.inet_pton(family, host)))
    return None
