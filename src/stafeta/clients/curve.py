"""What a client of the ZeroMQ door needs for CURVE: the broker's public key, and a key pair of its own."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stafeta.curve import KeyPair, new_pair, public_key, read_pair

if TYPE_CHECKING:
    import zmq


@dataclass(frozen=True)
class Curve:
    """For a broker whose ZeroMQ door takes CURVE. Files are as `stafeta keys` writes them."""

    server: str | Path
    """The broker's public key, or the file that has it, NAME.pub."""

    key: str | Path | None = None
    """Who we are: the file NAME.key, whose public key the broker knows as a user's. Without one a key is drawn, which
    encrypts, and says nothing of who we are."""

    @cached_property
    def _pair(self) -> KeyPair:
        return new_pair() if self.key is None else read_pair(self.key)

    def check(self) -> None:
        """Raises `ConfigError` where a key cannot be used."""
        public_key(self.server)
        assert self._pair

    def secure(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket use it, from when it connects. Raises `ConfigError`."""
        socket.curve_serverkey = public_key(self.server).encode()
        socket.curve_publickey = self._pair.public.encode()
        socket.curve_secretkey = self._pair.secret.encode()
