"""A broker with a user, a token, TLS at its Flight door and CURVE at ZeroMQ's."""

from pathlib import Path

from stafeta.addresses import Address
from stafeta.curve import write_pair
from stafeta.security import Token, User, Users
from stafeta.security.rules import Rule
from stafeta.security.security import new_token
from stafeta.security.users import hash_token, now, save
from tests.brokers import BrokerProcess
from tests.certificates import Authority


class SecureBroker(BrokerProcess):
    @property
    def flight(self) -> str:
        return f"grpc+tls://{Address(*self.door('flight'))}"


class Place:
    """`options` are more of the broker's."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = Authority(folder, "authority")
        served = self.authority.pair("tls", "IP:127.0.0.1")
        self.token = new_token()
        self.token_file = folder / "token"
        self.token_file.write_text(self.token + "\n")
        self.folder = folder
        write_pair(folder / "broker")
        everything = (Rule.read("all #"), Rule.read("all $sys/pipeline/#"))
        users = Users(
            users={
                "ann": User(allow=everything, pipeline=True, curve_keys=(write_pair(folder / "ann").public,))
            },
            tokens={"ci": Token("ann", hash_token(self.token), now())},
        )
        save(folder / "users.toml", users)
        settings = [
            f"flight.tls_cert={served.certificate}",
            f"flight.tls_key={served.key}",
            f"zeromq.curve_key={folder / 'broker.key'}",
            f"security.users={folder / 'users.toml'}",
        ]
        words = [word for one in settings for word in ("--set", one)]
        self.broker = SecureBroker(folder / "data", *words, *options, doors=("flight",))

    @property
    def flags(self) -> list[str]:
        return ["--token-file", str(self.token_file), "--ca", str(self.authority.roots)]

    @property
    def curve(self) -> list[str]:
        return [
            "--curve-server",
            str(self.folder / "broker.pub"),
            "--curve-key",
            str(self.folder / "ann.key"),
        ]

    @property
    def flight(self) -> str:
        return self.broker.flight
