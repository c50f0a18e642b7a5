"""Joining shards: every split of a tensor gives it back; what is not one whole tensor is refused by name."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load

from tandem.storage import WINDOW_BYTES, Placement, ShardMeta, joined_pieces, plan_join, read_shard
from tandem.storage.join import WINDOW_RUNS
from tandem.types import DataCorrupt, PublishKind, ShardRef


def join(shards) -> bytes:
    return b"".join(joined_pieces(plan_join(shards, "adapter v3")))


def split(part, whole: np.ndarray, bounds: list[int], axis: int) -> list:
    edges = [0, *bounds, whole.shape[axis]]
    blocks = []
    for start, stop in pairwise(edges):
        offset = tuple(start if dim == axis else 0 for dim in range(whole.ndim))
        blocks.append(part(whole.take(range(start, stop), axis), offset, whole.shape))
    return blocks


@pytest.mark.parametrize(
    ("shape", "axis", "bounds"),
    [
        ((8, 5), 0, [3, 6]),  # rows 3/3/2, as FSDP splits them
        ((8, 5), 1, [1, 4]),  # columns: one run per row and rank
        ((2, 3, 4), 1, [2]),
        ((2, 3, 4), 2, [1, 3]),
        ((7,), 0, [7]),  # the last rank has nothing
        ((1, 6), 0, [0]),  # the first rank has nothing
    ],
)
def test_every_split_joins_to_the_same_tensor(opened, part, shape, axis, bounds) -> None:
    whole = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    blocks = split(part, whole, bounds, axis)
    ranks = [{"w": block} if block.data.size else {} for block in blocks]
    assert np.array_equal(load(join(opened(ranks)))["w"], whole)


def test_a_grid_of_blocks_joins(opened, part) -> None:
    whole = np.arange(6 * 7, dtype=np.float32).reshape(6, 7)
    ranks = [{"w": part(whole[r : r + 3, c : c + w], (r, c), whole.shape)} for r in (0, 3) for c, w in ((0, 2), (2, 5))]
    assert np.array_equal(load(join(opened(ranks)))["w"], whole)


def test_scalars_several_dtypes_and_names_in_one_file(opened, part) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    ranks = [
        {
            "w": part(rows[:2], (0, 0), rows.shape),
            "step": part(np.array(7, np.int64), (), ()),
            "rng": part(np.arange(5, dtype=np.uint8), (0,), (5,)),
        },
        {"w": part(rows[2:], (2, 0), rows.shape)},
    ]
    out = load(join(opened(ranks)))
    assert set(out) == {"w", "step", "rng"}
    assert out["step"] == 7 and out["step"].dtype == np.int64
    assert np.array_equal(out["rng"], np.arange(5)) and np.array_equal(out["w"], rows)


def test_pieces_are_small_however_large_the_tensor(opened, part) -> None:
    whole = np.random.default_rng(2).standard_normal((1024, 1500)).astype(np.float32)  # 6 MB
    shards = opened([{"w": block} for block in split(part, whole, [700], 0)])
    pieces = list(joined_pieces(plan_join(shards, "adapter v3")))
    assert max(map(len, pieces)) <= WINDOW_BYTES
    assert np.array_equal(load(b"".join(pieces))["w"], whole)


def test_a_split_into_runs_of_one_number_is_joined_a_few_of_them_at_a_time(opened, part) -> None:
    whole = np.random.default_rng(3).standard_normal((2 * WINDOW_RUNS, 2)).astype(np.float32)
    shards = opened([{"w": block} for block in split(part, whole, [1], 1)])
    pieces = list(joined_pieces(plan_join(shards, "adapter v3")))
    assert [len(piece) for piece in pieces[1:]] == [4 * WINDOW_RUNS] * 4
    assert np.array_equal(load(b"".join(pieces))["w"], whole)


def refused(shards, message: str) -> None:
    with pytest.raises(DataCorrupt, match=re.escape(message)):
        plan_join(shards, "adapter v3")


def test_a_hole_is_named(opened, part) -> None:
    a = np.zeros((4, 2), np.float32)
    ranks = [{"w": part(a[:1], (0, 0), (4, 2))}, {"w": part(a[2:], (2, 0), (4, 2))}]
    # row 0 is elements 0 and 1; row 1 is nowhere
    refused(opened(ranks), "tensor w: element 2 of 8 is in no shard")


def test_a_missing_end_is_named(opened, part) -> None:
    refused(opened([{"w": part(np.zeros((3, 2), np.float32), (0, 0), (4, 2))}]), "element 6 of 8 is in no shard")


def test_an_overlap_is_named(opened, part) -> None:
    a = np.zeros((4, 2), np.float32)
    ranks = [{"w": part(a[:3], (0, 0), (4, 2))}, {"w": part(a[2:], (2, 0), (4, 2))}]
    refused(opened(ranks), "tensor w: element 4 is there twice, again in rank 1")


def test_a_replicated_tensor_sent_by_all_ranks_is_an_overlap(opened, part) -> None:
    whole = part(np.ones(2, np.float32), (0,), (2,))
    refused(opened([{"step": whole}, {"step": whole}]), "tensor step: element 0 is there twice")


def test_dtypes_must_agree(opened, part) -> None:
    ranks = [
        {"w": part(np.zeros((1, 2), np.float32), (0, 0), (2, 2))},
        {"w": part(np.zeros((1, 2), np.float16), (1, 0), (2, 2))},
    ]
    refused(opened(ranks), "tensor w is F32 in rank 0 but F16 in rank 1")


def test_global_shapes_must_agree(opened, part) -> None:
    block = np.zeros((1, 2), np.float32)
    ranks = [{"w": part(block, (0, 0), (2, 2))}, {"w": part(block, (1, 0), (3, 2))}]
    refused(opened(ranks), "tensor w is [2, 2] in rank 0 but [3, 2] in rank 1")


def test_a_block_outside_its_tensor(opened, part) -> None:
    with pytest.raises(DataCorrupt, match=re.escape("rank 0: tensor w of shape [2, 2] at [1, 0] does not fit")):
        opened([{"w": part(np.zeros((2, 2), np.float32), (1, 0), (2, 2))}])


def test_shards_without_tensors(opened) -> None:
    refused(opened([{}, {}]), "adapter v3: no shard holds a tensor")


def test_tensors_that_lie_in_another_order_are_refused(tmp_path) -> None:
    places = {name: Placement((1,), (0,)) for name in "ab"}
    meta = ShardMeta(PublishKind.ADAPTER, 3, 0, 1, "b" * 64, places)
    entries = {n: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, n in enumerate("ba")}
    text = json.dumps({"__metadata__": meta.to_metadata(), **entries}).encode()
    path = tmp_path / "shard"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"xy")
    with path.open("rb") as file, pytest.raises(DataCorrupt, match="rank 0: tensor a is not where safetensors puts it"):
        read_shard(file.fileno(), ShardRef(PublishKind.ADAPTER, 3, 0, 1, "0" * 64, path.stat().st_size), "rank 0", 0)


def test_a_shard_that_changes_after_it_was_read_is_found_at_the_end(opened, part, tmp_path) -> None:
    whole = np.arange(3_000_000, dtype=np.float32).reshape(3, 1_000_000)
    shards = opened([{"w": block} for block in split(part, whole, [2], 0)])
    plan = plan_join(shards, "adapter v3")
    with (tmp_path / "rank1").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    with pytest.raises(DataCorrupt, match=r"rank 1: changed in .*/rank1 since it came; send it again"):
        list(joined_pieces(plan))
    with (tmp_path / "rank1").open("r+b") as file:
        file.truncate(2_000_000)
    with pytest.raises(DataCorrupt, match="rank 1: truncated: "):
        list(joined_pieces(plan))


def test_a_shard_that_many_hold_is_small(opened, part) -> None:
    names = [f"layers.{n}.lora_A.weight" for n in range(500)]
    ranks = [{name: part(np.full((1, 2), rank, np.float32), (rank, 0), (2, 2)) for name in names} for rank in range(2)]
    first, second = (item.shard for item in opened(ranks))
    assert first.tensors is second.tensors and len(first.tensors) == 500
    assert second.places.itemsize * len(second.places) == 500 * 4 * 8
