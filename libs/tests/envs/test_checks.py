"""An environment's answers are looked at before they are believed; what is only unusual is put right."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.envs import Observation, StepResult, make
from tandem.envs.checks import BadOutput, checked_instruction, checked_observation, checked_result

IMAGE = np.zeros((4, 6, 3), np.uint8)
FINE = StepResult(Observation((IMAGE,), "ok"), 1.0, False, 0.0, True, {"moves": 1.0})


def test_numpy_s_numbers_and_lists_of_images_become_plain():
    numpy: Any = replace(
        FINE,
        observation=Observation([IMAGE, IMAGE], ""),  # type: ignore[arg-type]
        reward=np.float32(0.5),  # type: ignore[arg-type]
        terminated=np.bool_(True),  # type: ignore[arg-type]
        info={"moves": np.int64(3), "won": True},
    )
    found = checked_result(numpy)
    assert (found.reward, found.terminated, dict(found.info)) == (0.5, True, {"moves": 3.0, "won": 1.0})
    assert [type(x) for x in (found.reward, found.terminated, found.info["moves"])] == [float, bool, float]
    assert len(found.observation.images) == 2 and isinstance(found.observation.images, tuple)


def test_real_environments_pass_unchanged():
    for env_id in ("maze2d:tiny?style=random", "slide:8", "sort:5"):
        env = make(env_id)
        seen = env.reset(1)
        assert checked_observation(seen) == seen or seen.images
        assert checked_instruction(env.instruction) == env.instruction
        result = env.step("?")
        assert checked_result(result).info == dict(result.info)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("reward", None),
        ("reward", 1j),
        ("reward", np.complex64(1)),
        ("reward", float("-inf")),
        ("task_reward", "solved"),
        ("terminated", None),
        ("parsed", 0),
        ("info", {3: 1.0}),
        ("info", {"x": float("nan")}),
        ("info", {"x": np.zeros(2)}),
    ],
)
def test_the_part_that_is_wrong_is_named(part, value):
    with pytest.raises(BadOutput, match=part):
        checked_result(replace(FINE, **{part: value}))


def test_what_is_no_observation_or_instruction_is_refused():
    with pytest.raises(BadOutput, match="must be an Observation, not uint8"):
        checked_observation(IMAGE)
    with pytest.raises(BadOutput, match=r"images\[1\] must be uint8 \[H, W, 3\], not str"):
        checked_observation(Observation((IMAGE, "picture"), ""))  # type: ignore[arg-type]
    with pytest.raises(BadOutput, match="instruction must be text"):
        checked_instruction(None)
