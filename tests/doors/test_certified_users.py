"""Who comes with a certificate, or a key of CURVE, is that user at every door, and no other."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta
from stafeta import Client, Curve, Tls
from stafeta.addresses import Address
from stafeta.curve import write_pair
from stafeta.errors import Disconnected, NoReply, NotAuthenticated, Refused, StafetaError
from stafeta.frames import JSONQueue
from stafeta.security import User, Users
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import BrokerProcess
from tests.certificates import Authority


class Place:
    """A broker for alice, who may do everything on alice/#, with certificates and keys for her and for a stranger."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.pairs = {name: self.authority.pair(name) for name in ("alice", "stranger")}
        self.pairs["nameless"] = self.authority.pair("nameless", subject="/O=somebody")
        self.keys = {
            name: write_pair(folder / name).public
            for name in ("broker-curve", "alice-curve", "stranger-curve")
        }
        self.folder = folder
        self.users = folder / "users.toml"
        self.write(self.keys["alice-curve"])
        served = self.authority.pair("broker", "IP:127.0.0.1")
        doors = ("frames", "devices", "flight")
        settings = [
            f"zeromq.curve_key={folder / 'broker-curve.key'}",
            f"security.users={self.users}",
            *(f"{door}.tls_cert={served.certificate}" for door in doors),
            *(f"{door}.tls_key={served.key}" for door in doors),
            *(f"{door}.tls_client_ca={self.authority.roots}" for door in doors),
        ]
        words = [word for one in settings for word in ("--set", one)]
        self.broker = BrokerProcess(folder / "data", *words, doors=doors)

    def write(self, *keys: str) -> None:
        rule = (Rule.read("all alice/#"),)
        # Who came without any name would be alice at these doors, if that were taken for no certificate.
        doors = dict.fromkeys(("frames", "devices", "flight"), "alice")
        save(self.users, Users(users={"alice": User(allow=rule, curve_keys=keys)}, doors=doors))

    def tls(self, name: str) -> Tls:
        return Tls(self.authority.roots, *self.pairs[name])

    def client(self, name: str) -> Client:
        curve = Curve(self.folder / "broker-curve.pub", self.folder / f"{name}-curve.key")
        return Client(self.broker.address, curve=curve)

    @property
    def flight(self) -> str:
        return f"grpc+tls://{Address(*self.broker.door('flight'))}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("certified"))
    with place.broker:
        yield place


def test_at_the_flight_door(place: Place) -> None:
    with stafeta.connect(place.flight, tls=place.tls("alice")) as connection:
        connection.publish("alice/flight", ["mine"])
        with pytest.raises(StafetaError, match="may not"):
            connection.publish("others/flight", ["not mine"])
    with pytest.raises(StafetaError, match="no user of the certificate's name"):
        stafeta.connect(place.flight, tls=place.tls("stranger"))


def test_a_certificate_that_names_nobody_is_not_taken_for_none(place: Place) -> None:
    with pytest.raises(StafetaError, match="no user of the certificate's name"):
        stafeta.connect(place.flight, tls=place.tls("nameless"))
    with (
        pytest.raises((Disconnected, NoReply)),
        JSONQueue(
            "alice/frames", "producer", *place.broker.door("frames"), tls=place.tls("nameless")
        ) as queue,
    ):
        queue.list_topics(lambda topics: None)


def test_at_the_frames_door(place: Place) -> None:
    with JSONQueue("alice/frames", "producer", *place.broker.door("frames"), tls=place.tls("alice")) as queue:
        queue.push("mine")
        found: list[str] = []
        queue.list_topics(found.extend)
        assert "alice/frames" in found
    with (
        pytest.raises((Disconnected, NoReply)),
        JSONQueue(
            "alice/frames", "producer", *place.broker.door("frames"), tls=place.tls("stranger")
        ) as queue,
    ):
        queue.list_topics(lambda topics: None)


def test_at_the_zeromq_door_until_the_key_is_taken_away(place: Place) -> None:
    with place.client("alice") as client:
        client.put("alice/zeromq", "mine", create=True)
        with pytest.raises(Refused, match="may not"):
            client.put("others/zeromq", "not mine", create=True)
        with place.client("stranger") as stranger, pytest.raises(NotAuthenticated):
            stranger.put("alice/zeromq", "not mine", create=True)
        place.write()
        place.broker.send_signal(signal.SIGHUP)
        place.broker.wait_for_line("the configuration was reloaded")
        # Its connection ends as well, and the next one is refused.
        with pytest.raises((Refused, NotAuthenticated), match="key"):
            client.put("alice/zeromq", "no more")
