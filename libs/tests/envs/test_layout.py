"""Mazes are uniform spanning trees, the same on every machine; the oracle knows the way."""

import itertools
from collections import Counter

import numpy as np
import pytest

from tandem.envs.layout import (
    SplitMix64,
    best_direction,
    digest,
    distances,
    make_walls,
    move,
    shortest_path,
)


def test_splitmix64_matches_published_outputs():
    # First outputs for seed 1234567 of the public-domain reference splitmix64.c (prng.di.unimi.it).
    rng = SplitMix64(1234567)
    assert [rng.next() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_seed_is_the_same_maze_on_every_machine():
    # Pinned: a change of these digests changes every task, every split and every published figure.
    assert digest(make_walls(3, 4))[:12] == "9a4d43a0f492"
    rows = ["".join("#" if cell else " " for cell in row) for row in make_walls(3, 4)]
    assert rows[1] == "#       #" and rows[5] == "#   #   #"


@pytest.mark.parametrize("rooms", [2, 4, 5])
def test_every_maze_is_a_spanning_tree(rooms):
    for seed in range(50):
        walls = make_walls(seed, rooms)
        assert walls[0].all() and walls[-1].all() and walls[:, 0].all() and walls[:, -1].all()
        assert walls[::2, ::2].all(), "pillars between four rooms never open"
        open_ways = int((~walls).sum()) - rooms * rooms
        assert open_ways == rooms * rooms - 1, "a tree over n*n rooms has n*n - 1 edges"
        assert (distances(walls, (1, 1), 2)[1::2, 1::2] >= 0).all(), "and reaches every room"


def test_spanning_trees_are_uniform_on_two_by_two_rooms():
    # The 2 x 2 grid is a cycle of 4 edges: 4 spanning trees, each missing one edge, 1/4 each under uniformity.
    counts = Counter(digest(make_walls(seed, 2)) for seed in range(8000))
    assert len(counts) == 4
    for count in counts.values():  # standard error of a share of 1/4 over 8000: 0.0048
        assert abs(count / 8000 - 0.25) < 0.02


def test_corner_to_corner_distances_of_easy_mazes():
    # Uniform spanning trees over 4 x 4 rooms, in cells: about 72.4, 21.7, 4.9, 0.9 percent (and 28 for the rest).
    count = 4000
    shares = Counter(len(shortest_path(make_walls(seed, 4), (1, 1), (7, 7), 1)) for seed in range(count))
    for moves, expected in ((12, 0.724), (16, 0.217), (20, 0.049), (24, 0.009)):
        assert abs(shares[moves] / count - expected) < 0.025
    assert set(shares) <= {12, 16, 20, 24, 28}


def test_following_the_oracle_takes_exactly_its_distance():
    for seed, stride in itertools.product(range(20), (1, 2)):
        walls = make_walls(seed, 4)
        steps = distances(walls, (7, 7), stride)
        cell, count = (1, 1), 0
        while cell != (7, 7):
            nxt = move(walls, cell, best_direction(walls, steps, cell, stride), stride)
            assert nxt is not None
            cell, count = nxt, count + 1
        assert count == steps[1, 1] == len(shortest_path(walls, (1, 1), (7, 7), stride))
        assert best_direction(walls, steps, (7, 7), stride) == -1


def test_walls_are_never_crossed():
    walls = make_walls(0, 4)
    assert move(walls, (1, 1), 1, 1) is None and move(walls, (1, 1), 2, 2) is None
    assert int(np.sum(walls)) == 81 - 16 - 15
