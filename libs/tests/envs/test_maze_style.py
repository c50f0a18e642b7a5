"""Styles change every picture and no task."""

import hashlib
import itertools

import numpy as np
import pytest

from tandem.envs import Env, get_spec, make
from tandem.envs.maze2d import PRESETS
from tandem.envs.maze_style import CLASSIC, RANDOM, STYLES, style_of

VARIED = tuple(style for style in STYLES if style != "classic")


def first(env_id: str, seed: int = 3) -> np.ndarray:
    (image,) = make(env_id).reset(seed).images
    return image


def colours(image: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(int(part) for part in pixel) for pixel in image.reshape(-1, 3)}


def test_classic_pictures_are_those_that_models_were_trained_on():
    # Pinned before there were styles: a shipped model has learned from exactly these bytes.
    found = hashlib.sha256()
    for seed in range(200):
        env = make("maze2d:tiny")
        found.update(env.reset(seed).images[0].tobytes())
        for action in (0, 3, 0, 3):
            found.update(env.step(f"('move', {action})").observation.images[0].tobytes())
    assert found.hexdigest() == "3afbbdc2f077cd3c2406a707630506018623d2bbbf429e76b2c456d742e849c6"


def test_there_are_five_styles_beside_the_classic_one_and_no_two_look_alike():
    assert len(VARIED) == 5
    pictures = [first(f"maze2d:tiny?style={style}") for style in STYLES]
    assert {picture.shape for picture in pictures} == {(64, 64, 3)}
    for one, other in itertools.combinations(pictures, 2):
        assert np.mean((one != other).any(-1)) > 0.005  # a triangle for a disc is few pixels


def test_each_style_varies_what_it_is_there_for():
    classic = first("maze2d:tiny")
    assert not colours(first("maze2d:tiny?style=garden")) & colours(classic)
    assert first("maze2d:tiny?style=night").mean() < 120 < classic.mean()
    walls = [int((first(f"maze2d:tiny?style={s}") == CLASSIC.wall).all(-1).sum()) for s in ("classic", "thick")]
    assert walls[1] > 2 * walls[0]
    assert len(colours(first("maze2d:tiny?style=bricks"))) == len(colours(classic)) + 2
    disc, triangle = ((first(f"maze2d:tiny?style={s}") == CLASSIC.agent).all(-1) for s in ("classic", "triangle"))
    assert disc.sum() > 40 < triangle.sum() and (disc != triangle).sum() > 20


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("style", [*VARIED, RANDOM])
def test_agent_and_goal_are_seen_in_every_style_and_size(name, style):
    drawn = style_of(style, 3)
    for rooms in (4, 6):
        image = first(f"maze2d:{name}?style={style}&rooms={rooms}")
        side = 16 * rooms if name == "tiny" else 50 * rooms + 25
        assert image.shape == (side, side, 3) and image.dtype == np.uint8
        agent, goal = (np.argwhere((image == colour).all(-1)) for colour in (drawn.agent, drawn.goal))
        assert len(agent) > 25 < len(goal) and agent.max() < side // 2 < goal.min()


@pytest.mark.parametrize("style", [*STYLES, RANDOM])
def test_the_goal_is_red_and_stands_out(style):
    for seed in range(40):
        look = style_of(style, seed)
        red, green, blue = look.goal
        assert red >= 190 and max(green, blue) <= 80
        four = [np.array(colour) for colour in (look.floor, look.wall, look.agent, look.goal)]
        for one, other in itertools.combinations(four, 2):
            assert np.linalg.norm(one - other) > 60


def test_random_styles_follow_the_seed():
    assert style_of(RANDOM, 7) == style_of(RANDOM, 7)
    assert len({style_of(RANDOM, seed) for seed in range(50)}) == 50
    assert not {style_of(RANDOM, seed) for seed in range(50)} & set(STYLES.values())


def test_a_style_changes_no_task_and_no_rule():
    plain = get_spec("maze2d:tiny")
    for style in (*VARIED, RANDOM):
        spec = get_spec(f"maze2d:tiny?style={style}")
        assert all(spec.task_digest(seed) == plain.task_digest(seed) for seed in range(50))
        assert spec.turn_limit == plain.turn_limit and spec.actions == plain.actions
    env: Env = make("maze2d:easy?style=garden")
    env.reset(0)
    assert "orange disc" in env.instruction and "green walls" in env.instruction and "red square" in env.instruction


def test_variants_are_the_other_styles_and_larger_mazes():
    variants = get_spec("maze2d:tiny?max_moves=9").variants
    assert variants["styles"] == tuple(f"maze2d:tiny?max_moves=9&style={style}" for style in VARIED)
    assert variants["larger"] == ("maze2d:tiny?rooms=5", "maze2d:tiny?rooms=6")
    assert [get_spec(env_id).turn_limit for env_id in variants["larger"]] == [24, 34]  # n*n-1, even n one fewer
    assert "maze2d:tiny?style=night" not in get_spec("maze2d:tiny?style=night").variants["styles"]
    assert len(get_spec("maze2d:tiny?style=random").variants["styles"]) == 5


@pytest.mark.parametrize("env_id", ["maze2d:tiny", "maze2d:easy", "maze2d:tiny?rooms=6&style=random"])
def test_the_expert_solves_every_task_in_the_oracle_s_turns(env_id):
    spec = get_spec(env_id)
    assert spec.expert and spec.optimal_turns
    for seed in range(20):
        env, turns, solved = spec.make(), 0, False
        env.reset(seed)
        while not solved:
            text = spec.expert(env)
            assert text in spec.actions
            solved, turns = env.step(text).task_reward == 1.0, turns + 1
        assert turns == spec.optimal_turns(seed)
