"""What users, permissions and TLS cost: publish and consume, in bulk and one by one, in alternation."""

import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import NamedTuple

import psutil
import pyarrow as pa

import stafeta
from benchmarks.bare_flight import bare_flight
from benchmarks.bare_flight import consume as bare_consume
from benchmarks.bare_flight import publish as bare_publish
from benchmarks.brokers import environment
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from stafeta import Client, Curve, Tls, testing
from stafeta.addresses import Address
from stafeta.cli.main import main as command
from stafeta.clients.flight.connection import Connection
from stafeta.security import User, Users
from stafeta.security.rules import Rule
from stafeta.security.users import save

USERS, RULES = 10_000, 100_000
OPEN = ("zeromq", "flight")
BULK = Bar("ratio", "≥", 0.9, "")
SINGLE = Bar("ratio", "≥", 0.8, "")


class Done(NamedTuple):
    rate: float  # messages a second
    cpu: float  # microseconds of the broker's for each


class Place(NamedTuple):
    """A broker, and how one comes to it."""

    broker: testing.Broker
    token: str | None = None
    tls: Tls | None = None
    curve: Curve | None = None

    @property
    def flight(self) -> str:
        scheme = "grpc" if self.tls is None else "grpc+tls"
        return f"{scheme}://{Address(*self.broker.door('flight'))}"

    def connect(self) -> Connection:
        return stafeta.connect(self.flight, token=self.token, tls=self.tls)

    def client(self) -> Client:
        return Client(self.broker.address, curve=self.curve)


@contextmanager
def places(setting: Setting) -> Iterator[dict[str, Place]]:
    """One broker of each kind, all there at once: they are idle while another is measured."""
    made = setting.folder / "secure"
    with redirect_stdout(io.StringIO()):
        command(["init", str(made), "--user", "ann"])
    served = [f"flight.tls_cert={made / 'broker.pem'}", f"flight.tls_key={made / 'broker.key'}"]
    served.append(f"zeromq.curve_key={made / 'broker-curve.key'}")
    doors = dict.fromkeys(OPEN, "ann")
    everything = (Rule.read("all #"),)
    save(setting.folder / "few.toml", Users({"ann": User(allow=everything)}, doors=doors))
    save(setting.folder / "many.toml", Users(many(setting), doors=doors))
    tls = Tls(made / "ca.pem")
    curve = Curve(made / "broker-curve.pub", made / "ann-curve.key")
    token = (made / "ann.token").read_text().strip()
    kinds: dict[str, tuple[list[str], dict[str, object]]] = {
        "nothing": ([], {}),
        "permissions": ([f"security.users={setting.folder / 'few.toml'}"], {}),
        "TLS": (served, {"tls": tls, "curve": curve}),
        "both": (
            [*served, f"security.users={made / 'users.toml'}"],
            {"tls": tls, "curve": curve, "token": token},
        ),
        f"{USERS:,} users": ([f"security.users={setting.folder / 'many.toml'}"], {}),
    }
    with ExitStack() as held:
        found: dict[str, Place] = {}
        for name, (options, how) in kinds.items():
            words = [word for one in (*options, 'topics."#".keep=1h') for word in ("--set", one)]
            data = setting.folder / f"data-{len(found)}"
            broker = testing.Broker(data, *words, doors=OPEN, environment=environment())
            broker.patience = 600.0
            found[name] = Place(held.enter_context(broker), **how)  # type: ignore[arg-type]
        yield found


def many(setting: Setting) -> dict[str, User]:
    """Ann, who may do everything, has as many rules as all others have together."""
    users, rules = setting.sized(USERS, 100), setting.sized(RULES, 1000)
    others = {
        f"user-{number}": User(allow=(Rule.read(f"all homes/{number}/#"),)) for number in range(users - 1)
    }
    own = [Rule.read(f"all rooms/{number}/+/x") for number in range(rules - users)]
    return {"ann": User(allow=(Rule.read("all #"), *own)), **others}


def measured(place: Place, messages: int, do: Callable[[], object]) -> Done:
    process = psutil.Process(place.broker.pid)
    before, began = process.cpu_times(), time.perf_counter()
    do()
    took, after = time.perf_counter() - began, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Done(messages / took, 1e6 * cpu / messages)


