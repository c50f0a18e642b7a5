"""Recorded episodes come back as they were, and damage is named."""

import hashlib
import io
import json
import math

import numpy as np
import pytest
from PIL import Image

from tandem.storage.episodes import EPISODES, IMAGES, read_groups, write_groups
from tandem.types import (
    DataCorrupt,
    FinishReason,
    NotFound,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
    UserError,
)


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), shade, np.uint8)).save(file, format="PNG")
    return file.getvalue()


def turn(*images: str, reward: float = 0.0) -> Turn:
    return Turn(
        (1, 2, 2, 3), (7, 8), (-0.125, -1e-9), images, 3, "('move', 0)", "Moved ünd so.", reward, FinishReason.STOP
    )


def group(seed: int, reward: float = 1.0) -> TrajectoryGroup:
    pictures = {hashlib.sha256(png(shade)).hexdigest(): png(shade) for shade in (seed, seed + 1)}
    first, second = pictures
    solved = Trajectory(
        0, (turn(first), turn(first, second, reward=reward)), StopReason.TERMINATED, 1.0, metrics={"moves": 2.0}
    )
    failed = Trajectory(1, (), StopReason.ENV_ERROR, 0.0, "ValueError: no")
    return TrajectoryGroup(f"v3-s0-t{seed}", "maze2d:tiny?rooms=5", seed, 3, (solved, failed), pictures, 0.25)


def test_what_is_written_comes_back(tmp_path):
    assert write_groups(tmp_path / "a" / "b", [group(1), group(2)]) == 2
    assert write_groups(tmp_path / "a" / "b", [group(3)]) == 1
    assert list(read_groups(tmp_path / "a" / "b")) == [group(1), group(2), group(3)]
    assert len(list((tmp_path / "a" / "b" / IMAGES).iterdir())) == 4, "each distinct image once"
    lines = (tmp_path / "a" / "b" / EPISODES).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [1, 2, 3]


def test_a_reward_that_is_no_number_comes_back_from_valid_json(tmp_path):
    write_groups(tmp_path, [group(1, reward=math.nan)])
    json.loads((tmp_path / EPISODES).read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (found,) = read_groups(tmp_path)
    assert math.isnan(found.trajectories[0].turns[1].reward)


def rewrite(folder, change) -> None:
    line = json.loads((folder / EPISODES).read_text())
    change(line)
    (folder / EPISODES).write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(colour="red"), "line 1: colour"),
        (lambda line: line["trajectories"][0].update(mood="good"), "line 1: trajectories.0.mood"),
        (lambda line: line["trajectories"][0]["turns"][1].update(mood="good"), "trajectories.0.turns.1.mood"),
        (lambda line: line.pop("seed"), "line 1: seed"),
        (lambda line: line["trajectories"][0].update(stop_reason="bored"), "trajectories.0.stop_reason"),
        (lambda line: line.update(images=[]), "member 0 turn 0: image"),
        (lambda line: line.update(seed=-1), "line 1: seed"),
        (lambda line: line.update(seed=2**80), "line 1: seed"),
        (lambda line: line["trajectories"][0]["turns"][1].update(prompt_ids=[-1]), "turn 1: -1 is no token id"),
        (lambda line: line["trajectories"][0]["turns"][1].update(prompt_ids=[2**40]), "turn 1: 1099511627776 is no"),
        (lambda line: line["trajectories"][0]["turns"][0].update(rollout_logprobs=[]), "2 completion ids but 0"),
    ],
)
def test_a_line_that_is_no_group_is_named(tmp_path, change, said):
    write_groups(tmp_path, [group(1)])
    rewrite(tmp_path, change)
    with pytest.raises(DataCorrupt, match=said):
        list(read_groups(tmp_path))


def test_a_line_cut_short_is_refused_and_not_written_behind(tmp_path):
    write_groups(tmp_path, [group(1), group(2)])
    whole = (tmp_path / EPISODES).read_bytes()
    (tmp_path / EPISODES).write_bytes(whole[:-1])  # JSON still, but nobody knows that it is all
    groups = read_groups(tmp_path)
    assert next(groups) == group(1)
    with pytest.raises(DataCorrupt, match="line 2: cut short"):
        next(groups)
    with pytest.raises(DataCorrupt, match="cut short"):
        write_groups(tmp_path, [group(3)])


def test_images_are_checked(tmp_path):
    write_groups(tmp_path, [group(1)])
    first, second = sorted((tmp_path / IMAGES).iterdir())
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataCorrupt, match=f"{first.name}: its sha256 is {second.name[:12]}"):
        list(read_groups(tmp_path))
    first.unlink()
    with pytest.raises(DataCorrupt, match=f"{first.name}.*line 1"):
        list(read_groups(tmp_path))


def test_folders_that_cannot_be(tmp_path):
    with pytest.raises(NotFound, match="none"):
        list(read_groups(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_groups(tmp_path / "file", [group(1)])
