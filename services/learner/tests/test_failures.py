"""What nobody foresaw goes wrong on one rank: nobody waits in vain, and nobody trains on."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from episodes import play_groups
from processes import deaf_peer

from tandem.config import Config
from tandem.runtime import deadline
from tandem.types import AdapterRef, DataCorrupt, PublishKind, TandemError, TrajectoryGroup, Unavailable, UserError
from tandem_learner.channel import RELEASED, Channel
from tandem_learner.comm import close_comm, open_comm, open_store
from tandem_learner.core import LearnerCore
from tandem_learner.follower import Follower
from tandem_learner.leader import Leader
from tandem_learner.orders import (
    Destinations,
    Export,
    Snapshot,
    Stop,
    Train,
    decode_answer,
    encode_answer,
    encode_order,
    encode_problem,
)
from tandem_learner.rank import Rank

TIMEOUT_S = 20.0


class FaultyCore(LearnerCore):
    """A core with a bug in its step and its restore."""

    problem: Exception

    def train_step(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        raise self.problem

    def restore(self, adapter: AdapterRef, state: AdapterRef | None) -> int:
        raise self.problem


@pytest.fixture(scope="module")
def core(tiny_model: Path) -> Iterator[FaultyCore]:
    config = Config.model_validate(
        {"model": {"path": str(tiny_model)}, "rollout": {"group_size": 4}, "learner": {"lora": {"rank": 4}}}
    )
    yield FaultyCore(config, open_comm(config, 0, 1, open_store(0, 1, "", 60)))
    close_comm()


@pytest.fixture(scope="module")
def groups(tiny_model: Path) -> list[TrajectoryGroup]:
    return play_groups(tiny_model, groups=1, group_size=4, window=2, max_turns=2)


UNFORESEEN = [KeyError("lora_A"), AssertionError(), OSError("no space"), ValueError("shape")]


@pytest.mark.parametrize("problem", UNFORESEEN, ids=lambda problem: type(problem).__name__)
async def test_unforeseen_failure_on_rank_0_ends_the_wait_and_stops_training(
    core: FaultyCore, groups: list[TrajectoryGroup], problem: Exception
) -> None:
    core.problem = problem
    store = dist.HashStore()
    channel = Channel(lambda: store, 1)
    leader = Leader(Rank(core, ThreadPoolExecutor(1)), [channel], TIMEOUT_S)
    with pytest.raises(type(problem)):
        await leader.train_step("first", 0, groups)
    assert await asyncio.to_thread(channel.await_answer, 0, TIMEOUT_S) == RELEASED
    with pytest.raises(Unavailable, match=f"Restore first: {type(problem).__name__}"):
        await leader.train_step("second", 0, groups)


async def test_unforeseen_failure_of_a_restore_stops_training(core: FaultyCore, groups: list[TrajectoryGroup]) -> None:
    core.problem = OSError("no such device")
    leader = Leader(Rank(core, ThreadPoolExecutor(1)), [], TIMEOUT_S)
    with pytest.raises(OSError, match="no such device"):
        await leader.restore("restore", AdapterRef(1, "file:///v1", "0" * 64, "tandem-v00000001", "0" * 64, 1), None)
    with pytest.raises(Unavailable, match="Restore first: OSError"):
        await leader.train_step("step", 0, groups)


OF_TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB\nof which none is free"
)
OF_CPU = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (torch.OutOfMemoryError(OF_TORCH), Unavailable),
        (MemoryError(), Unavailable),
        (RuntimeError(OF_CPU), Unavailable),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1"), Unavailable),
        (UserError("a bad request"), UserError),
        (DataCorrupt("not finite"), DataCorrupt),
        (NotImplementedError("aten::foo"), NotImplementedError),
        (RecursionError(), RecursionError),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_only_what_new_ranks_may_mend_is_unavailable(
    core: FaultyCore, groups: list[TrajectoryGroup], problem: Exception, kind: type[Exception]
) -> None:
    """The controller starts all ranks anew for it; anything else it tells at once."""
    core.problem = problem
    with pytest.raises(kind) as caught:
        await Rank(core, ThreadPoolExecutor(1)).obey(Train(tuple(groups)))
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    out_of_memory = "memory" in str(problem) or isinstance(problem, MemoryError)
    assert ("lower learner.microbatch_tokens" in str(caught.value)) == out_of_memory


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyError("lora_A"), "learner rank 1: KeyError: 'lora_A'"),
        (AssertionError(), "learner rank 1: AssertionError"),
        (RuntimeError(), "Train failed"),  # torch's, without a message
    ],
    ids=lambda value: type(value).__name__,
)
async def test_unforeseen_failure_on_a_follower_is_answered(
    core: FaultyCore, groups: list[TrajectoryGroup], problem: Exception, said: str
) -> None:
    core.problem = problem
    store = dist.HashStore()
    channel = Channel(lambda: store, 1)  # both ends
    follower = Follower(Rank(core, ThreadPoolExecutor(1)), channel)
    following = asyncio.create_task(follower.follow())
    try:
        channel.go(0, channel.post_pieces(0, encode_order(Train(tuple(groups)))))
        with pytest.raises(TandemError, match=said):
            decode_answer(await asyncio.to_thread(channel.await_answer, 0, TIMEOUT_S), 1)
        channel.go(1, channel.post_pieces(1, encode_order(Stop())))  # it still follows
        assert decode_answer(await asyncio.to_thread(channel.await_answer, 1, TIMEOUT_S), 1) == {}
    finally:
        await follower.stop()
        await following


async def test_a_follower_told_to_stop_while_it_obeys_still_ends(
    core: FaultyCore, groups: list[TrajectoryGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order it would wait for next never comes."""
    at_work, go_on = threading.Event(), threading.Event()

    def slow_step(_: Sequence[TrajectoryGroup]) -> dict[str, float]:
        at_work.set()
        go_on.wait(TIMEOUT_S)
        return {}

    monkeypatch.setattr(core, "train_step", slow_step)
    store = dist.HashStore()
    channel = Channel(lambda: store, 1)
    follower = Follower(Rank(core, ThreadPoolExecutor(1)), channel)
    following = asyncio.create_task(follower.follow())
    channel.go(0, channel.post_pieces(0, encode_order(Train(tuple(groups)))))
    assert await asyncio.to_thread(at_work.wait, TIMEOUT_S)
    await follower.stop()
    go_on.set()
    try:
        async with deadline(TIMEOUT_S, "end of the follower"):
            await asyncio.shield(following)
    finally:
        channel.release_order(1)  # a thread that waits would hold up the end of the tests
    assert decode_answer(await asyncio.to_thread(channel.await_answer, 0, TIMEOUT_S), 1)["metrics"] == {}
    with pytest.raises(Unavailable, match="was stopped"):
        decode_answer(await asyncio.to_thread(channel.await_answer, 1, TIMEOUT_S), 1)


