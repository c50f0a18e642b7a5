"""Who is gone? Every rank has a connection to rank 0, apart from all that the ranks compute.

    follower -> rank 0     SECRET RANK     once; the secret lies in the ranks' store, with rank 0's port
    both ways, by line     (empty)         alive: every second or so
                           bye             in order: what comes of it the orders say
                           lost WHY        a rank is lost: which one, as I saw it or was told, or myself

A process that ends closes its connection, however it ends. One that is silent for too long is lost, too: it was
stopped, or its node is cut off. Neither goes by what collectives do about a dead peer: some wait for it. A rank that
knows of a loss has a moment to tell its callers; then its process ends, with whatever hangs in it.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from tandem.runtime import Background, end_process
from tandem.types import Unavailable

BEAT_S = 1.0
HELLO_S = 5.0  # what a stranger at the port has to say who it is
LINGER_S = 3.0  # from a loss to the end: rank 0's callers are told, or a start that failed says why
KEY = "watch"
ALIVE, BYE, LOST = b"", b"bye", b"lost "
LINE_BYTES = 4096


@dataclass(slots=True)
class _Peer:
    rank: int
    connection: socket.socket
    said: bytes = b""  # the beginning of a line
    quiet: int = 0  # beats without a word; counted, so that a rank that was itself stopped blames nobody


class Watch:
    """One rank's ends of the connections. `lost` gets the reason why the ranks cannot go on, once there is one."""

    def __init__(
        self,
        peers: Mapping[int, socket.socket],
        silence_s: float,
        end: Callable[[str], object] = end_process,
        linger_s: float = LINGER_S,
    ) -> None:
        """`end` is called with the reason `linger_s` after a loss, unless `close` was."""
        self.lost: Future[str] = Future()
        self._silence_s, self._end, self._linger_s = silence_s, end, linger_s
        self._beat_s = min(BEAT_S, silence_s / 10)
        self._events = selectors.DefaultSelector()
        self._peers = [_Peer(rank, connection) for rank, connection in peers.items()]
        for peer in self._peers:
            peer.connection.setblocking(False)
            self._events.register(peer.connection, selectors.EVENT_READ, peer)
        self._thread = Background("watch", self._work)
        self._thread.start()

    @property
    def parted(self) -> bool:
        """Whether all others have ended in order."""
        return not self._peers

    def close(self, why: str = "") -> None:
        """Watch no more. The others hear that this rank ends in order; or else, with `why`, that it is lost."""
        self._thread.stop()
        self._tell(LOST + why.encode() if why else BYE)
        for peer in list(self._peers):
            self._forget(peer)
        self._events.close()

    def _work(self) -> float | None:
        if self.lost.done():
            self._end(f"{self.lost.result()}; this rank ends, too")
            return None
        if not self._peers:
            return None
        why = self._listen()
        if not why:
            return 0
        self._tell(LOST + why.encode())
        self.lost.set_result(why)
        return self._linger_s

    def _listen(self) -> str:
        """For one beat; why somebody is lost, at once, or nothing."""
        self._tell(ALIVE)
        until = time.monotonic() + self._beat_s
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._events.select(left):
                if why := self._hear(key.data):
                    return why
        for peer in self._peers:
            peer.quiet += 1
            if peer.quiet * self._beat_s > self._silence_s:
                return f"learner rank {peer.rank} is lost: not a word for {self._silence_s:g} s; stopped, or cut off"
        return ""

    def _hear(self, peer: _Peer) -> str:
        try:
            heard = peer.connection.recv(LINE_BYTES)
        except BlockingIOError:
            return ""
        except OSError:
            heard = b""
        if not heard:
            return f"learner rank {peer.rank} is lost: its process ended"
        peer.quiet = 0
        *lines, rest = (peer.said + heard).split(b"\n")
        peer.said = rest[:LINE_BYTES]
        for line in lines:
            if line == BYE:
                self._forget(peer)
            elif line.startswith(LOST):
                return line.removeprefix(LOST).decode(errors="replace")
        return ""

    def _tell(self, line: bytes) -> None:
        text = line.replace(b"\n", b" ")[:LINE_BYTES] + b"\n"
        for peer in self._peers:
            with suppress(OSError):  # one that is gone is found by listening
                peer.connection.send(text)

    def _forget(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        self._events.unregister(peer.connection)
        peer.connection.close()


def open_watch(
    rank: int, world_size: int, store: dist.Store, host: str, *, timeout_s: float, silence_s: float
) -> Watch:
    """Meet the other ranks at rank 0, which is at `host`, and watch from then on. Blocks until all are there.

    Raises:
        Unavailable: they did not come within `timeout_s`.
    """
    if world_size == 1:
        return Watch({}, silence_s)
    if rank == 0:
        with socket.create_server((host, 0), backlog=world_size) as listener:
            secret = secrets.token_hex(16)
            store.set(KEY, f"{listener.getsockname()[1]} {secret}")
            return Watch(_admitted(listener, secret, range(1, world_size), timeout_s), silence_s)
    try:
        port, secret = store.get(KEY).decode().split()
        connection = socket.create_connection((host, int(port)), timeout_s)
        connection.sendall(f"{secret} {rank}\n".encode())
    except (dist.DistError, OSError) as problem:
        raise Unavailable(f"learner rank {rank}: no rank 0 to watch: {problem}") from problem
    return Watch({0: connection}, silence_s)


def _admitted(
    listener: socket.socket, secret: str, ranks: Collection[int], timeout_s: float
) -> dict[int, socket.socket]:
    """A connection of each rank; strangers are shown out."""
    found: dict[int, socket.socket] = {}
    until = time.monotonic() + timeout_s
    try:
        while missing := [rank for rank in ranks if rank not in found]:
            try:
                listener.settimeout(_left(until))
                connection, _ = listener.accept()
            except TimeoutError as problem:
                raise Unavailable(f"learner ranks {missing} did not come within {timeout_s:g} s") from problem
            greetings = {f"{secret} {rank}".encode(): rank for rank in missing}
            rank = greetings.get(_greeting(connection, min(until, time.monotonic() + HELLO_S)))
            if rank is None:
                connection.close()
            else:
                found[rank] = connection
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return found


def _greeting(connection: socket.socket, until: float) -> bytes:
    """The first line, without its end; empty where none is whole by then."""
    heard = b""
    with suppress(OSError):
        while len(heard) < LINE_BYTES:
            connection.settimeout(_left(until))
            more = connection.recv(1)  # no more than that: what follows is for the watch
            if more in (b"", b"\n"):
                return heard if more else b""
            heard += more
    return b""


def _left(until: float) -> float:
    """Seconds until then. Raises TimeoutError where there are none."""
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left
