"""What a client needs for TLS: whom it trusts, and who it is."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stafeta.errors import ConfigError, Untrusted


@dataclass(frozen=True)
class Tls:
    """For a connection that is TLS: PEM files, which are read when the connection is made."""

    roots: str | Path | None = None
    """The authorities that are trusted; the system's, if not given."""

    certificate: str | Path | None = None
    """Who we are, where the broker wants to know; with all certificates up to the authority."""

    key: str | Path | None = None
    """The key of the certificate, not encrypted."""

    hostname: str | None = None
    """The name in the broker's certificate, if it is not the one in the address."""

    def context(self) -> ssl.SSLContext:
        """What sockets are made secure with. Raises `ConfigError` where a file is not right."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.roots:
            _read("roots", self.roots)
            try:
                context.load_verify_locations(self.roots)
            except ssl.SSLError:
                raise ConfigError(f"{self.roots}, the TLS roots, has no certificates in PEM form.") from None
        else:
            context.load_default_certs()
        if self.certificate and self.key:
            _read("certificate", self.certificate)
            _read("key", self.key)
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
        return context

    def secured(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """A connected socket, once TLS is agreed on; the host is the one that it was connected to. Raises `Untrusted`
        where the peer is not trusted, or does not speak TLS, and `OSError`."""
        try:
            return self.context().wrap_socket(plain, server_hostname=self.hostname or host)
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(
                f"The broker at {host} is not trusted: its certificate is not accepted ({error.verify_message}). The "
                "TLS roots say which authorities are trusted, and the TLS hostname which name it has."
            ) from None
        except ssl.SSLError as error:
            if error.reason not in _NO_TLS:
                raise
            raise Untrusted(f"The broker at {host} does not speak TLS.") from None

    def grpc_options(self) -> dict[str, Any]:
        """What `pyarrow.flight.FlightClient` wants to know of it. gRPC says of a file that is not right only that it
        cannot connect: so they are tried here first."""
        self.context()
        found: dict[str, Any] = {"override_hostname": self.hostname or None}
        if (
            roots := self.roots or ssl.get_default_verify_paths().cafile
        ):  # where there are none, gRPC knows some
            found["tls_root_certs"] = _read("roots", roots)
        if self.certificate and self.key:
            found["cert_chain"] = _read("certificate", self.certificate)
            found["private_key"] = _read("key", self.key)
        return found


_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "UNEXPECTED_EOF_WHILE_READING")


def _read(what: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}, the TLS {what}, cannot be read: {error.strerror or error}.") from None
