"""Which tasks are played: by name, config and what the environment has."""

import pytest

from tandem.config import Config
from tandem.envs import split_of, tasks
from tandem.envs.registry import get_spec
from tandem.types import UserError
from tandem_controller.suites import default_names, plan, training_plan


def config(env: dict | None = None, **sizes: int) -> Config:
    return Config.model_validate({"model": {"path": "x"}, "eval": sizes, "env": {"window": 1, **(env or {})}})


def test_each_suite_has_its_tasks_and_none_is_trained_on() -> None:
    suites = plan(config(fixed=8, heldout=9, styles=3, larger=2)).suites
    named = {
        name: [suite for suite in suites if suite.name == name] for name in ("fixed64", "heldout", "styles", "larger")
    }
    assert [len(suite.seeds) for suite in suites] == [8, 9] + [3] * len(named["styles"]) + [2] * len(named["larger"])
    assert len(named["styles"]) == 5
    assert {suite.env for suite in named["fixed64"] + named["heldout"]} == {"maze2d:tiny"}
    assert all(suite.seeds == named["fixed64"][0].seeds[:3] for suite in named["styles"])  # the same mazes, other looks
    for suite in suites:
        splits = {split_of(get_spec(suite.env).task_digest(seed)) for seed in suite.seeds}
        assert splits == {"heldout" if suite.name == "heldout" else "fixed"}


def test_larger_tasks_have_the_turns_they_need_and_looks_the_recipes() -> None:
    recipe = config({"max_turns": 11, "min_solvable": 0}, fixed=1, heldout=0, styles=1, larger=4)
    for suite in plan(recipe).suites:
        if suite.name != "larger":
            assert suite.max_turns == 11
            continue
        spec = get_spec(suite.env)
        assert spec.optimal_turns is not None
        assert suite.max_turns == spec.turn_limit
        assert max(map(spec.optimal_turns, tasks.seeds(suite.env, "fixed", 64))) <= suite.max_turns


def test_training_tasks_are_played_only_where_named() -> None:
    assert "train" not in {suite.name for suite in plan(config(train=8)).suites}
    (suite,) = plan(config(train=8), ["train"]).suites
    assert list(suite.seeds) == tasks.seeds("maze2d:tiny", "train", 8)


def test_a_limit_cuts_each() -> None:
    assert {len(suite.seeds) for suite in plan(config(fixed=8, heldout=2, styles=3, larger=3), limit=2).suites} == {2}


def test_what_is_asked_for_and_absent_is_named() -> None:
    with pytest.raises(UserError, match=r"--suite heldout: this recipe leaves it out; set eval\.heldout"):
        plan(config(heldout=0), ["heldout"])
    with pytest.raises(UserError, match="--suite fixed: unknown; known: fixed64, heldout, styles, larger, train, all"):
        plan(config(), ["fixed"])
    assert {suite.name for suite in plan(config(fixed=1, heldout=0, styles=0, larger=1)).suites} == {
        "fixed64",
        "larger",
    }


def test_by_default_the_first_two_are_played_as_far_as_the_recipe_has_them() -> None:
    assert default_names(config(fixed=2, heldout=3)) == ("fixed64", "heldout")
    assert default_names(config(fixed=2, heldout=0)) == ("fixed64",)
    assert plan(config(fixed=0, heldout=0), default_names(config(fixed=0, heldout=0))).suites == ()


def test_with_the_whole_transcript_longer_episodes_do_not_fit_the_engine() -> None:
    whole = plan(config({"window": 0, "max_turns": 14}, fixed=1, heldout=0, styles=0, larger=1))
    assert [suite.name for suite in whole.suites] == ["fixed64"]
    assert [line.partition(" takes")[0] for line in whole.remarks] == [
        "larger left out: maze2d:tiny?rooms=5",
        "larger left out: maze2d:tiny?rooms=6",
    ]


def test_an_environment_without_variants_says_so_where_they_are_asked_for() -> None:
    text = config({"id": "sort:9", "max_turns": 36}, fixed=2, heldout=0)
    with pytest.raises(UserError, match="--suite styles: sort:9 has no such variants"):
        plan(text, ["fixed64", "styles"])
    assert [suite.name for suite in plan(text).suites] == ["fixed64"]
    assert plan(text).remarks == ("sort:9: left out are styles, larger (it has no such variants)",)


def test_an_environment_with_few_tasks_is_played_on_all_of_them() -> None:
    found = plan(config({"id": "sort:5", "max_turns": 10}, fixed=2, heldout=256, styles=0, larger=0))
    fixed, heldout = found.suites
    digest = get_spec("sort:5").task_digest
    held = {digest(seed) for seed in range(5000) if split_of(digest(seed)) == "heldout"}
    assert held == {digest(seed) for seed in heldout.seeds} and len(held) == len(heldout.seeds)
    assert len(fixed.seeds) == 2
    assert found.remarks == (f"heldout of sort:5: {len(held)} tasks, not 256; it has no more",)


def test_a_suite_without_a_task_is_left_out() -> None:
    """Of the five rows of three digits, all are for training. One line says it all."""
    found = plan(config({"id": "sort:3", "max_turns": 3}, fixed=2, heldout=2, styles=2, larger=0))
    assert found.suites == ()
    assert found.remarks == (
        "sort:3: left out are fixed64, heldout (none of its tasks falls there, by their digests), "
        "styles (it has no such variants)",
    )


def test_a_run_plays_all_greedy_and_the_first_two_sampled() -> None:
    suites = training_plan(config(fixed=2, heldout=2, styles=1, larger=1, samples=4)).suites
    sampled = [(suite.name, suite.samples, suite.temperature) for suite in suites if suite.temperature]
    assert sampled == [("fixed64", 4, 1.0), ("heldout", 1, 1.0)]
    assert {suite.name for suite in suites if not suite.temperature} == {"fixed64", "heldout", "styles", "larger"}
    assert not [s for s in training_plan(config(fixed=2, heldout=2, samples=0)).suites if s.temperature]
