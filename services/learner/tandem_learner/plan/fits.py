"""What is large enough, by how much, and what is not and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.config import Config
from tandem_learner.plan.budgets import MIB, RAY_NODE, Budget, Saves, Sync, engine, kept
from tandem_learner.plan.hardware import GIB, HEADS, WORKERS, FileSystem, Worker, file_systems
from tandem_learner.plan.shapes import Shapes
from tandem_learner.plan.workload import Workload

USABLE = 0.9  # of a host's memory: the rest is the system's, and what a forecast may be wrong by
ENGINE_ASLEEP = 1500 * MIB  # what a sleeping engine keeps of a GPU: its CUDA context and libraries; not measured


@dataclass(frozen=True, slots=True)
class Verdict:
    """One machine: `fits`, `margin` in bytes of what is tightest (negative: what is missing), `why` in words."""

    what: str
    fits: bool
    margin: int
    why: str


def smallest_head(need: Budget) -> Verdict:
    """The smallest head that holds it; of the largest, that it does not."""
    chosen = next((head for head in HEADS if need.total <= USABLE * head.memory), HEADS[-1])
    margin = int(USABLE * chosen.memory) - need.total
    words = f"{need.total / GIB:.1f} of {chosen.memory / GIB:.0f} GiB, {1 - USABLE:.0%} of it left to the system"
    return Verdict(chosen.name, margin >= 0, margin, words)


def smallest_file_system(config: Config, shapes: Shapes, saved: Saves, moved: Sync) -> tuple[FileSystem, Verdict]:
    """The least bandwidth, then the smallest size, that keeps up and holds store and base model."""
    need = kept(config, saved) + shapes.weights
    every = file_systems()
    enough = (s for s in every if s.bandwidth >= moved.needed_mb_s and s.size >= need)
    chosen = next(enough, every[-1])
    fits = chosen.bandwidth >= moved.needed_mb_s and chosen.size >= need
    words = f"{moved.needed_mb_s:.1f} of {chosen.bandwidth:.0f} MB/s, {need / GIB:.1f} of {chosen.size / GIB:.0f} GiB"
    name = f"FSx Persistent-2, {chosen.tier} MB/s per TiB, {chosen.size / 2**40:.1f} TiB"
    return chosen, Verdict(name, fits, chosen.size - need, words)


def workers(config: Config, shapes: Shapes, work: Workload, rank: tuple[Budget, Budget]) -> tuple[Verdict, ...]:
    """Each GPU instance, with one replica and one rank a GPU."""
    return tuple(_worker(config, shapes, work, rank, worker) for worker in WORKERS)


def this_machine(budgets: Sequence[tuple[int, Budget]]) -> Verdict:
    """All services here, each so many times; replicas and ranks have their worst moments one after the other."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    need = sum(count * budget.at_rest for count, budget in budgets)
    need += max(count * (budget.total - budget.at_rest) for count, budget in budgets)
    margin = int(USABLE * have) - need
    return Verdict("this machine", margin >= 0, margin, f"{need / GIB:.1f} of {have / GIB:.0f} GiB")


def _worker(config: Config, shapes: Shapes, work: Workload, rank: tuple[Budget, Budget], worker: Worker) -> Verdict:
    learner_gpu, learner_host = rank
    replica = engine(config, shapes, worker.gpu_memory)
    share = int(config.rollout.engine.gpu_memory_utilization * worker.gpu_memory)
    gpus = min(worker.gpus, config.cluster.gpus)
    host = gpus * (learner_host.total + replica.host.total) + RAY_NODE
    synchronous = config.rollout.max_staleness == 0  # else engines stay awake while the learner trains
    beside = ENGINE_ASLEEP if synchronous else share
    checks = (
        ("GPU while engines play", share + learner_gpu.at_rest, worker.gpu_memory),
        ("GPU while the learner trains", beside + learner_gpu.total, worker.gpu_memory),
        ("engine within gpu_memory_utilization", replica.device.total - replica.cache, share),
        ("host", host, int(USABLE * worker.memory)),
    )
    tight = min(checks, key=lambda check: (check[2] - check[1]) / check[2])
    margin = tight[2] - tight[1]
    tokens = replica.cache_tokens
    room = tokens // work.tokens
    if margin >= 0 and not room:
        return Verdict(
            worker.name, False, margin, f"a KV cache of {tokens} tokens holds no transcript of {work.tokens}"
        )
    words = f"{tight[0]}: {tight[1] / GIB:.1f} of {tight[2] / GIB:.1f} GiB"
    if margin >= 0:
        nodes = -(-config.cluster.gpus // worker.gpus)
        words = f"{nodes} x {worker.gpus} GPUs; tightest: {words}; KV cache of {tokens:,} tokens, {room} transcripts"
    return Verdict(worker.name, margin >= 0, margin, words)
