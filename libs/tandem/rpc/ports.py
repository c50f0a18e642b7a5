"""A port that one process picks and another one serves at, and the way there."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIOCGIFADDR = 0x8915  # of Linux, netdevice(7)


@contextmanager
def held_address(host: str = "127.0.0.1") -> Iterator[str]:
    """host:port that nobody gets who asks for any free port, while a server that names it can listen there.

    Both sockets have SO_REUSEADDR and this one never listens, which is what Linux asks for (ip(7), socket(7)).
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield f"{host}:{holder.getsockname()[1]}"


def interface_towards(host: str) -> str:
    """Name of this machine's network interface by which that host is reached; empty where it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))  # sends nothing, but finds the way
        mine = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                if fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == mine:
                    return name
    return ""
