"""One broker process: opens the store, the broker and the doors, and closes them again."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from ipaddress import ip_network
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa
import uvloop

from stafeta import logs
from stafeta.broker import Broker, Retention
from stafeta.config import Config, Keep, TopicRule
from stafeta.config.options import TLS_DOORS
from stafeta.curve import read_pair
from stafeta.doors.devices.receiver import Guard
from stafeta.doors.devices.server import DevicesDoor
from stafeta.doors.devices.signing import read_key
from stafeta.doors.frames.server import FramesDoor
from stafeta.doors.tls import Certificates, TlsFiles
from stafeta.doors.zeromq.server import ZeroMQDoor
from stafeta.errors import ConfigError, StafetaError
from stafeta.names import matcher
from stafeta.security import Security, Users
from stafeta.security.audit import TOPIC as AUDIT_TOPIC
from stafeta.security.audit import Audit
from stafeta.security.security import used_path
from stafeta.store.sqlite import SqliteStore
from stafeta.systemd import Service

if TYPE_CHECKING:
    from stafeta.doors.devices.sockets import Bound
    from stafeta.doors.figures import MeasuredDoor
    from stafeta.doors.flight.server import FlightDoor

log = logging.getLogger("stafeta.server")

# A commit's thread waits this long for the loop's to let it go on; Python's own 5 ms is longer than the disk takes.
SWITCH_INTERVAL = 0.0005

# Topics and subscriptions live long and are many: looking through all of them for cyclic garbage, as Python does now
# and then, would stop everything for a quarter of a second. What has lived for a minute is taken out of it.
GC_THRESHOLDS = (10_000, 20, 1_000_000)
GC_INTERVAL = 60.0

MEMORY = (
    (-3, 4 << 20),  # M_MMAP_THRESHOLD: bytes of what comes from the system and goes back by itself
    (-1, 8 << 20),  # M_TRIM_THRESHOLD: bytes that each thread's arena keeps of the rest
)

OWN_FILES = 256  # that are not for the connections of a door

# Where no configured rule says otherwise: nobody subscribes to the pipeline's reports, and its status is the last ones.
OWN_RULES = (
    TopicRule("$sys/pipeline/#", Keep(messages=100)),
    TopicRule(AUDIT_TOPIC, Keep(messages=10_000)),
)

TOKEN_USE = 60.0  # seconds between two times that it is written when tokens were used


def run(
    config: Config,
    reload: Callable[[], Config],
    observer: Callable[[str], None] | None = None,
    bound: "Sequence[Bound]" = (),
) -> int:
    """Serve until SIGTERM or SIGINT. The observer is called with a line for each device that comes or goes; the devices
    door takes sockets that are bound already for the first of its addresses."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    logs.configure(config.log_format, config.log_level)
    _raise_file_limit()
    _keep_memory()
    _keep_pandas_out()
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cut_off = runner.run(_serve(config, reload, observer, bound))
    if cut_off:  # Python would wait for their threads, and they for their clients
        logging.shutdown()
        os._exit(0)
    return 0


