"""Random streams: each rank's own at the world size they were saved at, repeatable ones at another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tandem_learner.random_state import RANDOM, random_states, restore_random, seed_random

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_stream() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def _saved_at_two_ranks() -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The streams of two ranks, and what each draws next."""
    saved, drawn = {}, []
    for rank in range(2):
        torch.manual_seed(rank)
        torch.rand(3)
        saved |= random_states(CPU, rank)
        drawn.append(torch.rand(5))
    assert set(saved) == {f"{RANDOM}cpu/0", f"{RANDOM}cpu/1"}
    return saved, drawn


def _draw(saved: dict[str, torch.Tensor], rank: int) -> torch.Tensor:
    torch.manual_seed(99)
    restore_random(saved, CPU, rank)
    return torch.rand(5)


def test_a_rank_draws_on_where_it_was() -> None:
    saved, drawn = _saved_at_two_ranks()
    assert all(torch.equal(_draw(saved, rank), drawn[rank]) for rank in range(2))


def test_streams_begin_with_the_run_s_seed_each_rank_s_its_own() -> None:
    def drawn(seed: int, rank: int) -> tuple[float, ...]:
        seed_random(seed, rank)
        return tuple(torch.rand(5).tolist())

    assert drawn(0, 1) == drawn(0, 1)
    assert len({drawn(0, 0), drawn(0, 1), drawn(1, 0)}) == 3


def test_ranks_that_are_new_begin_streams_of_their_own_and_the_same_ones_each_time() -> None:
    saved, drawn = _saved_at_two_ranks()
    third, fourth = _draw(saved, 2), _draw(saved, 3)
    assert torch.equal(_draw(saved, 2), third)
    streams = [*drawn, third, fourth]
    assert len({tuple(stream.tolist()) for stream in streams}) == 4


def test_a_state_from_before_streams_were_saved_leaves_them() -> None:
    torch.manual_seed(99)
    untouched = torch.rand(5)
    assert torch.equal(_draw({}, 0), untouched)
