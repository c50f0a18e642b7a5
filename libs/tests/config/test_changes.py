"""What a changed recipe means for a run that is resumed."""

from typing import Any

import pytest

from tandem.config import Config
from tandem.config.changes import EFFECTS, Change, Effect, changes, effect_of, entry_of, keys

CONFIG = Config.model_validate({"model": {"path": "m"}})


def of(**sections: Any) -> Config:
    return Config.model_validate({"model": {"path": "m"}, **sections})


def saved(config: Config = CONFIG) -> dict[str, Any]:
    return config.model_dump(mode="json")


def test_every_key_says_what_changing_it_does_to_a_resumed_run() -> None:
    silent = [key for key in keys(CONFIG) if entry_of(key) is None]
    assert not silent, f"add to EFFECTS in libs/tandem/config/changes.py what a resume with another value is: {silent}"


def test_every_effect_is_of_a_key_there_is() -> None:
    idle = set(EFFECTS) - {entry_of(key) for key in keys(CONFIG)}
    assert not idle, f"EFFECTS in libs/tandem/config/changes.py names what is no key any more: {sorted(idle)}"


def test_the_same_recipe_has_not_changed() -> None:
    assert changes(saved(), CONFIG) == ()


def test_what_changed_is_told_key_by_key() -> None:
    new = of(learner={"lr": 0.5}, env={"id": "sort:7"}, obs={"log_level": "debug"}, rollout={"replicas": 2})
    assert sorted(map(str, changes(saved(), new))) == [
        "env.id: 'maze2d:tiny' -> 'sort:7' (makes it another run)",
        "learner.lr: 0.0001 -> 0.5 (changes what is learned)",
        "obs.log_level: 'info' -> 'debug'",
        "rollout.replicas: 1 -> 2 (equal but for rounding)",
    ]


def test_a_default_that_another_version_of_the_code_had_is_told() -> None:
    old = saved()
    old["learner"]["lr"] = 3e-4
    assert changes(old, CONFIG) == (Change("learner.lr", 3e-4, 1e-4, Effect.TELLING),)


def test_a_key_that_another_version_did_not_have_counts_as_at_its_default() -> None:
    old = saved()
    del old["learner"]["lora"]["rank"], old["eval"]
    assert changes(old, CONFIG) == ()
    assert changes(old, of(learner={"lora": {"rank": 8}})) == (Change("learner.lora.rank", 32, 8, Effect.DANGEROUS),)


def test_a_key_that_is_no_more_is_told() -> None:
    old = saved()
    old["learner"]["normalize_std"] = True
    (change,) = changes(old, CONFIG)
    assert str(change) == "learner.normalize_std: True -> 'no such key any more'"
    assert change.effect is Effect.HARMLESS


def test_more_steps_are_harmless_unless_the_learning_rate_decays_over_them() -> None:
    assert effect_of("run.steps", CONFIG) is Effect.HARMLESS
    assert effect_of("run.steps", of(learner={"lr_final": 0.1})) is Effect.TELLING


@pytest.mark.parametrize(
    "key",
    [
        *("model.path", "model.dtype", "env.id", "env.window", "run.seed", "run.deterministic"),
        *("rollout.group_size", "learner.trainable", "learner.lora.rank", "learner.lora.target_modules"),
    ],
)
def test_what_makes_it_another_run_is_dangerous(key: str) -> None:
    assert effect_of(key, CONFIG) is Effect.DANGEROUS


def test_a_key_nobody_knows_is_dangerous() -> None:
    assert effect_of("learner.unheard_of", CONFIG) is Effect.DANGEROUS
