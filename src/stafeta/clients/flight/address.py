"""How the address of a Flight door is written."""

import re
from typing import Final

from stafeta import addresses
from stafeta.errors import ConfigError

ADDRESS: Final = "grpc://127.0.0.1:8815"
_PORT: Final = 8815
_FORM: Final = re.compile(r"(?:grpc(\+tcp|\+tls)?://)?([^/]+)/?")


def checked(address: str, *, token: bool = False, tls: bool = False) -> str:
    """The address in full. Raises where it is none, or says nothing of TLS where that is needed."""
    found = _FORM.fullmatch(address)
    try:
        place = addresses.read(found[2] if found else "", _PORT)
    except ConfigError:
        raise ConfigError(
            f"{address!r} is no address of a Flight door; write it as {ADDRESS} or grpc://[::1]:{_PORT}."
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
