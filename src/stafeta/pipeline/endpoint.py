"""The Spark of a running pipeline, for whoever has a question.

1. Statements of SQL go to a server of ours in the process of the pipeline (`sql/server.py`): who asks needs no PySpark.
   Jobs such as audit, which are programs, use a Spark Connect endpoint in the JVM.
2. Both listen on loopback, and answer who has their token. Ports and token are in a file that only the same user can
   read; the token is in no command line, no log and no topic. A question is asked there if it is about the same broker
   and the same lake.
3. An endpoint that does not answer is not there: what a killed pipeline has left of it is in nobody's way. A port that
   another user listens on is not asked. PySpark sends a token to `localhost` alone, which may be the address of IPv6:
   so nobody gets the same port there while the endpoint is open.
4. Jobs and questions share Spark's tasks fairly: a long question does not hold up a micro-batch.
5. Spark is warmed up for questions once there is little else to do (`sql/warming.py`).
"""

import errno
import hashlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stafeta import state
from stafeta.errors import ConfigError, InvalidFrame
from stafeta.pipeline.disk import location
from stafeta.pipeline.runner.queries import is_local
from stafeta.pipeline.session import session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

    from stafeta.config import Config
    from stafeta.pipeline.sql.client import RemoteQueries

log = logging.getLogger("stafeta.pipeline")

_FOLDER: Final = "spark"
_LISTENS: Final = "0A"  # in the system's table of connections
_TIMEOUT: Final = 0.5  # seconds that an endpoint has to take a connection
_SETTINGS: Final = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}
_TOKEN: Final = "spark.connect.authenticate.token"  # noqa: S105 - its name


@contextmanager
def opened(spark: "SparkSession", config: "Config") -> Iterator[str | None]:
    """Lets others ask this session for as long as it lasts; yields the address of its Spark Connect endpoint, or None
    where nobody can ask: Spark is somewhere else, or cannot open one."""
    if not is_local(spark):
        yield None
        return
    from stafeta.pipeline.sql.server import SqlServer
    from stafeta.pipeline.sql.warming import WarmUp

    token = secrets.token_urlsafe(32)
    with ExitStack() as held:
        try:
            port = _opened(spark, token)
            if socket.has_ipv6:
                held.enter_context(_ipv6_taken(port))
        except Exception:
            log.warning("Spark opens no endpoint: questions start a Spark of their own.", exc_info=True)
            yield None
            return
        path = _file(config, os.getpid())
        server = held.enter_context(SqlServer(spark, config, token))
        held.enter_context(WarmUp(spark, config))
        try:
            place = _Place(port, server.port, token)
            _write(path, place._asdict())
            yield place.address
        finally:
            with suppress(OSError):
                path.unlink()


class _Place(NamedTuple):
    """Where a pipeline is asked."""

    connect: int
    sql: int
    token: str

    @property
    def address(self) -> str:
        """As reports have it."""
        return f"sc://localhost:{self.connect}"


def found(config: "Config") -> str | None:
    """The address of a Spark Connect endpoint for questions about this broker and lake, with its token, if there is
    one."""
    for place in _places(config):
        return f"{place.address}/;token={place.token}"
    return None


def queries(config: "Config", tell: "Callable[[str], None]") -> "RemoteQueries | None":
    """Whoever carries out statements about this broker and lake, if a pipeline does. `tell` takes sentences for whoever
    asks."""
    from stafeta.pipeline.sql.client import RemoteQueries

    for place in _places(config):
        with suppress(OSError, InvalidFrame):  # it has just ended, or is about to
            return RemoteQueries(place.sql, place.token, tell)
    return None


def answers(connect: "Collection[str]") -> bool:
    """Whether a pipeline can be asked whose jobs report one of these Spark Connect endpoints."""
    return any(place.address in connect for place in _found((state.folder() / _FOLDER).glob("*.json")))


def read_only_queries(
    connect: "Collection[str]", tell: "Callable[[str], None]", most: int
) -> "RemoteQueries | None":
    """Whoever answers those who only read, of the pipelines whose jobs report one of these Spark Connect endpoints. An
    answer has frames of `most` bytes at most."""
    from stafeta.pipeline.sql.client import RemoteQueries

    for place in _found((state.folder() / _FOLDER).glob("*.json")):
        if place.address in connect:
            with suppress(OSError, InvalidFrame):
                return RemoteQueries(place.sql, place.token, tell, read_only=True, most=most)
    return None


def _places(config: "Config") -> Iterator[_Place]:
    return _found(_file(config, 0).parent.glob(f"{_key(config)}-*.json"))


def _found(files: "Iterable[Path]") -> Iterator[_Place]:
    """The latest first. Files of those that are gone are removed."""
    for path in sorted(files, key=_changed, reverse=True):
        try:
            known = json.loads(path.read_text())
            place = _Place(int(known["connect"]), int(known["sql"]), str(known["token"]))
            if not (_listeners(place.connect) | _listeners(place.sql)) <= {os.getuid()}:
                continue
            socket.create_connection(("127.0.0.1", place.sql), _TIMEOUT).close()
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            continue
        else:
            yield place


def session_for_questions(
    config: "Config",
    *,
    own: bool,
    master: str | None = None,
    remote: str | None = None,
    name: str = "stafeta",
    settings: "Mapping[str, str] | None" = None,
    verbose: bool = False,
    starting: "Callable[[], None]" = lambda: None,
) -> "SparkSession":
    """A session in the Spark of a pipeline that runs, if there is one and nothing else is asked for; otherwise one of
    its own, which takes a while: `starting` is called before."""
    address = None if own or master or remote or settings else found(config)
    if address is not None:
        with suppress(ConfigError):  # it has just ended
            return session(config, remote=address, verbose=verbose)
    starting()
    return session(config, master=master, remote=remote, name=name, settings=settings, verbose=verbose)


def _opened(spark: "SparkSession", token: str) -> int:
    """Opens an endpoint; returns its port. The settings go to the JVM's own, past the command line."""
    context: Any = spark.sparkContext
    scala = context._jsc.sc()
    for name, value in (_SETTINGS | {_TOKEN: token}).items():
        scala.conf().set(name, value)
    package = context._jvm.org.apache.spark.sql.connect.service
    package.SparkConnectService.start(scala)
    return int(getattr(getattr(package, "SparkConnectService$"), "MODULE$").server().getPort())


@contextmanager
def _ipv6_taken(port: int) -> Iterator[None]:
    """Has a port of IPv6's loopback, on which nothing listens."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
        try:
            one.bind(("::1", port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # there is no IPv6
                raise
        yield


def _listeners(port: int) -> set[int]:
    """The users who listen on a port of this machine, as far as the system says so."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return found


def _file(config: "Config", process: int) -> Path:
    return state.folder() / _FOLDER / f"{_key(config)}-{process}.json"


def _key(config: "Config") -> str:
    lake = config.lake
    about = (config.pipeline.broker, location(lake.warehouse), lake.catalog, lake.namespace)
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _write(path: Path, what: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(what, file)
    draft.replace(path)
