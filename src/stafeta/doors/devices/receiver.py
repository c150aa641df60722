"""Taking datagrams off a socket, many at a time, in a thread of its own.

1. The kernel's buffer holds a few milliseconds of a fast sender; the event loop may be busy for longer. A thread
   that does nothing else empties it in time, and hands what came together to the loop together.
2. On Linux one system call (recvmmsg) takes up to a thousand datagrams.
3. If the loop does not keep up, `limit` bytes wait for it; beyond that the kernel's buffer fills, and then datagrams
   are lost. The kernel counts them.
"""

import asyncio
import ctypes
import errno
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from stafeta import addresses
from stafeta.addresses import EVERY, EVERY_IPV4
from stafeta.doors.devices.readings import HEAD, MAX_CONTENT, read_parts
from stafeta.doors.devices.signing import TRAILER, Verifier
from stafeta.errors import InvalidDatagram
from stafeta.logs import fatal
from stafeta.message import Kind

log = logging.getLogger("stafeta.devices")

DATAGRAMS: Final = 1024  # taken at once
SLOT: Final = HEAD + MAX_CONTENT + TRAILER + 1  # one more than the longest, to tell a longer one
COST: Final = 400  # bytes of memory that a reading takes beside its payload, roughly
RETRY_INTERVAL: Final = 1.0  # seconds until it is tried again after an error of the system
CLOSING: Final = 0.3  # seconds for which datagrams are still taken when the door closes
KNOWN: Final = 20_000  # senders remembered

Network: TypeAlias = IPv4Network | IPv6Network
Reading: TypeAlias = tuple[str, Kind, bytes, str]  # topic, kind, payload, source
Datagram: TypeAlias = tuple[bytes, bytes, int, str]  # head, content and more, length of the datagram, source

_SLOT_FORM = struct.Struct(f"{HEAD}s{SLOT - HEAD}s")


class Received(NamedTuple):
    """What came together."""

    readings: list[Reading]
    invalid: int  # datagrams that could not be read
    example: str  # what is wrong with one of them
    ended: bool  # there was nothing, or an empty datagram, which wakes the thread up
    refused: int = 0  # from where nobody may send, or not signed as they must be


class Guard:
    """Whose datagrams are taken: of these networks, if any are named, and signed with the key, if there is one."""

    def __init__(self, networks: Sequence[Network] = (), key: bytes | None = None) -> None:
        self._networks = networks
        self._verifier = None if key is None else Verifier(key)
        self._within = lru_cache(KNOWN)(self._is_within)

    def admit(self, datagrams: Iterator[Datagram], refused: list[str]) -> Iterator[Datagram]:
        """Those that are taken; why others are not is added to `refused`."""
        verifier = self._verifier
        for head, content, length, source in datagrams:
            if not length:
                yield head, content, length, source
            elif not self._within(source):
                refused.append("They come from outside of devices.udp_networks.")
            elif verifier is None:
                yield head, content, length, source
            else:
                try:
                    data = verifier.verify((head + content)[: min(length, SLOT)])
                except InvalidDatagram as error:
                    refused.append(str(error))
                else:
                    yield data[:HEAD].ljust(HEAD, b"\0"), data[HEAD:], len(data), source

    def _is_within(self, source: str) -> bool:
        host = ip_address(addresses.split(source).host)
        return not self._networks or any(host in network for network in self._networks)


