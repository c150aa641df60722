"""The header `Authorization`, as HTTP and gRPC have it."""

from base64 import b64decode
from typing import Final

from stafeta.errors import NotAuthenticated

MAX_CREDENTIALS: Final = 8 << 10  # characters


def credentials_of(header: str | None) -> tuple[tuple[str, str] | None, str | None]:
    """User and password, or a token, of the header `authorization`; neither where there is none. One that cannot be
    read is refused, and not taken for none."""
    if header is None:
        return None, None
    scheme, _, value = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return None, value.strip()
    try:
        if scheme.lower() == "basic" and len(value) <= MAX_CREDENTIALS:
            user, colon, password = b64decode(value.strip(), validate=True).decode().partition(":")
            if colon:
                return (user, password), None
    except ValueError:
        pass
    raise NotAuthenticated(
        "The header authorization is neither Bearer TOKEN nor Basic with user and password."
    )
