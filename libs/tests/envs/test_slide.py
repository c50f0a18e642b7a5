"""The sliding puzzle: rules, partial credit, starts, oracle, picture."""

import itertools
import random
from functools import lru_cache

import numpy as np
import pytest

from tandem.envs import get_spec, make, seeds
from tandem.envs.actions import HIT_WALL, MOVED, NOT_UNDERSTOOD
from tandem.envs.slide import GOAL, in_place, moves_to_goal, render, slide
from tandem.types import UserError

SPEC = get_spec("slide:8")


def play(env_id: str, seed: int, texts: list[str]):
    env = make(env_id)
    env.reset(seed)
    return [env.step(text) for text in texts]


def test_a_tile_moves_into_the_gap_and_back():
    board = bytes([1, 2, 3, 4, 0, 5, 6, 7, 8])
    assert slide(board, 0) == bytes([1, 2, 3, 0, 4, 5, 6, 7, 8])  # the tile on the left goes right
    assert slide(board, 3) == bytes([1, 0, 3, 4, 2, 5, 6, 7, 8])  # the tile above goes down
    for direction, back in ((0, 2), (2, 0), (1, 3), (3, 1)):
        after = slide(board, direction)
        assert after and slide(after, back) == board
    assert slide(GOAL, 1) is None and slide(GOAL, 2) is None  # the gap is in the corner: nothing below, nothing right


def test_breadth_first_counts_are_the_known_ones():
    # Boards of the 8-puzzle by depth, the gap in a corner: sequence A089473 of the OEIS.
    depths = list(moves_to_goal().values())
    assert [depths.count(d) for d in range(12)] == [1, 2, 4, 8, 16, 20, 39, 62, 116, 152, 286, 396]
    assert len(depths) == 181_440 and max(depths) == 31 and depths.count(31) == 2


@pytest.mark.parametrize("env_id", ["slide:8", "slide:8?least=17&most=20"])
def test_the_expert_solves_in_the_oracle_s_turns_and_returns_exactly_one(env_id):
    spec = get_spec(env_id)
    assert spec.expert and spec.optimal_turns
    for seed in range(60):
        env, rewards, solved = spec.make(), [], False
        env.reset(seed)
        while not solved:
            result = env.step(spec.expert(env))
            rewards.append(result.reward)
            solved = result.task_reward == 1.0
        assert result.terminated and result.info["shortest"] == len(rewards) == spec.optimal_turns(seed)
        assert sum(rewards) == 1.0


def test_unsolved_episodes_return_the_gain_in_tiles_in_place():
    rng = random.Random(0)
    gains = set()
    for seed in range(40):
        env = make("slide:8?least=3&most=8&max_moves=4")
        board = env.reset(seed)
        results = [env.step(f"('move', {rng.randrange(4)})") for _ in range(4)]
        if results[-1].task_reward == 1.0 or any(r.terminated for r in results[:-1]):
            continue
        start = int(np.sum([same_place(board.images[0], place) for place in range(8)])) / 8
        gain = results[-1].info["in_place"] - start
        assert sum(r.reward for r in results) == gain and results[-1].info["out_of_turns"] == 1.0
        gains.add(gain)
    assert min(gains) < 0 < max(gains), "partial credit both ways"


def same_place(image: np.ndarray, place: int) -> bool:
    row, column = divmod(place, 3)
    tile = np.s_[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16]
    return bool(np.array_equal(image[tile], render(GOAL, 16)[tile]))


def test_walls_and_nonsense_cost_a_turn_and_slide_nothing():
    env = make("slide:8")
    seen = env.reset(1)
    seen_walls = 0
    for direction in range(4):
        env.reset(1)
        result = env.step(f"('move', {direction})")
        assert result.feedback in (MOVED, HIT_WALL) and result.parsed
        moved = not np.array_equal(result.observation.images[0], seen.images[0])
        assert moved is (result.feedback == MOVED)
        seen_walls += result.info["wall_hits"] == 1.0
    assert seen_walls == sum(slide(board_of(1), d) is None for d in range(4))
    result = env.step("left, please")
    assert (result.feedback, result.parsed, result.reward) == (NOT_UNDERSTOOD, False, 0.0)


def board_of(seed: int) -> bytes:
    assert SPEC.describe
    return bytes(0 if c == "." else int(c) for c in "".join(SPEC.describe(seed).splitlines()[:3]).replace(" ", ""))


def test_starts_are_many_and_as_deep_as_asked():
    moves = moves_to_goal()
    boards = [board_of(seed) for seed in range(400)]
    assert {moves[board] for board in boards} == set(range(6, 17))
    assert sum(count for count in map(len, split_starts().values())) > 2000
    assert board_of(11) == board_of(11) and SPEC.task_digest(11) == get_spec("slide:8?tile=32").task_digest(11)


@lru_cache(maxsize=1)
def split_starts() -> dict[str, set[str]]:
    return {
        split: {SPEC.task_digest(seed) for seed in seeds("slide:8", split, count)}
        for split, count in (("fixed", 64), ("heldout", 256), ("train", 5000))
    }


def test_splits_share_no_start():
    for one, other in itertools.combinations(split_starts().values(), 2):
        assert not one & other


def test_pictures_tell_every_board_apart_and_the_goal_is_fixed():
    image = render(GOAL, 16)
    assert image.shape == (48, 48, 3) and image.dtype == np.uint8
    colours = {tuple(int(x) for x in image[r * 16 + 8, c * 16 + 8]) for r in range(3) for c in range(3)}
    assert len(colours) == 9
    assert render(GOAL, 32).shape == (96, 96, 3)
    assert in_place(GOAL) == 1.0 and in_place(bytes([2, 1, 3, 4, 5, 6, 7, 8, 0])) == 6 / 8


def test_harder_starts_are_a_variant_and_bad_options_one_clear_line():
    assert SPEC.variants == {"larger": ("slide:8?least=17&most=20",)} and SPEC.turn_limit == 16
    assert get_spec("slide:8?least=17&most=20").turn_limit == 20
    assert "larger" not in get_spec("slide:8?most=31").variants
    assert "red, orange" in make("slide:8?brief=false").instruction
    for query in ("most=32", "least=9&most=8", "least=0", "max_moves=0", "tile=2", "tiles=3"):
        with pytest.raises(UserError, match="slide:8"):
            make(f"slide:8?{query}")
    with pytest.raises(UserError, match="known: maze2d"):
        make("slide:15")
