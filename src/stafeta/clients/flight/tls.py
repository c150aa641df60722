"""TLS to a Flight door: whom to trust, and who we are."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stafeta.errors import ConfigError


@dataclass(frozen=True)
class Tls:
    """For a connection to `grpc+tls://`: PEM files, which are read when the connection is made."""

    roots: str | Path | None = None
    """The authorities that are trusted; the system's, if not given."""

    certificate: str | Path | None = None
    """Who we are, where the broker wants to know; with all certificates up to the authority."""

    key: str | Path | None = None
    """The key of the certificate, not encrypted."""

    hostname: str | None = None
    """The name in the broker's certificate, if it is not the one in the address."""

    def options(self) -> dict[str, Any]:
        """What `pyarrow.flight.FlightClient` wants to know of it. gRPC says of a file that is not right only that it
        cannot connect: so they are tried here first."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        found: dict[str, Any] = {"override_hostname": self.hostname or None}
        if self.roots:
            found["tls_root_certs"] = _read("roots", self.roots)
            try:
                context.load_verify_locations(self.roots)
            except ssl.SSLError:
                raise ConfigError(f"{self.roots}, the TLS roots, has no certificates in PEM form.") from None
        elif system := ssl.get_default_verify_paths().cafile:  # where there is none, gRPC knows some
            found["tls_root_certs"] = _read("roots", system)
        if self.certificate and self.key:
            found["cert_chain"] = _read("certificate", self.certificate)
            found["private_key"] = _read("key", self.key)
            try:
                # With an empty password nobody is asked for one.
                context.load_cert_chain(self.certificate, self.key, password="")
            except (ssl.SSLError, ValueError):
                raise ConfigError(
                    f"{self.certificate} and {self.key} are not a TLS certificate and its key, in PEM form and without "
                    "a password."
                ) from None
        elif self.certificate or self.key:
            given, missing = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise ConfigError(
                f"A TLS {given} is given, {self.certificate or self.key}, and no {missing} with it."
            )
        return found


def _read(what: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}, the TLS {what}, cannot be read: {error.strerror or error}.") from None
