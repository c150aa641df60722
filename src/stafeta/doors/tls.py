"""TLS of the doors that are made of sockets.

1. A connection that is to be TLS has a layer between the transport and what it is otherwise: that one is told of the
   connection when it comes, is handed what was decrypted, and its writes are encrypted. So limits hold from the first
   moment, and a door without TLS has no layer.
2. Everything that was written waits in the transport, and nowhere else: what is counted there is never less than what
   the peer has still to get.
3. Certificates are read again by making a new context. Connections that are there keep theirs.
4. Who does not agree on TLS within a time is ended, with a line in the log, and not for each of many.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from stafeta import addresses
from stafeta.errors import ConfigError
from stafeta.logs import SeldomLog

RECORD: Final = 16 << 10  # bytes that one record of TLS carries at most
_NO_TLS: Final = frozenset(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL", "UNEXPECTED_MESSAGE")
)


class TlsFiles(NamedTuple):
    """PEM files: a door's certificate with those up to the authority, its key, and the authorities whose certificates
    clients must have, if they must have any."""

    certificate: str
    key: str
    client_authorities: str = ""

    def contents(self) -> tuple[bytes, ...]:
        """What is in them. Raises `ConfigError`."""
        return tuple(_read(path) if path else b"" for path in self)

    def context(self) -> ssl.SSLContext:
        """Raises `ConfigError` where they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Who is let in is decided by the files as they are now, so nobody comes back by an earlier agreement.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        self.contents()  # or OpenSSL would not say which of them is missing
        try:
            # With an empty password nobody is asked for one.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"{self.certificate} and {self.key} are not a certificate and its key, in PEM form and without a "
                "password."
            ) from None
        if self.client_authorities:
            try:
                context.load_verify_locations(self.client_authorities)
            except ssl.SSLError:
                raise ConfigError(f"{self.client_authorities} has no certificates in PEM form.") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Certificates:
    """What a door shows and asks for, as it is now. Raises `ConfigError` where the files cannot be used."""

    def __init__(self, files: TlsFiles, handshake_timeout: float, log: logging.Logger) -> None:
        self.files = files
        self.context = files.context()
        self.handshake_timeout = handshake_timeout
        self.log = SeldomLog(log)
        self.rejected: Counter[str] = Counter()  # connections, by reason
        self.on_reload: Callable[[], None] = lambda: None

    def reload(self, files: TlsFiles) -> None:
        """Takes the files as they are now for connections to come; keeps what it had where it raises `ConfigError`."""
        self.context = files.context()
        self.files = files
        self.on_reload()


class TlsLayer(asyncio.Protocol, asyncio.Transport):
    """To the transport, the protocol of a connection; to the connection, its transport."""

    __slots__ = (
        "_app",
        "_certificates",
        "_closing",
        "_incoming",
        "_outgoing",
        "_ready",
        "_timer",
        "_tls",
        "_wire",
        "unit",
    )

    _wire: asyncio.Transport

    def __init__(self, app: asyncio.Protocol, certificates: Certificates) -> None:
        self._app = app
        self._certificates = certificates
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificates.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self.unit = 0  # bytes of a message, where each must come whole: no record has part of one

    # --- as a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast("asyncio.Transport", transport)
        timeout = self._certificates.handshake_timeout
        self._timer = asyncio.get_running_loop().call_later(timeout, self._late)
        self._app.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._ready and not self._shake_hands():
            return
        ended = False
        parts = []
        try:
            while part := self._tls.read(RECORD):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._refuse(error)
            return
        self._flush()
        if parts:
            self._app.data_received(b"".join(parts))
        if ended and not self._closing:
            self.eof_received()

    def eof_received(self) -> None:
        if self._ready and not self._closing:
            self._app.eof_received()
        self.close()

    def pause_writing(self) -> None:
        self._app.pause_writing()

    def resume_writing(self) -> None:
        self._app.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._no_timer()
        self._app.connection_lost(error)

    # --- the handshake

    def _shake_hands(self) -> bool:
        """True once TLS is agreed on."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # which tells the peer why
            self._refuse(error)
            return False
        self._flush()
        self._no_timer()
        self._ready = True
        return True

    def _late(self) -> None:
        self._certificates.rejected["handshake_timeout"] += 1
        self._certificates.log.warning(
            "connections are closed that have not agreed on TLS within limits.handshake_timeout",
            peer=self._peer,
        )
        self.abort()

    def _refuse(self, error: ssl.SSLError) -> None:
        self._certificates.rejected["tls"] += 1
        self._certificates.log.warning(_reason(error), peer=self._peer)
        self._no_timer()
        self._closing = True
        self._wire.close()

    def _no_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _peer(self) -> str:
        return addresses.peer(self._wire.get_extra_info("peername"))

    # --- as a transport

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if self._closing or not data:
            return
        if self.unit:
            step = RECORD // self.unit * self.unit
            for at in range(0, len(data), step):
                self._tls.write(data[at : at + step])
        else:
            self._tls.write(data)
        self._flush()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._ready:
            with suppress(ssl.SSLError):  # the peer's own end is not waited for
                self._tls.unwrap()
            self._flush()
        self._wire.close()

    def abort(self) -> None:
        self._closing = True
        self._wire.abort()

    def is_closing(self) -> bool:
        return self._closing or self._wire.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._tls.getpeercert() if self._ready else default
        return self._wire.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._app = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._app

    def get_write_buffer_size(self) -> int:
        return self._wire.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._wire.write(self._outgoing.read())


def layered(
    make: Callable[[], asyncio.Protocol], certificates: Certificates | None
) -> Callable[[], asyncio.Protocol]:
    """What makes the connections of a door, with TLS where it has certificates."""
    if certificates is None:
        return make
    return lambda: TlsLayer(make(), certificates)


def certified_name(transport: asyncio.BaseTransport) -> str | None:
    """Whom the peer's certificate names, its first alternative name or else its common name, as gRPC has it; None where
    it has shown none."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    for _, name in certificate.get("subjectAltName", ()):
        return str(name)
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None


def _reason(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "a connection is closed: what came is not TLS, which this door requires"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "a connection is closed: it has shown no certificate"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"a connection is closed: its certificate is not accepted ({error.verify_message})"
    words = (error.reason or "no reason is known").replace("_", " ").lower()
    return f"a connection is closed: TLS was not agreed on ({words})"


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