async def _serve(
    config: Config,
    reload: Callable[[], Config],
    observer: Callable[[str], None] | None,
    bound: "Sequence[Bound]",
) -> bool:
    """Returns whether calls are left that do not end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    durability = cast("Literal['fsync', 'os']", config.durability)
    gc.disable()  # until what is read at the start is out of its sight
    store = SqliteStore(config.data, durability=durability, checkpoint_rows=config.store.checkpoint_rows)
    security = _security(config)
    broker = await Broker.open(store, config.limits, _retention(config), config.store.tail, security)
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(broker.close)
        closing.callback(security.close)
        if security.configured:
            security.observer = _audit(config, broker).record
            _save_token_use(loop, security)
        security.start()
        certificates = _certificates(config)
        service = Service()
        closing.callback(service.stop_watching)
        reloading = _Reloading(broker, reload, config.security.users, certificates, service)
        loop.add_signal_handler(signal.SIGHUP, reloading.start)
        log.info(
            "opened %s",
            config.data,
            extra=logs.fields(topics=len(broker.topics), clients=len(broker.clients)),
        )
        _settle_garbage(loop)
        flight = await _open_doors(config, broker, certificates, closing, observer, bound)
        broker.start_collection(config.store.sweep)
        service.ready(_status(broker))
        service.watch(broker.ping)
        await stopping.wait()
        service.stopping()
        log.info("stopping")
    log.info("stopped")
    return flight is not None and flight.cut_off


def _status(broker: Broker) -> str:
    return f"open, with {len(broker.topics)} topics and {len(broker.clients)} clients"


async def _open_doors(
    config: Config,
    broker: Broker,
    certificates: dict[str, Certificates],
    closing: contextlib.AsyncExitStack,
    observer: Callable[[str], None] | None,
    bound: "Sequence[Bound]",
) -> "FlightDoor | None":
    connections = _connections(config)
    doors: list[MeasuredDoor] = []
    if config.zeromq.listen:
        options = config.zeromq
        door = ZeroMQDoor(
            broker,
            max_frame=options.max_frame,
            get_reply=options.get_reply,
            max_backlog=options.max_backlog,
            max_connections=connections,
            peer_timeout=config.limits.peer_timeout,
            handshake_timeout=config.limits.handshake_timeout,
            keys=read_pair(options.curve_key) if options.curve_key else None,
        )
        closing.push_async_callback(door.close)
        doors.append(door)
        for address in config.addresses(options.listen):
            door.listen(address.host, address.port)
        door.start()
    if config.devices.listen:
        devices = DevicesDoor(
            broker,
            buffer=config.devices.buffer,
            receive_buffer=config.devices.receive_buffer,
            max_connections=connections,
            peer_timeout=config.limits.peer_timeout,
            takeover=config.devices.takeover,
            observer=observer,
            certificates=certificates.get("devices"),
            guard=_guard(config),
        )
        closing.push_async_callback(devices.close)
        doors.append(devices)
        for address, sockets in zip_longest(config.addresses(config.devices.listen), bound):
            await devices.listen(address.host, address.port, sockets)
    if config.frames.listen:
        frames = FramesDoor(
            broker,
            buffer=config.frames.buffer,
            max_connections=connections,
            peer_timeout=config.limits.peer_timeout,
            certificates=certificates.get("frames"),
        )
        closing.push_async_callback(frames.close)
        doors.append(frames)
        for address in config.addresses(config.frames.listen):
            await frames.listen(address.host, address.port)
    if config.http.listen:
        await _open_http(config, broker, certificates, closing, connections, doors)
    if not config.flight.listen:
        return None
    from stafeta.doors.flight.server import FlightDoor  # takes its time, which a devices server need not

    flight = FlightDoor(
        broker,
        max_batch=config.flight.max_batch,
        max_streams=config.flight.max_streams,
        max_user_streams=config.flight.max_user_streams,
        max_connections=connections,
        certificates=certificates.get("flight"),
    )
    closing.push_async_callback(flight.close)
    doors.append(flight)
    for address in config.addresses(config.flight.listen):
        await flight.listen(address.host, address.port)
    return flight


async def _open_http(
    config: Config,
    broker: Broker,
    certificates: dict[str, Certificates],
    closing: contextlib.AsyncExitStack,
    connections: int,
    doors: "list[MeasuredDoor]",
) -> None:
    """With what is told of all doors, also of those that are opened later."""
    from stafeta.doors.http.server import HttpDoor  # the same
    from stafeta.metrics import Metrics, Overview
    from stafeta.metrics.jobs import Jobs
    from stafeta.sql_service import SqlService

    options = config.http
    metrics = Metrics(broker, doors)
    closing.callback(metrics.close)
    metrics.start()
    overview = Overview(broker, doors)
    closing.callback(overview.close)
    overview.start()
    http = HttpDoor(
        broker,
        buffer=options.buffer,
        max_connections=connections,
        max_body=options.max_body,
        peer_timeout=config.limits.peer_timeout,
        hosts=(*options.hosts, *(address.host for address in config.addresses(options.listen))),
        session=options.session,
        certificates=certificates.get("http"),
        metrics=metrics,
        overview=overview,
        sql=SqlService(Jobs(broker)),
    )
    closing.push_async_callback(http.close)
    doors.append(http)
    for address in config.addresses(options.listen):
        await http.listen(address.host, address.port)


def _connections(config: Config) -> int:
    """How many connections a door may have: what is configured, as far as the system has files for it."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = config.limits.max_connections
    possible = max(files - OWN_FILES, 16)
    if possible < most:
        log.warning(
            "doors take fewer connections than limits.max_connections says, since the system allows few open files",
            extra=logs.fields(max_connections=most, taken=possible, files=files),
        )
    return min(most, possible)


def _retention(config: Config) -> Callable[[str], Retention | None]:
    rules = [(matcher(rule.filter), _kept(rule)) for rule in (*config.topics, *OWN_RULES)]

    def retention(name: str) -> Retention | None:
        return next((kept for matches, kept in rules if matches(name)), None)

    return retention


