"""`tandem env show` and `tandem env stats`."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tandem.envs import make
from tandem.envs.cli import app
from tandem.types import UserError

sys.path.insert(0, str(Path(__file__).parent))  # for env_worlds, as an id names it

runner = CliRunner()


def test_show_prints_the_map_and_saves_the_first_image(tmp_path):
    png = tmp_path / "maze.png"
    result = runner.invoke(app, ["show", "maze2d:easy", "--seed", "3", "--png", str(png)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1] == "#S......#" and lines[7].endswith("G#")
    assert "start (1, 1)" in result.output and "shortest path 16 moves: right right" in result.output
    assert sum(line.count(".") for line in lines[:9]) == 15  # 16 moves: 15 cells between S and G
    (drawn,) = make("maze2d:easy").reset(3).images
    assert np.array_equal(np.asarray(Image.open(png)), drawn)


def test_stats_json_is_the_distribution_of_shortest_paths():
    result = runner.invoke(app, ["stats", "maze2d:easy", "--seeds", "300", "--json"])
    shares = json.loads(result.output)
    assert abs(sum(shares.values()) - 1) < 1e-9 and set(shares) <= {"12", "16", "20", "24", "28"}
    assert 0.6 < shares["12"] < 0.85
    table = runner.invoke(app, ["stats", "maze2d:easy", "--seeds", "300"])
    assert f"12 moves  {shares['12']:7.2%}" in table.output


@pytest.mark.parametrize(
    ("env_id", "shown"),
    [
        ("slide:8", ["shortest solution", "Order the tiles.", "('move', 0)", "turn limit: 16"]),
        ("sort:4", ["shortest solution", "Sort.", "('swap', 3)", "turn limit: 6"]),
        (
            "gym:CliffWalking-v1?solved_at=-13",
            ["no map", "Play CliffWalking.", "0, 1, 2, 3", "turn limit: none of its own"],
        ),
        ("gym:FrozenLake-v1?render=ansi", ["[S]FFF", "turn limit: 100"]),
        ("env_worlds:Guess", ["no map", "Guess a number from 0 to 9. Seed 1.", "actions: text"]),
    ],
)
def test_every_kind_can_be_shown(env_id, shown):
    result = runner.invoke(app, ["show", env_id, "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert all(words in result.output for words in shown)


def test_list_says_what_an_id_may_be():
    lines = runner.invoke(app, ["list"]).output.splitlines()
    assert {"maze2d:tiny", "slide:8", "sort:7", "gym:<gymnasium id>", "package.module:Class"} <= set(lines)


def test_stats_of_other_kinds():
    result = runner.invoke(app, ["stats", "sort:3", "--seeds", "200", "--json"])
    assert set(json.loads(result.output)) == {"1", "2", "3"}
    result = runner.invoke(app, ["stats", "gym:CartPole-v1"])
    assert isinstance(result.exception, UserError) and "no oracle" in str(result.exception)


def test_text_alone_has_no_image_to_save(tmp_path):
    result = runner.invoke(app, ["show", "sort:4", "--png", str(tmp_path / "x.png")])
    assert isinstance(result.exception, UserError) and "no image" in str(result.exception)


def test_bad_input_is_a_user_error(tmp_path):
    result = runner.invoke(app, ["show", "env_worlds:Guess?highest=-1"])
    assert isinstance(result.exception, UserError) and "ZeroDivisionError" in str(result.exception)
    result = runner.invoke(app, ["show", "maze2d:nope"])
    assert isinstance(result.exception, UserError) and "maze2d:easy" in str(result.exception)
    result = runner.invoke(app, ["show", "maze2d:easy", "--png", str(tmp_path / "no" / "x.png")])
    assert isinstance(result.exception, UserError) and "cannot write" in str(result.exception)
