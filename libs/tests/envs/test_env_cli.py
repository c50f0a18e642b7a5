"""`tandem env show` and `tandem env stats`."""

import json

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from tandem.envs import make
from tandem.envs.cli import app
from tandem.types import UserError

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


def test_bad_input_is_a_user_error(tmp_path):
    result = runner.invoke(app, ["show", "maze2d:nope"])
    assert isinstance(result.exception, UserError) and "maze2d:easy" in str(result.exception)
    result = runner.invoke(app, ["show", "maze2d:easy", "--png", str(tmp_path / "no" / "x.png")])
    assert isinstance(result.exception, UserError) and "cannot write" in str(result.exception)