def _kept(rule: TopicRule) -> Retention:
    keep = rule.keep
    age = None if keep.age_seconds is None else int(keep.age_seconds * 1_000_000)
    return Retention(age, keep.bytes, keep.messages, rule.filter)


def _certificates(config: Config) -> dict[str, Certificates]:
    """Of the doors that are open, and have any."""
    return {
        door: Certificates(files, config.limits.handshake_timeout, logging.getLogger(f"stafeta.{door}"))
        for door in TLS_DOORS
        if (files := _tls_files(config, door)) is not None and getattr(config, door).listen
    }


def _guard(config: Config) -> Guard | None:
    options = config.devices
    if not options.udp_networks and not options.udp_key:
        return None
    networks = [ip_network(one) for one in options.udp_networks]
    return Guard(networks, read_key(options.udp_key) if options.udp_key else None)


def _tls_files(config: Config, door: str) -> TlsFiles | None:
    options = getattr(config, door)
    if not options.tls_cert:
        return None
    return TlsFiles(options.tls_cert, options.tls_key, options.tls_client_ca)


def _reload_certificates(config: Config, certificates: dict[str, Certificates]) -> None:
    for door, held in certificates.items():
        files = _tls_files(config, door)
        try:
            if files is None:
                raise ConfigError("TLS cannot be taken off a door that is open.")
            held.reload(files)
        except ConfigError as error:
            log.error("the %s door keeps the certificate that it has: %s", door, error)
        else:
            log.info("the %s door has read its certificate again", door)


def _security(config: Config) -> Security:
    """Raises `ConfigError` where the file of users cannot be used."""
    options = config.security
    if not options.users:
        return Security()
    path = Path(options.users)
    return Security(Users.load(path), options.filters, used_path(path))


def _audit(config: Config, broker: Broker) -> Audit:
    def publish(event: bytes) -> None:
        try:
            broker.publish_own(AUDIT_TOPIC, event)
        except StafetaError as error:  # there is no room, or the broker is being closed
            log.warning("an event is not published: %s", error)
            return
        broker.commit().add_done_callback(lambda commit: commit.exception())

    path = Path(config.security.audit) if config.security.audit else None
    return Audit(publish, path, config.security.audit_size)


def _save_token_use(loop: asyncio.AbstractEventLoop, security: Security) -> None:
    security.save_use()
    loop.call_later(TOKEN_USE, _save_token_use, loop, security)


class _Reloading:
    """Takes over what can change while running: logs, limits, retention, users, certificates. To read a file of many
    users takes its time, for which a thread has it: others are served meanwhile."""

    def __init__(
        self,
        broker: Broker,
        reload: Callable[[], Config],
        users: str,
        certificates: dict[str, Certificates],
        service: Service,
    ) -> None:
        self._broker = broker
        self._reload = reload
        self._users = users
        self._certificates = certificates
        self._service = service
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self) -> None:
        async with self._one_at_a_time:
            self._service.reloading()
            try:
                await self._read()
            finally:
                self._service.ready(_status(self._broker))

    async def _read(self) -> None:
        try:
            config = self._reload()
            if config.security.users != self._users:
                raise ConfigError("security.users: another file of users needs a new start of the broker.")
            known = await asyncio.to_thread(Users.load, Path(self._users)) if self._users else None
        except ConfigError as error:
            log.error("the configuration was not reloaded: %s", error)
            return
        self._take(config, known)

    def _take(self, config: Config, known: Users | None) -> None:
        broker = self._broker
        if known is not None:
            broker.security.whole_filters = config.security.filters == "refuse"
            broker.security.replace(known)
        logs.configure(config.log_format, config.log_level)
        broker.reconfigure(config.limits, _retention(config))
        _reload_certificates(config, self._certificates)
        log.info("the configuration was reloaded; doors and the data folder stay as they are")


def _settle_garbage(loop: asyncio.AbstractEventLoop) -> None:
    if gc.isenabled():
        gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    loop.call_later(GC_INTERVAL, _settle_garbage, loop)


def _keep_memory() -> None:
    """Have the C library keep the memory that a batch was received in for the next one: to give it back to the system
    and get it anew, page by page, takes as long as to write the batch. Only glibc has it so."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MEMORY:
            mallopt(option, value)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("a broker has no use for it")


def _keep_pandas_out() -> None:
    """Arrow imports pandas, where it is installed, for the first array that it makes: 0.2 s and 40 MB for nothing."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([b""])
    finally:
        sys.meta_path.remove(finder)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
