"""What a query may say to `format("stafeta")`. (docs/spark.md)

1. Names are as Spark's Kafka source has them wherever the meaning is the same. Spark does not tell large letters from
   small.
2. An option that is not known is an error: a misspelt one would otherwise be overlooked.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from stafeta import credentials, times
from stafeta.addresses import FLIGHT, read_flight
from stafeta.credentials import Login
from stafeta.errors import ConfigError, InvalidName
from stafeta.message import Kind
from stafeta.names import check_client, check_filter, check_name, matcher
from stafeta.units import parse_count, parse_duration

if TYPE_CHECKING:
    from stafeta.clients.flight.channel import Channel
    from stafeta.clients.flight.connection import Connection
    from stafeta.clients.tls import Tls

Edge: TypeAlias = Literal["earliest", "latest"]
Offset: TypeAlias = int | Edge
NEW_TOPICS: Final = "new topics"
LOOKED: Final = "looked at"
"""Keys of a stream's offsets, beside the topics: they have a space in them, which no topic has."""

_FOR_BATCH: Final = ("endingOffsets", "endingTimestamp", "pushdown")
_FOR_STREAMS: Final = (
    "durable",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "idleTrigger",
    "idleTriggerFor",
)
_FOR_WRITES: Final = ("txnAppId", "txnVersion")
_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}


_NOBODY: Final = Login()


@dataclass(frozen=True)
class Address:
    """Where the broker is, and who asks."""

    broker: str = FLIGHT
    timeout: float = 120.0
    login: Login = _NOBODY
    roots: str | None = None
    certificate: str | None = None
    key: str | None = None
    hostname: str | None = None

    def connect(self) -> "Connection":
        """A connection, which is made when it is first used."""
        from stafeta.clients.flight.connection import Connection

        return Connection(self.broker, timeout=self.timeout, tls=self._tls(), **self._login())

    def channel(self) -> "Channel":
        """The same for who makes the calls himself."""
        from stafeta.clients.flight.channel import Channel

        return Channel(self.broker, self.timeout, tls=self._tls(), **self._login())

    def _login(self) -> dict[str, str | None]:
        return {"user": self.login.user, "password": self.login.password, "token": self.login.token}

    def _tls(self) -> "Tls | None":
        named = self.roots or self.certificate or self.key or self.hostname
        if not named or not self.broker.startswith("grpc+tls:"):
            return None
        from stafeta.clients.tls import Tls

        return Tls(self.roots, self.certificate, self.key, self.hostname)


@dataclass(frozen=True)
class StartOffset:
    """Where reading begins or ends: an edge or offsets by topic, or a time."""

    offsets: Edge | Mapping[str, Offset]
    time: int | None = None
    """Microseconds since 1970; goes before the offsets."""

    def of(self, topic: str, otherwise: Edge) -> Offset:
        """The place in a topic, where no time is given."""
        if isinstance(self.offsets, str):
            return self.offsets
        return self.offsets.get(topic, otherwise)


@dataclass(frozen=True)
class ReadOptions:
    address: Address
    filters: tuple[str, ...]
    start: StartOffset
    end: StartOffset
    max_offsets: int | None
    min_offsets: int | None
    max_delay: float
    idle_trigger: float | None
    idle_trigger_for: float
    min_partitions: int
    max_records: int | None
    fail_on_data_loss: bool
    durable: str | None
    checkpoint: str | None
    columns: tuple[str, ...] | None
    decode: bool
    batch_rows: int | None
    pushdown: bool

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> "ReadOptions":
        given = _Given(options, "reading")
        given.refuse(_FOR_BATCH if streaming else _FOR_STREAMS, "batch reads" if streaming else "streams")
        address = _address(given)
        filters = given.take("subscribe", _filters, ())
        start = StartOffset(
            given.take("startingOffsets", _offsets, "latest" if streaming else "earliest"),
            given.take("startingTimestamp", times.parse),
        )
        reading = cls(
            address,
            filters,
            start,
            StartOffset(
                given.take("endingOffsets", _offsets, "latest"), given.take("endingTimestamp", times.parse)
            ),
            given.take("maxOffsetsPerTrigger", _positive),
            given.take("minOffsetsPerTrigger", _positive),
            given.take("maxTriggerDelay", parse_duration, 15 * 60.0),
            given.take("idleTrigger", parse_duration),
            given.take("idleTriggerFor", parse_duration, inf),
            given.take("minPartitions", _positive, 1),
            given.take("maxRecordsPerPartition", _positive),
            given.take("failOnDataLoss", _flag, True),
            given.take("durable", _client),
            given.take("checkpointLocation", str),
            given.take("columns", _names),
            given.take("decode", _flag, False),
            given.take("batchRows", _positive),
            given.take("pushdown", _flag, False),
        )
        given.end()
        if not filters:
            raise ConfigError(
                "The option 'subscribe' is missing: name a topic or a filter, such as 'upb/+/temperature'."
            )
        for option, place in (("startingOffsets", reading.start), ("endingOffsets", reading.end)):
            for topic in () if isinstance(place.offsets, str) else place.offsets:
                if not any(matcher(filter_)(topic) for filter_ in filters):
                    raise ConfigError(
                        f"The option {option!r} names the topic {topic!r}, which {', '.join(filters)!r} does not match."
                    )
        if (
            reading.min_offsets is not None
            and reading.max_offsets is not None
            and reading.min_offsets > reading.max_offsets
        ):
            raise ConfigError("The option 'minOffsetsPerTrigger' is above 'maxOffsetsPerTrigger'.")
        return reading


