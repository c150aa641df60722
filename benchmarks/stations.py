"""A broker as the benchmarks of the devices door see it, whichever it is: raw sockets around it, and what passes."""

import resource
import select
import socket
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from benchmarks.inbox import patient
from benchmarks.load import LoadFailed
from benchmarks.publishers import Publisher, paced
from benchmarks.readings import Reading, number
from benchmarks.setting import PAYLOAD

AHEAD = 1000  # readings that a publisher may be ahead of a reader: far fewer than a socket's buffer holds
_PATIENCE = 60.0
_SETTLING = 20_000  # readings a second
_TRY = 0.5  # seconds until a reading that was sent before the subscription is given up


class Station(Protocol):
    """A broker and how to speak to it."""

    name: str
    pid: int

    def subscriber(self, client: str, topic: str | None, *, held: bool) -> socket.socket: ...
    def publisher(self, readings: Sequence[Reading]) -> Publisher: ...
    def delivered(self, reading: Reading) -> int: ...
    def leave(self, line: socket.socket) -> None: ...


def settle(lines: Sequence[socket.socket], publisher: Publisher, topics: int = 1) -> None:
    """Publishes to each topic until the last reading has come to everybody, and with it all before it.

    The publisher's readings are of PAYLOAD bytes and numbered, one for each topic, and the subscribers spread evenly
    over the topics.
    """
    everybody = {line.fileno(): line for line in lines}
    deadline = perf_counter() + _PATIENCE
    with select.epoll(len(everybody)) as epoll:
        for each in everybody:
            epoll.register(each, select.EPOLLIN)
        waiting = set(everybody)
        while waiting:
            if perf_counter() > deadline:
                raise LoadFailed(f"{len(waiting):,} of {len(everybody):,} subscribers get nothing.")
            first = publisher.sent
            paced(publisher, _SETTLING, topics)
            marks = {each: number(first + place % topics) for place, each in enumerate(everybody)}
            if not _all_have(marks, everybody, waiting, epoll):
                waiting.update(everybody)


def _all_have(
    marks: dict[int, bytes], everybody: dict[int, socket.socket], waiting: set[int], epoll: select.epoll
) -> bool:
    """Takes from `waiting` whoever gets the reading that has its mark."""
    tails = dict.fromkeys(everybody, b"")
    until = perf_counter() + _TRY
    while waiting and (left := until - perf_counter()) > 0:
        for each, _ in epoll.poll(left):
            got = everybody[each].recv(1 << 16)
            if not got:
                raise LoadFailed("The broker has closed a connection.")
            tails[each] = (tails[each] + got)[-PAYLOAD:]
            if tails[each].startswith(marks[each]):
                waiting.discard(each)
    return not waiting


def pour(
    publisher: Publisher, line: socket.socket, size: int, total: int, *, ahead: int = AHEAD
) -> tuple[float, float]:
    """Publishes so many readings, never more than `ahead` of what a connection has got, `size` bytes for each.

    Returns when it began and when the last one had come.
    """
    patient(line)
    scratch = bytearray(1 << 20)
    portion = max(ahead // 4, 1)
    sent, got, expected = 0, 0, total * size
    begin = perf_counter()
    while got < expected:
        room = min(ahead - (sent - got // size), total - sent)
        if room >= min(portion, total - sent) > 0:
            publisher.send(room)
            sent += room
        # Nobody is woken for less.
        least = min(portion * size, sent * size - got)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        try:
            taken = line.recv_into(scratch)
        except BlockingIOError:
            raise LoadFailed(f"Of {sent:,} readings {sent - got // size:,} have been lost.") from None
        if not taken:
            raise LoadFailed("The broker has closed a connection.")
        got += taken
    end = perf_counter()
    if got != expected:
        raise LoadFailed(f"{total:,} readings should be {expected:,} bytes, but {got:,} came.")
    return begin, end


def allow_files(total: int) -> None:
    """Lets this process, and what it starts, have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < total:
        raise LoadFailed(f"This takes {total:,} open files; {hard:,} are allowed (ulimit -Hn).")
    if soft < total:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
