"""Recipes: what is read is what was written, and every mistake is named."""

from pathlib import Path

import pytest

from tandem.config import dump_yaml, load_recipe
from tandem.types import UserError

RECIPES = sorted((Path(__file__).parents[3] / "deploy/recipes").glob("*.yaml"))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {path: somewhere}\nlearner: {lora: {rank: 8}}\n")
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_survive_a_round_trip(path: Path, tmp_path: Path) -> None:
    config = load_recipe(path)
    again = tmp_path / "again.yaml"
    again.write_text(dump_yaml(config))
    assert load_recipe(again) == config


def test_overrides_reach_any_depth_and_keep_their_neighbours(recipe: Path) -> None:
    config = load_recipe(
        recipe, ["learner.lora.alpha=64", "run.steps=7", "learner.lora.target_modules=[q_proj, v_proj]"]
    )
    assert (config.learner.lora.rank, config.learner.lora.alpha, config.run.steps) == (8, 64, 7)
    assert config.learner.lora.target_modules == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.stps=3", "unknown key 'run.stps'; did you mean 'steps'?"),
        ("nonsense=3", "unknown key 'nonsense'"),
        ("learner.lora.ranks=3", "did you mean 'rank'?"),
        ("run.steps=many", "run.steps: Input should be a valid integer"),
        ("run.steps=0", "run.steps: Input should be greater than or equal to 1"),
        ("learner.lr=.nan", "learner.lr"),
        ("model.dtype=float16", "model.dtype"),
        ("learner.algo.loss=ppo", "learner.algo.loss: Input should be 'ppo_clip', 'gspo', 'cispo' or 'sft', got 'ppo'"),
        ("learner.lora.rank=64", "rollout.engine.max_lora_rank is 32; raise the latter"),
        ("run.steps", "write it as key.sub=value"),
        ("run.name=[", "not valid YAML"),
        ("run.steps=true", "run.steps: true and false are no values of this key, got True"),
        ("learner.lr=true", "learner.lr: true and false are no values of this key, got True"),
        ('checkpoint.url="a\\0b"', "checkpoint.url: text must not hold a NUL character"),
        ("run=5", "run: Input should be a valid dictionary"),
    ],
)
def test_mistakes_are_one_clear_line(recipe: Path, override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, [override])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone.yaml: cannot be read \(No such file"):
        load_recipe(tmp_path / "gone.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="must hold keys"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(UserError, match="key 'model' is missing"):
        load_recipe(tmp_path / "empty.yaml")


@pytest.mark.parametrize("seconds", ["0.01", "inf", "nan"])
def test_a_lease_lasts_for_a_sensible_time(recipe: Path, seconds: str) -> None:
    with pytest.raises(UserError, match="lease_s"):
        load_recipe(recipe, [f"checkpoint.lease_s={seconds}"])


def test_a_mirror_is_another_place_than_the_store(recipe: Path) -> None:
    with pytest.raises(UserError, match="also_to is url, s3://b/run; a mirror is another place"):
        load_recipe(recipe, ["checkpoint.url=s3://b/run", "checkpoint.also_to=s3://b/run/"])
    assert load_recipe(recipe, ["checkpoint.url=/run", "checkpoint.also_to=s3://b/run"]).checkpoint.keep_best == 0
