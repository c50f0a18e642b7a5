"""Which tasks an evaluation plays. None is ever trained on, but for `train`: the split goes by the task's digest.

fixed64   the demo's headline: the first tasks of the split "fixed"
heldout   more unseen tasks, of the split "heldout"
styles    the tasks of fixed64 in looks never trained on
larger    larger tasks than trained on, each environment with its own turn limit
train     training tasks, only where asked for by name: to record episodes that may be imitated
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.config import Config
from tandem.envs import tasks
from tandem.envs.registry import get_spec
from tandem.types import UserError

FIXED = "fixed64"
SPLIT = {FIXED: "fixed", "heldout": "heldout", "styles": "fixed", "larger": "fixed", "train": "train"}
SUITES = tuple(SPLIT)
DEFAULT = (FIXED, "heldout")  # what `tandem eval` plays where none is named, and a run samples as well
ALL = "all"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks of one environment to solve: `samples` episodes each, greedy (temperature 0) or sampled."""

    name: str
    env: str
    seeds: tuple[int, ...]
    max_turns: int
    samples: int = 1
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Suites to play, and lines on those that cannot be, or not on as many tasks as asked for."""

    suites: tuple[Suite, ...]
    remarks: tuple[str, ...]


def plan(config: Config, names: Sequence[str] = (ALL,), limit: int = 0) -> Plan:
    """The suites of these names, greedy, with as many tasks as `eval` in the config says, at most `limit` if not 0.

    `all` takes what the recipe and its environment have.

    Raises:
        UserError: an unknown name, a suite that the recipe leaves out, or that its environment lacks.
    """
    if unknown := set(names) - {*SUITES, ALL}:
        raise UserError(f"--suite {min(unknown)}: unknown; known: {', '.join((*SUITES, ALL))}")
    suites, remarks, absent = list[Suite](), list[str](), dict[str, list[str]]()
    asked = {*names, *(set(SUITES) - {"train"} if ALL in names else ())}
    for name in SUITES:
        count = _count(config, name)
        if not count and name in names:
            raise UserError(f"--suite {name}: this recipe leaves it out; set eval.{_key(name)} to a number of tasks")
        if not count or name not in asked:
            continue
        found = environments(config, name)
        if not found and name in names:
            raise UserError(f"--suite {name}: {config.env.id} has no such variants")
        if not found:
            absent.setdefault("it has no such variants", []).append(name)
        for env in found:
            if problem := _too_long(config, env):
                remarks.append(f"{name} left out: {problem}")
                continue
            wanted = min(count, limit or count)
            seeds = tasks.up_to(env, SPLIT[name], wanted)
            if not seeds:
                whose = "its" if env == config.env.id else f"{env}'s"
                absent.setdefault(f"none of {whose} tasks falls there, by their digests", []).append(name)
                continue
            if len(seeds) < wanted:
                remarks.append(f"{name} of {env}: {len(seeds)} tasks, not {wanted}; it has no more")
            suites.append(Suite(name, env, tuple(seeds), turn_limit(config, env)))
    if absent:
        parts = (f"{', '.join(names)} ({why})" for why, names in absent.items())
        remarks.append(f"{config.env.id}: left out are {', '.join(parts)}")
    return Plan(tuple(suites), tuple(remarks))


def default_names(config: Config) -> tuple[str, ...]:
    """The first two suites, as far as the recipe has them."""
    return tuple(name for name in DEFAULT if _count(config, name))


def training_plan(config: Config) -> Plan:
    """What a run plays before and after: all suites greedy, and the first two sampled as well (`eval.samples`)."""
    greedy = plan(config)
    sampled = [
        with_samples(suite, config.eval.samples if suite.name == FIXED else 1, 1.0)
        for suite in greedy.suites
        if config.eval.samples and suite.name in DEFAULT
    ]
    return replace(greedy, suites=(*greedy.suites, *sampled))


def with_samples(suite: Suite, samples: int, temperature: float) -> Suite:
    """The same tasks, `samples` episodes each at that temperature."""
    return replace(suite, samples=samples, temperature=temperature)


def environments(config: Config, name: str) -> tuple[str, ...]:
    """The environment ids of a suite; none where the recipe's environment has no such variants."""
    if name in ("styles", "larger"):
        return get_spec(config.env.id).variants.get(name, ())
    return (config.env.id,)


def turn_limit(config: Config, env: str) -> int:
    """The recipe's turn limit; an environment that ends elsewhere than the recipe's has its own."""
    own, recipes = get_spec(env).turn_limit, get_spec(config.env.id).turn_limit
    return config.env.max_turns if own is None or own == recipes else own


def _key(name: str) -> str:
    return "fixed" if name == FIXED else name


def _count(config: Config, name: str) -> int:
    return getattr(config.eval, _key(name))


def _too_long(config: Config, env: str) -> str:
    """Why the engine cannot hold an episode's prompts; empty where it can."""
    turns = turn_limit(config, env)
    images = min(config.env.window or turns, turns) * config.env.images_per_turn
    if images <= config.env.max_images:
        return ""
    return (
        f"{env} takes up to {turns} turns, whose {images} images do not fit the engine's prompts of "
        f"{config.env.max_images}; raise env.max_turns, or set env.window"
    )
