"""No layout is in two splits, whatever seeds are asked for."""

import pytest

from tandem.envs import SPLITS, get_spec, seeds, split_of
from tandem.envs.tasks import up_to
from tandem.types import UserError

ENVS = ("maze2d:tiny", "maze2d:hard")


@pytest.mark.parametrize("env_id", ENVS)
def test_splits_are_disjoint_by_layout(env_id):
    layout = get_spec(env_id).task_digest
    held = {
        split: {layout(s) for start in (0, 500_000) for s in seeds(env_id, split, count, start)}
        for split, count in (("fixed", 32), ("heldout", 64), ("train", 1500))
    }
    assert not held["fixed"] & held["heldout"]
    assert not held["train"] & (held["fixed"] | held["heldout"])
    for split, layouts in held.items():
        assert {split_of(key) for key in layouts} == {split}


def test_every_layout_has_exactly_one_split():
    buckets = [bucket for buckets in SPLITS.values() for bucket in buckets]
    assert sorted(buckets) == list(range(64))


def test_evaluation_tasks_are_increasing_seeds_with_unique_layouts():
    found = seeds("maze2d:tiny", "fixed", 64)
    layout = get_spec("maze2d:tiny").task_digest
    assert found == sorted(set(found)) and len({layout(s) for s in found}) == 64
    assert found[:16] == seeds("maze2d:tiny", "fixed", 16)
    assert seeds("maze2d:tiny", "fixed", 1, start=found[5] + 1)[0] == found[6]


def test_easy_and_tiny_share_layouts_and_so_splits():
    assert seeds("maze2d:easy", "fixed", 8) == seeds("maze2d:tiny", "fixed", 8)


def test_a_split_of_few_tasks_gives_all_and_refuses_more():
    rows = up_to("sort:5", "heldout", 256)
    digest = get_spec("sort:5").task_digest
    assert 1 < len({digest(seed) for seed in rows}) == len(rows) < 20
    assert up_to("sort:5", "heldout", 2) == rows[:2] == seeds("sort:5", "heldout", 2)
    with pytest.raises(UserError, match=rf"sort:5: split 'heldout' has only {len(rows)} tasks; 256 were asked for"):
        seeds("sort:5", "heldout", 256)


def test_errors_name_what_is_known():
    with pytest.raises(UserError, match="fixed, heldout, train"):
        seeds("maze2d:tiny", "test", 4)
    with pytest.raises(UserError, match="maze2d:easy"):
        seeds("maze3d", "train", 4)
