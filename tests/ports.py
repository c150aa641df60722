"""Ports of loopback that nobody else gets while they are held: no broker, no relay, no end of a connection.

A socket that is bound and does not listen holds a port. Who connects there is refused; who listens there by its number,
as every door does that is given one, can.
"""

import socket


def held(host: str = "127.0.0.1", *, datagrams: bool = False) -> socket.socket:
    """A socket that holds a free port of a host until it is closed; one that is free for UDP, too, if asked for."""
    while True:
        holder = _bound(host, 0, socket.SOCK_STREAM)
        if not datagrams:
            return holder
        try:
            _bound(host, holder.getsockname()[1], socket.SOCK_DGRAM).close()
        except OSError:
            holder.close()
        else:
            return holder


def _bound(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    try:
        if kind is socket.SOCK_STREAM:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
    except BaseException:
        one.close()
        raise
    return one
