"""Every option there is, with its default.

A new section is one more dataclass and one more field of Config: files, environment, flags, `--check` and the
messages about mistakes follow from that. A section with an option `listen` is a door.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from stafeta.addresses import Address
from stafeta.config import forms
from stafeta.config.forms import Form, Keep, Plain
from stafeta.errors import ConfigError

T = TypeVar("T")
Key: TypeAlias = tuple[str, ...]
Tables: TypeAlias = dict[str, "Plain | Tables"]


class Flag(NamedTuple):
    """An option's own flag of `stafeta serve`: what stands for the value in its help, and what it means."""

    metavar: str
    help: str


def option(default: T, form: Form[T], flag: Flag | None = None) -> T:
    """A field of a section, how its value is read and written, and its flag, if it has one."""
    return field(default=default, metadata={"form": form, "flag": flag})


_LISTEN = "PORT|off|LIST"
_PEM = forms.text("the path of a PEM file", empty=True)
TLS_DOORS = ("devices", "frames", "flight", "http")
"""Those whose connections can be TLS: each has the options `tls_cert`, `tls_key` and `tls_client_ca`."""


@dataclass(frozen=True, slots=True)
class ZeroMQ:
    listen: tuple[Address, ...] = option(
        (Address("", 9001),), forms.listen(), Flag(_LISTEN, "where the ZeroMQ door listens")
    )
    max_frame: int = option(16 << 20, forms.size(1 << 10))
    get_reply: int = option(256 << 10, forms.size(1 << 10))
    max_backlog: int = option(16 << 20, forms.size(1 << 10))
    curve_key: str = option("", forms.text("the path of a secret key, NAME.key", empty=True))


@dataclass(frozen=True, slots=True)
class Devices:
    listen: tuple[Address, ...] = option(
        (Address("", 12345),), forms.listen(), Flag(_LISTEN, "where the devices door listens, UDP and TCP")
    )
    buffer: int = option(256 << 10, forms.size(4 << 10))
    receive_buffer: int = option(32 << 20, forms.size(4 << 10))
    takeover: bool = option(False, forms.flag())
    udp_networks: tuple[str, ...] = option((), forms.networks())
    udp_key: str = option("", forms.text("the path of a key", empty=True))
    tls_cert: str = option("", _PEM)
    tls_key: str = option("", _PEM)
    tls_client_ca: str = option("", _PEM)


@dataclass(frozen=True, slots=True)
class Frames:
    listen: tuple[Address, ...] = option(
        (Address("", 5000),), forms.listen(), Flag(_LISTEN, "where the frames door listens")
    )
    buffer: int = option(256 << 10, forms.size(4 << 10))
    tls_cert: str = option("", _PEM)
    tls_key: str = option("", _PEM)
    tls_client_ca: str = option("", _PEM)


@dataclass(frozen=True, slots=True)
class Flight:
    listen: tuple[Address, ...] = option(
        (Address("", 8815),), forms.listen(), Flag(_LISTEN, "where the Flight door listens")
    )
    max_batch: int = option(64 << 20, forms.size(1 << 10))
    max_streams: int = option(256, forms.count(1))
    max_user_streams: int = option(128, forms.count(1))  # of one user, where there are users
    tls_cert: str = option("", _PEM)
    tls_key: str = option("", _PEM)
    tls_client_ca: str = option("", _PEM)


@dataclass(frozen=True, slots=True)
class Http:
    listen: tuple[Address, ...] = option(
        (Address("", 8080),), forms.listen(), Flag(_LISTEN, "where the HTTP door listens")
    )
    buffer: int = option(64 << 10, forms.size(4 << 10))
    max_body: int = option(16 << 20, forms.size(1 << 10))
    hosts: tuple[str, ...] = option((), forms.hosts())
    session: float = option(12 * 3600.0, forms.duration(1.0))
    tls_cert: str = option("", _PEM)
    tls_key: str = option("", _PEM)
    tls_client_ca: str = option("", _PEM)


