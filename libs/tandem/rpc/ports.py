"""A port that one process picks and another one serves at."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_address(host: str = "127.0.0.1") -> Iterator[str]:
    """host:port that nobody gets who asks for any free port, while a server that names it can listen there.

    Both sockets have SO_REUSEADDR and this one never listens, which is what Linux asks for (ip(7), socket(7)).
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield f"{host}:{holder.getsockname()[1]}"
