"""Playing suites under one adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.config import Config
from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet
from tandem_controller.outcomes import Evaluation, SuiteResult, figures, suite_result
from tandem_controller.playable import check_played
from tandem_controller.suites import FIXED, Suite

Save = Callable[[Suite, Sequence[TrajectoryGroup]], object]

EVAL_SEED = 20_261_130  # sampling seed of every evaluation: two adapters meet the same dice


async def evaluate(
    fleet: Fleet,
    config: Config,
    adapter: AdapterRef,
    suites: Sequence[Suite],
    save: Save = lambda suite, groups: None,
) -> Evaluation:
    """Play the suites under the adapter, which the fleet serves already; `save` gets each suite's groups by seed.

    Raises:
        TandemError: not one episode of a suite could be played.
    """
    results = list[SuiteResult]()
    for suite in suites:
        groups = await _play(fleet, config, adapter.version, suite)
        save(suite, groups)
        results.append(suite_result(suite, groups))
    return Evaluation(
        adapter=adapter.name,
        url=adapter.url,
        version=adapter.version,
        sampling_seed=EVAL_SEED,
        window=config.env.window,
        max_tokens=config.rollout.max_tokens,
        results=tuple(results),
    )


def evaluation_task(config: Config, version: int, suite: Suite) -> RolloutTask:
    """What to ask the fleet for."""
    return RolloutTask(
        env=suite.env,
        seeds=suite.seeds,
        group_size=suite.samples,
        policy_version=version,
        sampling=Sampling(suite.temperature, max_tokens=config.rollout.max_tokens),
        context=ContextPolicy(config.env.window),
        max_turns=suite.max_turns,
        sampling_seed=EVAL_SEED,
    )


def headline(results: Sequence[SuiteResult]) -> SuiteResult | None:
    """The greedy result on the fixed set, if it was played."""
    return next((result for result in results if is_headline(result.suite)), None)


def is_headline(suite: Suite) -> bool:
    """True for the fixed set, greedy."""
    return suite.name == FIXED and not suite.temperature


async def fixed_greedy(
    fleet: Fleet, config: Config, version: int, suite: Suite, save: Save = lambda suite, groups: None
) -> float:
    """Greedy solve rate on the fixed set: the headline figure. `save` as in `evaluate`."""
    groups = await _play(fleet, config, version, suite)
    save(suite, groups)
    return figures([suite_result(suite, groups)]).rate


async def _play(fleet: Fleet, config: Config, version: int, suite: Suite) -> list[TrajectoryGroup]:
    groups = await fleet.play(evaluation_task(config, version, suite))
    check_played(f"{suite.name} of {suite.env}", groups)
    return groups