@dataclass(frozen=True, slots=True)
class Security:
    """Who may come in, and do what. Without a file of users nobody is asked."""

    users: str = option(
        "", forms.text("the path of a file", empty=True), Flag("FILE", "users and what they may do")
    )
    filters: str = option("cut", forms.choice("cut", "refuse"))  # those that reach further than is allowed
    audit: str = option("", forms.text("the path of a file", empty=True))  # who did what; "": no file
    audit_size: int = option(64 << 20, forms.size(1 << 10))  # bytes of it, before it begins anew


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may use up."""

    max_payload: int = option(8 << 20, forms.size())  # bytes in one message
    max_pending: int = option(
        64 << 20, forms.size(1 << 10)
    )  # bytes not durable yet, before doors stop reading
    max_lag: int = option(1_000_000, forms.count(1))  # messages that a live subscription may be behind
    max_topics: int = option(1_000_000, forms.count(1))
    max_subscriptions: int = option(1_000_000, forms.count(1))
    max_gaps: int = option(250_000, forms.count(1))  # ranges acknowledged on a topic beyond what is left out
    max_producers: int = option(1_000_000, forms.count(1))  # remembered, once for each topic they publish to
    max_connections: int = option(15_000, forms.count(1))  # of a door
    max_address_connections: int = option(15_000, forms.count(1))  # of a door, from one address
    identify_timeout: float = option(30.0, forms.duration())  # seconds until a connection has said something
    idle_timeout: float = option(
        3600.0, forms.duration()
    )  # seconds of silence, where it subscribes to nothing
    max_user_topics: int = option(100_000, forms.count(1))  # that a user has made since the start
    max_user_subscriptions: int = option(100_000, forms.count(1))
    max_client_requests: int = option(100_000, forms.count(1))  # a second, of a user at one address
    max_client_bytes: int = option(1 << 30, forms.size(1 << 10))  # that such a one sends in a second
    peer_timeout: float = option(
        60.0, forms.duration()
    )  # seconds in which a peer takes nothing of what is sent
    handshake_timeout: float = option(10.0, forms.duration())  # seconds in which TLS has to be agreed on


@dataclass(frozen=True, slots=True)
class Store:
    tail: int = option(32 << 20, forms.size(0))
    checkpoint_rows: int = option(100_000, forms.count(1))
    sweep: float = option(1.0, forms.duration())


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables are. A `catalog` without a name is an SQLite file in the warehouse's folder."""

    warehouse: str = option("stafeta-lake", forms.text("a folder, or a URL such as s3://bucket/lake"))
    catalog: str = option("", forms.text("the name of a catalog", empty=True))
    namespace: str = option("stafeta", forms.text("the name of a namespace"))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How jobs run. `checkpoints` without a name is a folder in the warehouse."""

    broker: str = option("grpc://127.0.0.1:8815", forms.text("the address of a Flight door"))
    subscribe: str = option("#", forms.filters())
    checkpoints: str = option("", forms.text("a folder or a URL", empty=True))
    trigger: float = option(1.0, forms.duration(0.0))
    batch: int = option(1_000_000, forms.count(1))
    grace: float = option(600.0, forms.duration(0.0))


@dataclass(frozen=True, slots=True)
class Archive:
    every: float = option(10.0, forms.duration(0.0))
    size: int = option(8 << 20, forms.size(0))


@dataclass(frozen=True, slots=True)
class Rollup:
    sizes: tuple[float, ...] = option((60.0,), forms.durations())
    delay: float = option(10.0, forms.duration(0.0))


@dataclass(frozen=True, slots=True)
class Alerts:
    rules: str = option("alerts.toml", forms.text("the path of a TOML file"))


@dataclass(frozen=True, slots=True)
class Deadletter:
    schemas: str = option("", forms.text("the path of a TOML file", empty=True))


@dataclass(frozen=True, slots=True)
class Compact:
    size: int = option(128 << 20, forms.size(1 << 20))
    keep: float = option(86_400.0, forms.duration(0.0))


class TopicRule(NamedTuple):
    """What holds for the topics that a filter matches."""

    filter: str
    keep: Keep


@dataclass(frozen=True, slots=True)
class Config:
    data: Path = option(Path("stafeta-data"), forms.folder(), Flag("DIR", "folder of the log"))
    host: str = option("127.0.0.1", forms.host(), Flag("ADDRESS", "address that doors listen on"))
    durability: str = option(
        "fsync",
        forms.choice("fsync", "os"),
        Flag("fsync|os", "what a commit waits for: the disk, or the system"),
    )
    allow_anyone: bool = option(
        False, forms.flag(), Flag("", "listen on addresses that other machines can reach")
    )
    log_format: str = option(
        "text", forms.choice("text", "json"), Flag("text|json", "form of the log on standard error")
    )
    log_level: str = option(
        "info",
        forms.choice("debug", "info", "warning", "error"),
        Flag("LEVEL", "least line to log: debug, info, warning or error"),
    )
    zeromq: ZeroMQ = field(default_factory=ZeroMQ)
    devices: Devices = field(default_factory=Devices)
    frames: Frames = field(default_factory=Frames)
    flight: Flight = field(default_factory=Flight)
    http: Http = field(default_factory=Http)
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    store: Store = field(default_factory=Store)
    lake: Lake = field(default_factory=Lake)
    pipeline: Pipeline = field(default_factory=Pipeline)
    archive: Archive = field(default_factory=Archive)
    rollup: Rollup = field(default_factory=Rollup)
    alerts: Alerts = field(default_factory=Alerts)
    deadletter: Deadletter = field(default_factory=Deadletter)
    compact: Compact = field(default_factory=Compact)
    topics: tuple[TopicRule, ...] = ()

    def addresses(self, listen: tuple[Address, ...]) -> tuple[Address, ...]:
        """The addresses of a door, with `host` where they name none."""
        return tuple(Address(address.host or self.host, address.port) for address in listen)

    def check(self) -> None:
        """Refuses options that are right one by one but not together."""
        for door in TLS_DOORS:
            _check_tls(door, getattr(self, door))
        if self.allow_anyone or self.security.users:
            return
        for section in SECTIONS:
            for address in self.addresses(getattr(getattr(self, section), "listen", ())):
                if not address.loopback:
                    raise ConfigError(
                        f"{section}.listen: {address} can be reached from other machines, and whoever comes from "
                        "there may read and write everything. Name a file of users (--users), listen on 127.0.0.1, or "
                        "set allow_anyone = true (--allow-anyone) if that is what you want."
                    )

    def to_plain(self) -> Tables:
        """What a TOML file that sets every option as it is here would hold."""
        plain: Tables = {}
        for (*table, name), form in OPTIONS.items():
            owner, into = self, plain
            for section in table:
                owner, into = getattr(owner, section), cast("Tables", into.setdefault(section, {}))
            into[name] = form.write(getattr(owner, name))
        if self.topics:
            plain["topics"] = {rule.filter: {"keep": KEEP.write(rule.keep)} for rule in self.topics}
        return plain

    def to_toml(self) -> str:
        from stafeta.config.toml import write

        return write(self.to_plain())


def _check_tls(door: str, options: "Devices | Frames | Flight | Http") -> None:
    given, missing = ("cert", "key") if options.tls_cert else ("key", "cert")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError(f"{door}.tls_{given} goes with {door}.tls_{missing}: set both, or none.")
    if options.tls_client_ca and not options.tls_cert:
        raise ConfigError(
            f"{door}.tls_client_ca says whose certificates are taken, but the door has none itself: set "
            f"{door}.tls_cert and {door}.tls_key."
        )


KEEP = forms.keep()

_DEFAULTS = Config()
SECTIONS: dict[str, type[Any]] = {
    one.name: type(value) for one in fields(Config) if is_dataclass(value := getattr(_DEFAULTS, one.name))
}


def _options(path: Key, section: type[Any]) -> dict[Key, Form[Any]]:
    return {(*path, one.name): one.metadata["form"] for one in fields(section) if "form" in one.metadata}


def _flags(path: Key, section: type[Any]) -> dict[Key, tuple[str, str]]:
    """The options of a section that have flags: what stands for the value, and the help, with the default behind it."""
    found: dict[Key, tuple[str, str]] = {}
    for one in fields(section):
        if flag := one.metadata.get("flag"):
            text = f"{flag.help} ({one.metadata['form'].write(one.default)})" if flag.metavar else flag.help
            found[*path, one.name] = flag.metavar, text
    return found


OPTIONS: dict[Key, Form[Any]] = _options((), Config)
FLAGS: dict[Key, tuple[str, str]] = _flags((), Config)  # without what stands for the value: it is on, or not
for _name, _section in SECTIONS.items():
    OPTIONS |= _options((_name,), _section)
    FLAGS |= _flags((_name,), _section)
