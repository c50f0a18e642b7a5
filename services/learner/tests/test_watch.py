"""The connections by which ranks notice each other's end, over real sockets in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist

from tandem.rpc.ports import held_address
from tandem.runtime import poll
from tandem.types import Unavailable
from tandem_learner import main, watch
from tandem_learner.comm import open_store
from tandem_learner.watch import KEY, Watch, open_watch

WITHIN_S = 30.0
PATIENT_S = 600.0


@dataclass
class Ends:
    """What a watch does instead of ending this process."""

    said: list[str] = field(default_factory=list)
    happened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, why: str) -> None:
        self.said.append(why)
        self.happened.set()


@pytest.fixture
def watching() -> Iterator[Callable[..., tuple[Watch, Ends]]]:
    made: list[Watch] = []

    def make(peers: dict[int, socket.socket], silence_s: float = PATIENT_S, linger_s: float = 0) -> tuple[Watch, Ends]:
        ends = Ends()
        made.append(Watch(peers, silence_s, ends, linger_s))
        return made[-1], ends

    yield make
    for one in made:
        one.close()


def _three() -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """Rank 0's ends of its connections to ranks 1 and 2, and theirs."""
    pairs = {rank: socket.socketpair() for rank in (1, 2)}
    return {rank: pair[0] for rank, pair in pairs.items()}, {rank: pair[1] for rank, pair in pairs.items()}


def test_the_end_of_a_rank_is_told_to_all_by_its_name(watching) -> None:
    mine, theirs = _three()
    zero, ends = watching(mine)
    two, ends_two = watching({0: theirs[2]})
    theirs[1].close()
    assert zero.lost.result(WITHIN_S) == two.lost.result(WITHIN_S) == "learner rank 1 is lost: its process ended"
    for end in (ends, ends_two):
        assert end.happened.wait(WITHIN_S)
        assert end.said == ["learner rank 1 is lost: its process ended; this rank ends, too"]


def test_a_rank_that_says_nothing_is_lost_and_one_that_beats_is_not(watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 would be named first if both were silent: it beats sixty times in the silence that is too long."""
    monkeypatch.setattr(watch, "BEAT_S", 0.05)
    mine, theirs = _three()
    beating, _ = watching({0: theirs[1]})
    zero, _ = watching(mine, silence_s=3)
    assert zero.lost.result(WITHIN_S).startswith("learner rank 2 is lost: not a word for 3 s")
    assert beating.lost.result(WITHIN_S) == zero.lost.result()
    theirs[2].close()


def test_an_orderly_end_is_no_loss(watching) -> None:
    mine, theirs = _three()
    zero, ends = watching(mine)
    for connection in theirs.values():
        Watch({0: connection}, PATIENT_S, Ends()).close()
    assert poll(lambda: zero.parted or None, every_s=0.01, for_s=WITHIN_S)
    zero.close()  # its thread has ended
    assert not zero.lost.done() and not ends.said


def test_a_rank_that_cannot_start_says_why_and_one_that_leaves_is_not_ended(watching) -> None:
    mine, theirs = _three()
    zero, ends = watching(mine, linger_s=PATIENT_S)
    Watch({0: theirs[2]}, PATIENT_S, Ends()).close("learner rank 2 could not start: no such\nmodel")
    assert zero.lost.result(WITHIN_S) == "learner rank 2 could not start: no such model"
    zero.close()
    assert not ends.said
    theirs[1].close()


def test_ranks_meet_though_strangers_come_first() -> None:
    with held_address() as rendezvous, ThreadPoolExecutor(3) as threads:
        store = open_store(0, 3, rendezvous, WITHIN_S, serve=True)
        more = {"timeout_s": WITHIN_S, "silence_s": PATIENT_S}
        zero = threads.submit(open_watch, 0, 3, store, "127.0.0.1", **more)
        port = int(open_store(1, 3, rendezvous, WITHIN_S).get(KEY).split()[0])  # of its own: a wait holds a client up
        for garbage in (b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"0" * 10_000, b"\x00\xff 1\n"):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(garbage)
        clients = [open_store(rank, 3, rendezvous, WITHIN_S) for rank in (1, 2)]
        others = [
            threads.submit(open_watch, rank, 3, client, "127.0.0.1", **more)
            for rank, client in enumerate(clients, start=1)
        ]
        watches = [zero.result(WITHIN_S), *(other.result(WITHIN_S) for other in others)]
        for one in watches:
            one.close()
            assert not one.lost.done()


def test_a_stranger_who_speaks_slowly_is_shown_out_before_a_rank_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(port: int) -> int:
        """How many bytes it takes, one at a time, until the connection is closed."""
        with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(OSError):
            for sent in range(watch.LINE_BYTES):
                stranger.sendall(b"0")
                stranger.settimeout(0.05)
                with suppress(TimeoutError):
                    if not stranger.recv(1):
                        return sent
        return 0

    monkeypatch.setattr(watch, "HELLO_S", 0.3)
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        zero = threads.submit(open_watch, 0, 2, store, "127.0.0.1", timeout_s=WITHIN_S, silence_s=PATIENT_S)
        assert threads.submit(drip, int(store.get(KEY).split()[0])).result(WITHIN_S) < watch.LINE_BYTES - 1
        one = open_watch(1, 2, store, "127.0.0.1", timeout_s=WITHIN_S, silence_s=PATIENT_S)
        for end in (one, zero.result(WITHIN_S)):
            end.close()


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(Unavailable, match=r"learner ranks \[1\] did not come within 0\.1 s"):
        open_watch(0, 2, dist.HashStore(), "127.0.0.1", timeout_s=0.1, silence_s=PATIENT_S)


class Ended(BaseException):
    """What a process that ends at once does not outlive."""


async def test_a_rank_that_hangs_in_torch_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(why: str) -> None:
        raise Ended(why)

    async def nothing() -> None:
        return

    monkeypatch.setattr(main, "LEAVE_S", 0.2)
    monkeypatch.setattr(main, "end_process", end)
    go_on = threading.Event()
    thread = ThreadPoolExecutor(1)
    thread.submit(go_on.wait, WITHIN_S)
    try:
        with pytest.raises(Ended, match=r"did not end within 0\.2 s"):
            await main._leave(Watch({}, PATIENT_S), thread, nothing())
    finally:
        go_on.set()
