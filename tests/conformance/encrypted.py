"""How strangers come to a broker whose doors are encrypted, and that knows them by certificate or key.

What is kept here is by the broker's folder: a dialect's client asks for it, and does as always where there is nothing.
"""

import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple

from stafeta import Curve
from stafeta.addresses import Address
from stafeta.curve import write_pair
from tests.brokers import Doors
from tests.certificates import Authority, Pair

_SECRETS: dict[Path, "Secrets"] = {}
USER = "stranger"


class Secrets(NamedTuple):
    roots: Path
    own: Pair
    curve: Curve
    context: ssl.SSLContext

    def flight(self) -> dict[str, Any]:
        return {
            "tls_root_certs": self.roots.read_bytes(),
            "cert_chain": self.own.certificate.read_bytes(),
            "private_key": self.own.key.read_bytes(),
        }


def encrypt(data: Path, doors: tuple[str, ...]) -> tuple[list[str], str]:
    """Makes keys and certificates; returns the broker's options, and the stranger's public key of CURVE."""
    folder = data.parent
    authority = Authority(folder, "authority")
    served = authority.pair("broker", "IP:127.0.0.1,IP:::1")
    own = authority.pair(USER)
    write_pair(folder / "broker-curve")
    public = write_pair(folder / "own-curve").public
    context = ssl.create_default_context(cafile=str(authority.roots))
    context.load_cert_chain(own.certificate, own.key)
    curve = Curve(folder / "broker-curve.pub", folder / "own-curve.key")
    _SECRETS[data] = Secrets(authority.roots, own, curve, context)
    settings = [f"zeromq.curve_key={folder / 'broker-curve.key'}"]
    for door in doors:
        settings.append(f"{door}.tls_cert={served.certificate}")
        settings.append(f"{door}.tls_key={served.key}")
        settings.append(f"{door}.tls_client_ca={authority.roots}")
    return [word for one in settings for word in ("--set", one)], public


def secrets_of(broker: Doors) -> Secrets | None:
    return _SECRETS.get(broker.data)


def connected(broker: Doors, door: str, patience: float) -> socket.socket:
    """A connection to a door that is made of TCP."""
    host, port = broker.door(door)
    made = socket.create_connection((host, port), patience)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secrets = secrets_of(broker)
    return made if secrets is None else secrets.context.wrap_socket(made, server_hostname=host)


def curve_of(broker: Doors) -> Curve | None:
    secrets = secrets_of(broker)
    return None if secrets is None else secrets.curve


def flight_of(broker: Doors) -> tuple[str, dict[str, Any]]:
    """Where the Flight door is, and what pyarrow's client needs to come in."""
    place, secrets = Address(*broker.door("flight")), secrets_of(broker)
    return (f"grpc://{place}", {}) if secrets is None else (f"grpc+tls://{place}", secrets.flight())