@dataclass(frozen=True)
class WriteOptions:
    address: Address
    topic: str | None
    kind: str | None
    transaction: tuple[str, int] | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> "WriteOptions":
        given = _Given(options, "writing")
        if streaming:
            given.refuse(_FOR_WRITES, "batch writes: a stream's sink has its query id and batch id")
        address = _address(given)
        topic, kind = given.take("topic", _topic), given.take("kind", _kind)
        name, version = given.take("txnAppId", _client), given.take("txnVersion", parse_count)
        given.end()
        if (name is None) != (version is None):
            raise ConfigError("The options 'txnAppId' and 'txnVersion' go together: give both, or none.")
        transaction = None if name is None or version is None else (name, version)
        return cls(address, topic, kind, transaction)


class Misplaced(ConfigError):
    """An option that is for a stream, or for a batch, where it is the other."""


class _Given:
    """The options as Spark gives them, of which each is to be taken."""

    def __init__(self, options: Mapping[str, str], what: str) -> None:
        self._left = {name.lower(): value for name, value in options.items()}
        self._what = what
        self._known: list[str] = []

    def take(self, name: str, parse: Callable[[str], Any], default: Any = None) -> Any:
        self._known.append(name)
        text = self._left.pop(name.lower(), None)
        if text is None:
            return default
        try:
            return parse(text)
        except (ConfigError, InvalidName) as error:
            raise ConfigError(f"The option {name!r}: {error}") from None

    def refuse(self, names: Iterable[str], purpose: str) -> None:
        for name in names:
            if name.lower() in self._left:
                raise Misplaced(f"The option {name!r} does not count here: it is for {purpose}.")

    def end(self) -> None:
        for name in self._left.keys() - _SPARKS_OWN:
            if name == "path":
                raise ConfigError(
                    "A topic is no path: name it with option('subscribe', …) to read and option('topic', …) to write."
                )
            near = get_close_matches(name, [known.lower() for known in self._known], 1)
            meant = [known for known in self._known if known.lower() in near]
            hint = f"; did you mean {meant[0]!r}?" if meant else f"; there are {', '.join(self._known)}."
            raise ConfigError(f"There is no option {name!r} for {self._what}{hint}")


def offsets_of(value: object) -> dict[str, Offset]:
    """Offsets by topic, as they are written in JSON."""
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r} is no object of offsets by topic.")
    return {topic: _offset(topic, place) for topic, place in value.items() if " " not in topic}


def _offset(topic: str, place: object) -> Offset:
    check_name(topic)
    match place:
        case "earliest" | -2:
            return "earliest"
        case "latest" | -1:
            return "latest"
        case bool():
            pass
        case int() if place >= 0:
            return max(place, 1)
    raise ConfigError(
        f"{place!r} is no offset of {topic!r}; write 1 or more, or -2 for 'earliest' and -1 for 'latest'."
    )


def _address(given: _Given) -> Address:
    return Address(
        given.take("broker", read_flight, Address.broker),
        given.take("timeout", _timeout, Address.timeout),
        _login(given),
        given.take("tlsRoots", str) or credentials.variable("ca"),
        given.take("tlsCertificate", str) or credentials.variable("cert"),
        given.take("tlsKey", str) or credentials.variable("key"),
        given.take("tlsHostname", str) or credentials.variable("tls_hostname"),
    )


def _login(given: _Given) -> Login:
    """Who asks: as the options say it, or else the driver's environment. Tasks are given it, and look for no other."""
    user, password, token = (given.take(name, str) for name in ("user", "password", "token"))
    password_file, token_file = given.take("passwordFile", str), given.take("tokenFile", str)
    if password_file is not None:
        password = credentials.read_secret(password_file)
    if token_file is not None:
        token = credentials.read_secret(token_file)
    return credentials.login(user, password, token)


def _offsets(text: str) -> Edge | dict[str, Offset]:
    plain = text.strip()
    if plain.lower() in ("earliest", "latest"):
        return "earliest" if plain.lower() == "earliest" else "latest"
    try:
        return offsets_of(json.loads(plain))
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither 'earliest' nor 'latest' nor offsets by topic, such as {{\"upb/hall\": 23}}."
        ) from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(f"{text!r} has an empty name in it; put one comma between two names.")
    return names


def _filters(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_names(text)))
    for name in names:
        check_filter(name)
    return names


def _topic(text: str) -> str:
    check_name(text)
    return text


def _client(text: str) -> str:
    check_client(text)
    return text


def _kind(text: str) -> str:
    words = [kind.word for kind in Kind]
    if text not in words:
        raise ConfigError(f"{text!r} is no kind; there are {', '.join(words)}.")
    return text


def _positive(text: str) -> int:
    count = parse_count(text)
    if count < 1:
        raise ConfigError("It must be 1 or more.")
    return count


def _timeout(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds:
        raise ConfigError("It must be more than nothing.")
    return seconds


def _flag(text: str) -> bool:
    plain = text.strip().lower()
    if plain not in ("true", "false"):
        raise ConfigError(f"{text!r} is neither true nor false.")
    return plain == "true"
