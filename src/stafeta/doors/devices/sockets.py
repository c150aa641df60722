"""The sockets of the devices door. Importing this is quick: a server can listen before all else is there."""

import socket
from typing import Final, TypeAlias

from stafeta import addresses
from stafeta.addresses import Address
from stafeta.errors import ConfigError

Bound: TypeAlias = tuple[socket.socket, socket.socket]  # UDP and TCP

BACKLOG: Final = 4096  # connections that wait to be accepted
TRIES: Final = 20  # ports tried until one is free for UDP and TCP alike


def bind(host: str, port: int) -> Bound:
    """UDP and TCP on one port, any free one where it is 0. Who connects waits until somebody accepts."""
    for tries_left in reversed(range(TRIES)):
        try:
            return _bind(host, port)
        except OSError as error:
            if port == 0 and tries_left:
                continue  # the port that UDP got is taken for TCP
            raise ConfigError(
                f"The devices door cannot listen on {Address(host, port)}: {error.strerror}."
            ) from error
    raise AssertionError("the last try either binds or raises")


def _bind(host: str, port: int) -> Bound:
    udp = addresses.bind(host, port, socket.SOCK_DGRAM)
    try:
        tcp = addresses.bind(host, udp.getsockname()[1], socket.SOCK_STREAM)
    except BaseException:
        udp.close()
        raise
    tcp.listen(BACKLOG)
    tcp.setblocking(False)
    return udp, tcp
