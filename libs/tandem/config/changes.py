"""What changing a key means for a run that is resumed.

`EFFECTS` is complete: a test fails where a key of the config tree has no entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tandem.config.tree import Config


class Effect(Enum):
    """What becomes of a resumed run; the value is how people are told."""

    HARMLESS = ""  # where it runs, how long it waits, what it shows
    ROUNDING = "equal but for rounding"  # the same sums in another order or of other batches
    TELLING = "changes what is learned"  # as a person may well want it in the middle of a run
    DANGEROUS = "makes it another run"  # what was saved no longer fits, or the run's figures compare two things


# By key, or for all keys of a section by "section.*"; the longest entry counts. A new key is TELLING if you cannot say
# that it is harmless, and DANGEROUS where adapter, training state, data cursor or baseline would not be what they are.
EFFECTS: Mapping[str, Effect] = {
    "run.name": Effect.HARMLESS,
    "run.dir": Effect.HARMLESS,
    "run.seed": Effect.DANGEROUS,
    "run.steps": Effect.HARMLESS,  # see `effect_of`
    "run.deterministic": Effect.DANGEROUS,
    "model.path": Effect.DANGEROUS,
    "model.adapter": Effect.DANGEROUS,
    "model.dtype": Effect.DANGEROUS,
    "env.id": Effect.DANGEROUS,
    "env.max_turns": Effect.TELLING,
    "env.images_per_turn": Effect.TELLING,
    "env.step_timeout_s": Effect.HARMLESS,
    "env.workers": Effect.HARMLESS,
    "env.window": Effect.DANGEROUS,
    "env.min_solvable": Effect.HARMLESS,
    "rollout.replicas": Effect.ROUNDING,
    "rollout.groups_per_step": Effect.TELLING,
    "rollout.group_size": Effect.DANGEROUS,
    "rollout.max_refills": Effect.TELLING,
    "rollout.max_staleness": Effect.TELLING,
    "rollout.temperature": Effect.TELLING,
    "rollout.max_tokens": Effect.TELLING,
    "rollout.max_concurrent_episodes": Effect.ROUNDING,
    "rollout.episode_timeout_s": Effect.HARMLESS,
    "rollout.straggler_s": Effect.HARMLESS,
    "rollout.engine.*": Effect.ROUNDING,
    "rollout.engine.kind": Effect.DANGEROUS,
    "rollout.engine.simulated.*": Effect.HARMLESS,
    "rollout.engine.max_model_len": Effect.TELLING,
    "rollout.engine.request_timeout_s": Effect.HARMLESS,
    "learner.world_size": Effect.ROUNDING,
    "learner.lr": Effect.TELLING,
    "learner.lr_final": Effect.TELLING,
    "learner.warmup_steps": Effect.TELLING,
    "learner.betas": Effect.TELLING,
    "learner.weight_decay": Effect.TELLING,
    "learner.max_grad_norm": Effect.TELLING,
    "learner.minibatches": Effect.TELLING,
    "learner.microbatch_tokens": Effect.ROUNDING,
    "learner.image_cache_gib": Effect.HARMLESS,
    "learner.activation_checkpointing": Effect.ROUNDING,
    "learner.collective_timeout_s": Effect.HARMLESS,
    "learner.heartbeat_s": Effect.HARMLESS,
    "learner.trainable": Effect.DANGEROUS,
    "learner.lora.*": Effect.DANGEROUS,
    "learner.algo.*": Effect.TELLING,
    "learner.algo.gap_warning": Effect.HARMLESS,
    "sft.episodes": Effect.DANGEROUS,
    "sft.solved_only": Effect.DANGEROUS,
    "sft.skill": Effect.TELLING,
    "sft.batch": Effect.TELLING,
    "checkpoint.*": Effect.HARMLESS,
    "cluster.*": Effect.HARMLESS,
    "eval.*": Effect.HARMLESS,
    "record.*": Effect.HARMLESS,
    "faults.*": Effect.HARMLESS,
    "health.*": Effect.HARMLESS,
    "security.*": Effect.HARMLESS,
    "sync.*": Effect.HARMLESS,
    "obs.*": Effect.HARMLESS,
    "trackers.*": Effect.HARMLESS,
    "cost.*": Effect.HARMLESS,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is another than when the run was saved."""

    key: str
    old: Any
    new: Any
    effect: Effect

    def __str__(self) -> str:
        told = f" ({self.effect.value})" if self.effect.value else ""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}{told}"


def changes(old: Mapping[str, Any], new: Config) -> tuple[Change, ...]:
    """How a config differs from an earlier one, which is as `model_dump(mode="json")` of any version of Tandem gave it.

    A key that the earlier version did not have counts as at its default; one that is no more is shown, and harmless.
    """
    before, now, defaults = _leaves(old), _leaves(new.model_dump(mode="json")), _defaults()
    found = [
        Change(key, before.get(key, defaults.get(key)), value, effect_of(key, new))
        for key, value in now.items()
        if before.get(key, defaults.get(key)) != value
    ]
    gone = [Change(key, value, "no such key any more", Effect.HARMLESS) for key, value in before.items()]
    return (*found, *(change for change in gone if change.key not in now))


def effect_of(key: str, config: Config) -> Effect:
    """What a change of `key` means in a run of this config. A key without an entry is dangerous."""
    if key == "run.steps" and config.learner.lr_final != 1:
        return Effect.TELLING  # the learning rate decays over them
    return EFFECTS.get(entry_of(key) or "", Effect.DANGEROUS)


def entry_of(key: str) -> str | None:
    """The entry of `EFFECTS` that a key falls under."""
    parts = key.split(".")
    sections = [".".join((*parts[:length], "*")) for length in range(len(parts) - 1, 0, -1)]
    return next((entry for entry in (key, *sections) if entry in EFFECTS), None)


def keys(config: Config) -> tuple[str, ...]:
    """All keys of the tree, dotted."""
    return tuple(_leaves(config.model_dump(mode="json")))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_walk(tree, prefix))


def _walk(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _defaults() -> dict[str, Any]:
    return _leaves(Config.model_validate({"model": {"path": ""}}).model_dump(mode="json"))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value}"
