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
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from stafeta.broker.names import check_name
from stafeta.doors.devices.readings import HEAD, MAX_CONTENT, READERS, TOPIC_BYTES, topic_of
from stafeta.errors import InvalidDatagram, InvalidName
from stafeta.message import Kind

DATAGRAMS: Final = 1024  # taken at once
SLOT: Final = HEAD + MAX_CONTENT + 1  # one more than the longest, to tell a longer one
COST: Final = 400  # bytes of memory that a reading takes beside its payload, roughly
CLOSING: Final = 0.3  # seconds for which datagrams are still taken when the door closes
KNOWN: Final = 20_000  # senders and topics remembered

Reading: TypeAlias = tuple[str, Kind, bytes, str]  # topic, kind, payload, source
Reader: TypeAlias = Callable[[bytes], tuple[Kind, bytes]]
Datagram: TypeAlias = tuple[bytes, bytes, int, str]  # head, content and more, length of the datagram, source

_SLOT_FORM = struct.Struct(f"{HEAD}s{SLOT - HEAD}s")


class Received(NamedTuple):
    """What came together."""

    readings: list[Reading]
    invalid: int  # datagrams that could not be read
    example: str  # what is wrong with one of them
    ended: bool  # there was nothing, or an empty datagram, which wakes the thread up


class Receiver:
    """Calls `take`, on the loop, with what came; it has to say `done` with each."""

    def __init__(self, udp: socket.socket, limit: int, take: Callable[[Received], None]) -> None:
        self._socket = udp
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
            waker.sendto(b"", ({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port))  # noqa: S104 - sends
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
        several = sys.platform == "linux" and self._socket.family == socket.AF_INET
        portions = _several(self._socket) if several else _one_by_one(self._socket)
        for datagrams in portions:
            received = _read(datagrams)
            if received.readings or received.invalid:
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
        try:
            if not HEAD <= length < SLOT:
                if not length:
                    empty = True
                    continue
                raise InvalidDatagram(
                    f"A datagram has {HEAD} to {SLOT - 1} bytes, not {length if length < SLOT else 'more'}."
                )
            name, reader = _meaning(head)
            kind, payload = reader(content[: length - HEAD])
        except InvalidDatagram as error:
            invalid, example = invalid + 1, str(error)
        else:
            add((name, kind, payload, source))
    return Received(readings, invalid, example, empty or not (readings or invalid))


@lru_cache(KNOWN)
def _meaning(head: bytes) -> tuple[str, Reader]:
    """The topic that a datagram's head names, and what reads its content."""
    try:
        name = topic_of(head[:TOPIC_BYTES])
        check_name(name)
        return name, READERS[head[TOPIC_BYTES]]
    except InvalidName as error:
        raise InvalidDatagram(str(error)) from None
    except IndexError:
        raise InvalidDatagram(
            f"The datagram's type is {head[TOPIC_BYTES]}; the types are 0 to {len(READERS) - 1}."
        ) from None


def _one_by_one(udp: socket.socket) -> Iterator[Iterator[Datagram]]:
    while True:
        try:
            data, address = udp.recvfrom(SLOT)
        except BlockingIOError:
            yield iter(())
            continue
        host, port = address[:2]
        source = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield iter([(data[:HEAD].ljust(HEAD, b"\0"), data[HEAD:], len(data), source)])


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


_ADDRESS: Final = 16  # bytes of a struct sockaddr_in: family, port, address, padding


def _several(udp: socket.socket) -> Iterator[Iterator[Datagram]]:
    buffer = bytearray(DATAGRAMS * SLOT)
    addresses = bytearray(DATAGRAMS * _ADDRESS)
    vectors = (_Vector * DATAGRAMS)()
    headers = (_Header * DATAGRAMS)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    senders = ctypes.addressof(ctypes.c_char.from_buffer(addresses))
    for at in range(DATAGRAMS):
        vectors[at] = _Vector(start + at * SLOT, SLOT)
        header = headers[at]
        header.name, header.name_length = senders + at * _ADDRESS, _ADDRESS
        header.vectors, header.vector_count = ctypes.addressof(vectors[at]), 1
    step = ctypes.sizeof(_Header) // 4
    lengths = memoryview(headers).cast("B").cast("I")[_Header.length.offset // 4 :: step]
    names = memoryview(addresses).cast("Q")[::2]
    slots = memoryview(buffer)
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
            for (head, content), length, name in zip(
                _SLOT_FORM.iter_unpack(slots[: count * SLOT]),
                lengths[:count].tolist(),
                names[:count].tolist(),
                strict=True,
            )
        )


@lru_cache(KNOWN)
def _source(address: int) -> str:
    """IP:PORT of the first eight bytes of a struct sockaddr_in."""
    plain = address.to_bytes(8, sys.byteorder)
    return f"{socket.inet_ntoa(plain[4:8])}:{int.from_bytes(plain[2:4], 'big')}"