class Receiver:
    """Calls `take`, on the loop, with what came; it has to say `done` with each."""

    def __init__(
        self,
        udp: socket.socket,
        limit: int,
        take: Callable[[Received], None],
        guard: Guard | None = None,
    ) -> None:
        self._socket = udp
        self._guard = guard
        self._limit = limit
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._handed = 0  # bytes, counted by the thread
        self._done = 0  # and by the loop
        self._room = threading.Event()
        self._closed = False
        self._deadline = 0.0
        _enlarge(udp, limit)
        udp.setblocking(True)
        self._thread = threading.Thread(target=self._run, name="devices-receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self, received: Received) -> None:
        self._done += _cost(received)
        self._room.set()

    def close(self) -> None:
        """Take what is there, and no more."""
        self._deadline = time.monotonic() + CLOSING
        self._closed = True
        self._room.set()
        # If the buffer is so full that the empty datagram is lost, the thread ends with what is in it.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        host, port = self._socket.getsockname()[:2]
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as waker:
            # Who listens everywhere is reached on loopback.
            waker.sendto(b"", ({EVERY_IPV4: "127.0.0.1", EVERY: "::1"}.get(host, host), port))
        self._thread.join()
        self._socket.close()

    @property
    def lost(self) -> int:
        """Datagrams that the kernel had no room for."""
        inode = str(os.fstat(self._socket.fileno()).st_ino)
        try:
            table = Path("/proc/net/udp6" if self._socket.family == socket.AF_INET6 else "/proc/net/udp")
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[9] == inode:
                    return int(columns[12])
        except (OSError, ValueError, IndexError):
            pass  # not on this system
        return 0

    def _run(self) -> None:
        while not self._closed:
            try:
                self._receive()
            except OSError as error:
                log.error("datagrams cannot be received: %s; tried again in %g s", error, RETRY_INTERVAL)
                time.sleep(RETRY_INTERVAL)
            except Exception:  # noqa: BLE001 - nobody else would notice
                fatal(log, "datagrams cannot be received any more")

    def _receive(self) -> None:
        portions = (_several if sys.platform == "linux" else _one_by_one)(self._socket)
        for datagrams in portions:
            received = _read(datagrams) if self._guard is None else _read_guarded(datagrams, self._guard)
            if received.readings or received.invalid or received.refused:
                self._handed += _cost(received)
                self._loop.call_soon_threadsafe(self._take, received)
            if self._closed and (received.ended or time.monotonic() > self._deadline):
                return
            while self._handed - self._done > self._limit and not self._closed:
                self._room.clear()
                self._room.wait(0.1)


def _cost(received: Received) -> int:
    return COST * len(received.readings) + sum([len(reading[2]) for reading in received.readings])


def _enlarge(udp: socket.socket, size: int) -> None:
    force = getattr(socket, "SO_RCVBUFFORCE", 33)
    for option in (force, socket.SO_RCVBUF):
        try:
            udp.setsockopt(socket.SOL_SOCKET, option, size)
        except OSError:
            continue  # only the administrator may pass the system's limit
        return


def _read(datagrams: Iterator[Datagram]) -> Received:
    readings: list[Reading] = []
    invalid, example = 0, ""
    empty = False
    add = readings.append
    for head, content, length, source in datagrams:
        if not length:
            empty = True
            continue
        try:
            name, kind, payload = read_parts(head, content, length)
        except InvalidDatagram as error:
            invalid, example = invalid + 1, str(error)
        else:
            add((name, kind, payload, source))
    return Received(readings, invalid, example, empty or not (readings or invalid))


def _read_guarded(datagrams: Iterator[Datagram], guard: Guard) -> Received:
    refused: list[str] = []
    received = _read(guard.admit(datagrams, refused))
    if not refused:
        return received
    ended = received.ended and bool(received.readings)
    return received._replace(refused=len(refused), example=received.example or refused[0], ended=ended)


def _one_by_one(udp: socket.socket) -> Iterator[Iterator[Datagram]]:
    while True:
        try:
            data, address = udp.recvfrom(SLOT)
        except BlockingIOError:
            yield iter(())
            continue
        yield iter([(data[:HEAD].ljust(HEAD, b"\0"), data[HEAD:], len(data), addresses.peer(address))])


# --- recvmmsg


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct mmsghdr of <sys/socket.h>."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),  # an int, and padding
        ("length", ctypes.c_size_t),  # an unsigned int, and padding
    )


# A struct sockaddr_in, of which family, port and address are used, and a sockaddr_in6: all but the interface.
_NAMES: Final = {socket.AF_INET: struct.Struct("8s8x"), socket.AF_INET6: struct.Struct("24s4x")}


def _several(udp: socket.socket) -> Iterator[Iterator[Datagram]]:
    buffer = bytearray(DATAGRAMS * SLOT)
    form = _NAMES[udp.family]
    senders = bytearray(DATAGRAMS * form.size)
    vectors = (_Vector * DATAGRAMS)()
    headers = (_Header * DATAGRAMS)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    names = ctypes.addressof(ctypes.c_char.from_buffer(senders))
    for at in range(DATAGRAMS):
        vectors[at] = _Vector(start + at * SLOT, SLOT)
        header = headers[at]
        header.name, header.name_length = names + at * form.size, form.size
        header.vectors, header.vector_count = ctypes.addressof(vectors[at]), 1
    step = ctypes.sizeof(_Header) // 4
    lengths = memoryview(headers).cast("B").cast("I")[_Header.length.offset // 4 :: step]
    slots, addressed = memoryview(buffer), memoryview(senders)
    receive = ctypes.CDLL(None, use_errno=True).recvmmsg
    number = udp.fileno()
    wait_for_one = 0x10000  # MSG_WAITFORONE
    while True:
        count = receive(number, headers, DATAGRAMS, wait_for_one, None)
        if count < 0:
            reason = ctypes.get_errno()
            if reason in (errno.EINTR, errno.EAGAIN, errno.ECONNREFUSED):
                yield iter(())
                continue
            raise OSError(reason, os.strerror(reason))
        yield (
            (head, content, length, _source(name))
            for (head, content), length, (name,) in zip(
                _SLOT_FORM.iter_unpack(slots[: count * SLOT]),
                lengths[:count].tolist(),
                form.iter_unpack(addressed[: count * form.size]),
                strict=True,
            )
        )


@lru_cache(KNOWN)
def _source(name: bytes) -> str:
    """IP:PORT of what `_NAMES` leaves of an address."""
    ip = socket.inet_ntoa(name[4:]) if len(name) == 8 else socket.inet_ntop(socket.AF_INET6, name[8:])
    return addresses.peer((ip, int.from_bytes(name[2:4], "big")))
