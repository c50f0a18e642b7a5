"""Shards of dead and of living ranks that come side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

from tandem.storage.incoming import Staging, check_complete
from tandem.types import PublishKind, ShardRef, StaleRequest, UserError


class Interrupted:
    """A lock; before it is taken for the nth time, something else happens."""

    def __init__(self, lock: Lock, times: int, happens) -> None:
        self.lock, self.left, self.happens = lock, times, happens

    def __enter__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happens()
        self.lock.acquire()

    def __exit__(self, *problem: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("moment", range(1, 6))
def test_a_dead_ranks_shard_never_takes_the_place_of_its_successors(
    make_tensors, make_shards, tmp_path: Path, moment: int
) -> None:
    (old,), (new,) = make_shards(make_tensors(1), 1, 1), make_shards(make_tensors(2), 1, 1)
    staging = Staging(tmp_path / "staging")
    newer = replace(new.ref, generation=2)

    def put(ref: ShardRef, data: bytes) -> None:
        with staging.receive(ref) as receiver:
            receiver.write(data)

    lock = staging._lock

    def successor() -> None:
        staging._lock = lock
        put(newer, new.data)

    staging._lock = Interrupted(lock, moment, successor)  # type: ignore[assignment]
    try:
        put(replace(old.ref, generation=1), old.data)
    except StaleRequest:
        assert moment <= 2
    if staging._lock is not lock:
        successor()
    assert staging.of(PublishKind.ADAPTER, 1) == {0: newer}
    with staging.opened([newer]) as (shard,):
        assert shard


def test_shards_of_several_generations_are_never_joined() -> None:
    refs = {rank: ShardRef(PublishKind.STATE, 1, rank, 2, "ab", 3, generation=1 + rank) for rank in (0, 1)}
    with pytest.raises(UserError, match=r"state v1: the shards are of generations \[1, 2\]; export again"):
        check_complete(refs, 2, "state v1")
