"""The ranks' random streams in a training state: torch's generators, of the CPU and of each rank's GPU.

    random/cpu/RANK     uint8, a generator's state as torch gives it
    random/cuda/RANK

Nothing of a training step draws from them today (the adapter's start is drawn from `run.seed`, what was sampled comes
with the groups); a model with dropout would. At the world size it was saved at, a state gives every rank its own
stream back, bit for bit. A stream belongs to a rank, so at another world size there is none to give back: ranks that
were there then continue theirs, and the others, like a rank that has moved from CPU to GPU, begin one of their own,
seeded by rank 0's saved stream and their name. So a resume is repeatable at any world size, no two ranks draw the same
where no two did before, and only at the old world size does it go on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

RANDOM = "random/"


def seed_random(seed: int, rank: int) -> None:
    """Begin this rank's streams, on all devices, as a function of the run's seed."""
    digest = hashlib.sha256(f"{seed}/{rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))


def random_states(device: torch.device, rank: int) -> dict[str, Tensor]:
    """This rank's streams by name, uint8."""
    states = {f"{RANDOM}cpu/{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{RANDOM}cuda/{rank}"] = torch.cuda.get_rng_state(device)
    return states


def restore_random(saved: Mapping[str, Tensor], device: torch.device, rank: int) -> None:
    """Continue this rank's streams, or begin others; without any saved, as states were before, leave them."""
    if not saved:
        return
    for name, state in random_states(device, rank).items():
        kind = name.split("/")[1]
        if name in saved:
            state = saved[name]
        else:
            first = saved[f"{RANDOM}cpu/0"].numpy().tobytes()
            seed = int.from_bytes(hashlib.sha256(first + name.encode()).digest()[:8], "little")
            state = torch.Generator(device if kind == "cuda" else "cpu").manual_seed(seed).get_state()
        if kind == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
