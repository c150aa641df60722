"""Who a client is, and whom it trusts, as the environment says it where a program does not.

1. Secrets come from a variable or a file, never from a flag: what is in a flag shows in the list of processes. The
   flags of commands name files, and set these variables for the command and what it starts.
2. What is secret is in no text that is made of these objects.
"""

import os
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stafeta.errors import ConfigError

if TYPE_CHECKING:
    from stafeta.clients.curve import Curve
    from stafeta.clients.tls import Tls

VARIABLES: Final = {
    "user": "STAFETA_USER",
    "password": "STAFETA_PASSWORD",
    "password_file": "STAFETA_PASSWORD_FILE",
    "token": "STAFETA_TOKEN",
    "token_file": "STAFETA_TOKEN_FILE",
    "ca": "STAFETA_CA",
    "cert": "STAFETA_CERT",
    "key": "STAFETA_KEY",
    "tls_hostname": "STAFETA_TLS_HOSTNAME",
    "curve_server": "STAFETA_CURVE_SERVER",
    "curve_key": "STAFETA_CURVE_KEY",
}
_LONGEST: Final = 4096  # bytes of a file with a secret


@dataclass(frozen=True)
class Login:
    """A token, or a user and a password; nothing, where there is neither."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and self.password is not None:
            raise ConfigError("Both a token and a password are given; one of them says who it is.")
        if self.password is not None and (not self.user or ":" in self.user):
            raise ConfigError("A password goes with a user, whose name has no colon in it.")
        if self.user and self.password is None and self.token is None:
            raise ConfigError(f"User {self.user!r} is given, and neither a password nor a token.")
        for what, secret in (("token", self.token), ("password", self.password)):
            if secret is not None and (not secret or not secret.isprintable() or len(secret) > _LONGEST):
                raise ConfigError(f"A {what} is of visible characters, in one line; this one is not.")
        if self.token is not None and (" " in self.token or not self.token.isascii()):
            raise ConfigError(
                "A token is of visible ASCII characters, without spaces or line breaks; this one is not."
            )

    @property
    def header(self) -> bytes | None:
        """What HTTP has for it: the value of `authorization`."""
        if self.token is not None:
            return b"Bearer " + self.token.encode()
        if self.password is not None:
            return b"Basic " + b64encode(f"{self.user}:{self.password}".encode())
        return None


def variable(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """What a variable says, by the name that it has in `VARIABLES`."""
    return environment.get(VARIABLES[name]) or None


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that are set, for a process that is given no others."""
    return {name: environment[name] for name in VARIABLES.values() if name in environment}


def login(
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Login:
    """What is given, or else what the environment says. Raises `ConfigError`."""
    if user is not None or password is not None or token is not None:
        return Login(user, password, token)
    return Login(
        environment.get(VARIABLES["user"]) or None,
        _secret("password", environment),
        _secret("token", environment),
    )


def tls(environment: Mapping[str, str] = os.environ) -> "Tls | None":
    """What the environment says of certificates."""
    found = [environment.get(VARIABLES[name]) or None for name in ("ca", "cert", "key", "tls_hostname")]
    if not any(found):
        return None
    from stafeta.clients.tls import Tls

    return Tls(*found)


def curve(environment: Mapping[str, str] = os.environ) -> "Curve | None":
    """What the environment says of keys of CURVE."""
    server = environment.get(VARIABLES["curve_server"])
    if not server:
        return None
    from stafeta.clients.curve import Curve

    return Curve(server, environment.get(VARIABLES["curve_key"]) or None)


def read_secret(path: str | Path) -> str:
    """The first line of a file. Raises `ConfigError`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_LONGEST + 1).partition("\n")[0]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8.") from None


def _secret(name: str, environment: Mapping[str, str]) -> str | None:
    if given := environment.get(VARIABLES[name]):
        return given
    path = environment.get(VARIABLES[f"{name}_file"])
    return read_secret(path) if path else None
