"""How the address of a Flight door is written."""

import re
from ipaddress import ip_address
from typing import Final

from stafeta.errors import ConfigError

ADDRESS: Final = "grpc://127.0.0.1:8815"
_PORT: Final = 8815
_FORM: Final = re.compile(r"(?:grpc(\+tcp|\+tls)?://)?(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+)(?::(\d{1,5}))?/?")


def checked(address: str, *, token: bool = False, tls: bool = False) -> str:
    """The address in full. Raises where it is none, or says nothing of TLS where that is needed."""
    found = _FORM.fullmatch(address)
    if found is None or int(found[3] or _PORT) > 65535:
        raise ConfigError(f"{address!r} is no address of a Flight door; write it as {ADDRESS}.")
    place = f"{found[2]}:{found[3] or _PORT}"
    if found[1] == "+tls":
        return f"grpc+tls://{place}"
    if tls:
        raise ConfigError(f"{address!r} is an address without TLS; for it, write grpc+tls://{place}.")
    if token and not _is_loopback(found[2]):
        raise ConfigError(
            f"A token would go to {address!r} in the clear, for everyone on the way to read; write grpc+tls://{place}."
        )
    return f"grpc://{place}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