async def test_a_follower_told_to_stop_while_it_sends_says_so_and_ends(core: FaultyCore) -> None:
    store = dist.HashStore()
    channel = Channel(lambda: store, 1)
    follower = Follower(Rank(core, ThreadPoolExecutor(1)), channel)
    following = asyncio.create_task(follower.follow())
    async with deaf_peer() as (address, called), deadline(TIMEOUT_S, "end of the follower"):
        export = Export(PublishKind.ADAPTER, core.version, Destinations(address), ticket=7)
        for number, order in enumerate((Snapshot(PublishKind.ADAPTER), export)):
            channel.go(number, channel.post_pieces(number, encode_order(order)))
            decode_answer(await asyncio.to_thread(channel.await_answer, number, TIMEOUT_S), 1)
        await called.wait()
        await follower.stop()
        await following
    [(rank, report)] = channel.await_reports(7, [1], TIMEOUT_S)
    assert rank == 1
    with pytest.raises(Unavailable, match="sending its shard was stopped"):
        decode_answer(report, 1)


def _obedient(core: LearnerCore, timeout_s: float, world_size: int = 2) -> Leader:
    """Rank 0 beside ranks that answer its orders to snapshot, to export and to stop, and never send a shard."""
    store = dist.HashStore()
    channels = [Channel(lambda: store, rank) for rank in range(1, world_size)]
    for number, answer in enumerate(({"bytes": 1, "seconds": 0.0}, {}, {})):
        for channel in channels:
            channel.answer(number, encode_answer(answer))
    return Leader(Rank(core, ThreadPoolExecutor(1)), channels, timeout_s)


async def test_a_rank_that_dies_while_it_sends_is_named(core: FaultyCore) -> None:
    leader = _obedient(core, 0.5)
    async with deaf_peer() as (address, _):
        with pytest.raises(Unavailable, match=r"learner rank 1: its shard was not sent within 0\.5 s; it may be dead"):
            await leader.export("x", core.version, PublishKind.ADAPTER, Destinations(address))
        await leader.stop()


async def test_a_rank_that_fails_is_heard_though_one_before_it_hangs(core: FaultyCore) -> None:
    leader = _obedient(core, 600, world_size=4)
    async with deaf_peer() as (address, called), deadline(TIMEOUT_S, "the failure of rank 2"):
        sending = asyncio.create_task(leader.export("x", core.version, PublishKind.ADAPTER, Destinations(address)))
        await called.wait()
        leader.channels[2].report(1, encode_answer({}))
        leader.channels[1].report(1, encode_problem(UserError("spooling: No space left on device")))
        with pytest.raises(UserError, match="No space left on device"):
            await sending
        await leader.stop()


async def test_rank_0_that_stops_waits_for_no_report(core: FaultyCore) -> None:
    leader = _obedient(core, 600)
    async with deaf_peer() as (address, called), deadline(TIMEOUT_S, "end of rank 0"):
        sending = asyncio.create_task(leader.export("x", core.version, PublishKind.ADAPTER, Destinations(address)))
        await called.wait()
        await leader.stop()
        with pytest.raises(Unavailable, match="stopped"):
            await sending
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("reports")]:
        thread.join(TIMEOUT_S)  # it would hold up the end of the process
        assert not thread.is_alive()


def test_answer_to_a_rank_0_that_is_gone_is_unavailable() -> None:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = served.port
    channel = Channel(lambda: dist.TCPStore("127.0.0.1", port, is_master=False), 1)
    channel.answer(0, b"{}")
    del served
    gc.collect()
    with pytest.raises(Unavailable, match="rank 0 is gone"):
        for number in range(1, 1000):  # the first ones may still fit into the connection's buffer
            channel.answer(number, b"{}")


def test_taken_rendezvous_is_one_clear_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        rendezvous = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"{rendezvous}, the port may be taken") as caught:
            open_store(0, 2, rendezvous, 5, serve=True)
    assert "\n" not in str(caught.value)