def bulk(place: Place, name: str, rows: int) -> tuple[Done, Done]:
    table = pa.table({"payload": pa.array([b"x" * PAYLOAD] * rows, pa.binary())})
    with place.connect() as connection:
        connection.publish(name, table.slice(0, 1))
        published = measured(place, rows, lambda: connection.publish(name, table))

        def consume() -> None:
            found = connection.read(name, columns=["payload"])
            assert found.num_rows == rows + 1

        return published, measured(place, rows, consume)


def one_by_one(place: Place, name: str, messages: int) -> tuple[Done, Done]:
    with place.client() as client:
        client.subscribe(name)

        def publish() -> None:
            for _ in range(messages):
                client.put(name, "x" * PAYLOAD)

        def consume() -> None:
            for _ in range(messages):
                got = client.get(name)
                assert got is not None
                client.ack(got)

        found = measured(place, messages, publish), measured(place, messages, consume)
        client.unsubscribe(name)
        return found


def run(setting: Setting) -> list[Table]:
    rounds, rows, messages = (
        setting.sized(15, 1),
        setting.rows(1_000_000, 2000),
        setting.sized(300, 20),
    )
    ways: dict[str, tuple[Callable[[Place, str, int], tuple[Done, Done]], int, Bar]] = {
        "bulk": (bulk, rows, BULK),
        "one by one": (one_by_one, messages, SINGLE),
    }
    found: dict[tuple[str, str, str], list[Done]] = {}
    with places(setting) as kinds:
        for number in range(rounds):
            setting.say(f"round {number + 1} of {rounds}")
            for way, (measure, count, _) in ways.items():
                first = number % len(kinds)  # so that none is always the first, or behind the same one
                for kind, place in [*kinds.items()][first:] + [*kinds.items()][:first]:
                    for what, done in zip(
                        ("publish", "consume"), measure(place, f"t{number}", count), strict=True
                    ):
                        found.setdefault((what, way, kind), []).append(done)
    table_rows = []
    for (what, way, kind), several in found.items():
        usual = found[what, way, "nothing"]
        best = max(one.rate for one in several)
        values: dict[str, Value] = {
            "what": what,
            "way": way,
            "kind": kind,
            "rate": best,
            "cpu": min(one.cpu for one in several),
            "ratio": best / max(one.rate for one in usual),
        }
        table_rows.append(Row(values, () if kind == "nothing" else (ways[way][2],)))
    columns = (
        Column("what", ""),
        Column("way", "how"),
        Column("kind", "with"),
        Column("rate", "messages/s"),
        Column("cpu", "broker's CPU, µs each", 2),
        Column("ratio", "rate, of that with nothing", 2),
    )
    note = (
        f"The best of {rounds} rounds, in each of which all five brokers are measured one after the other: whatever "
        f"else the machine does only adds to the cost. Messages of {PAYLOAD} bytes, in bulk by Flight, one by one by "
        f"ZeroMQ, whose TLS is CURVE. Of {USERS:,} users with {RULES:,} rules one is measured, who has nine in ten of "
        "them."
    )
    cost = Table("What users, permissions and TLS cost", note, columns, tuple(table_rows), labels=3)
    return [cost, wire(setting, rounds, rows)]


def wire(setting: Setting, rounds: int, rows: int) -> Table:
    """What TLS costs where nothing is behind the wire: no broker can be cheaper."""
    table = pa.table({"payload": pa.array([b"x" * PAYLOAD] * rows, pa.binary())})
    best: dict[tuple[str, str], float] = {}
    with bare_flight(None) as plain, bare_flight(setting.folder / "secure") as encrypted:
        for _ in range(rounds):
            for kind, client in (("nothing", plain), ("TLS", encrypted)):
                for what, do in (("publish", bare_publish), ("consume", bare_consume)):
                    began = time.perf_counter()
                    do(client, table)
                    rate = rows / (time.perf_counter() - began)
                    best[what, kind] = max(rate, best.get((what, kind), 0.0))
    made = [
        Row({"what": what, "kind": kind, "rate": rate, "ratio": rate / best[what, "nothing"]})
        for (what, kind), rate in best.items()
    ]
    columns = (
        Column("what", ""),
        Column("kind", "with"),
        Column("rate", "messages/s"),
        Column("ratio", "rate, of that with nothing", 2),
    )
    note = (
        f"Arrow Flight without a broker: a server in another process keeps {rows:,} messages in memory and gives them "
        f"back. The best of {rounds} rounds, in turn."
    )
    return Table("The wire alone", note, columns, tuple(made), labels=2)
