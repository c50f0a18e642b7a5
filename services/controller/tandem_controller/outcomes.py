"""What became of an evaluation: per task, in figures, and in a file that a resumed run reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tandem.envs.registry import get_spec
from tandem.types import DataCorrupt, StopReason, Trajectory, TrajectoryGroup, UserError
from tandem_controller.statistics import ks, mcnemar, pass_at_k, solve_rate
from tandem_controller.suites import Suite


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode. `texts` are its completions: with the task's seed, enough to play it again.

    `shortest` is the oracle's number of turns and `wall_hits` a count, None in environments without.
    """

    solved: bool
    stop: StopReason
    unparsed: int
    shortest: float | None
    wall_hits: float | None
    texts: tuple[str, ...]

    @property
    def turns(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite played: `episodes[i]` are those of `suite.seeds[i]`, in order of member."""

    suite: Suite
    episodes: tuple[tuple[Outcome, ...], ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One adapter's results, and the settings they were got with."""

    adapter: str
    url: str
    version: int
    sampling_seed: int
    window: int
    max_tokens: int
    results: tuple[SuiteResult, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures over one or several suites. `low`, `high`: 95% interval of the solve rate over tasks.

    `path_optimality` is the mean of shortest / taken turns over solved episodes; `parse_failures` and `wall_hits` are
    shares of turns. None: nothing to tell it from. Episodes that the machinery failed, or whose transcript no longer
    fit the engine, count as unsolved.
    """

    tasks: int
    episodes: int
    solved: int
    rate: float
    low: float
    high: float
    pass_at: dict[int, float]
    mean_turns: float
    path_optimality: float | None
    parse_failures: float
    wall_hits: float | None
    failed_episodes: int
    context_limit: int


@dataclass(frozen=True, slots=True)
class Paired:
    """Two adapters on the same tasks, by their first episode of each; `left_out` tasks were failed by the machinery."""

    both: int
    only_first: int
    only_second: int
    neither: int
    left_out: int
    p_value: float


def outcome(trajectory: Trajectory) -> Outcome:
    """What an evaluation keeps of an episode."""
    return Outcome(
        solved=trajectory.solved,
        stop=trajectory.stop_reason,
        unparsed=sum(not turn.parsed for turn in trajectory.turns),
        shortest=trajectory.metrics.get("shortest"),
        wall_hits=trajectory.metrics.get("wall_hits"),
        texts=tuple(turn.text for turn in trajectory.turns),
    )


def suite_result(suite: Suite, groups: Sequence[TrajectoryGroup]) -> SuiteResult:
    """A suite's result from its groups, which must be those of its seeds."""
    by_seed = {group.seed: tuple(map(outcome, group.trajectories)) for group in groups}
    return SuiteResult(suite, tuple(by_seed[seed] for seed in suite.seeds))


def figures(results: Sequence[SuiteResult]) -> Figures:
    """Figures over all episodes of these results, which have equally many samples.

    Tasks with one digest are one task, in whatever look: their episodes are not independent.
    """
    tasks: dict[str, list[Outcome]] = {}
    for result in results:
        digest = get_spec(result.suite.env).task_digest
        for seed, episodes in zip(result.suite.seeds, result.episodes, strict=True):
            tasks.setdefault(digest(seed), []).extend(episodes)
    episodes = [episode for task in tasks.values() for episode in task]
    turns = sum(episode.turns for episode in episodes)
    rate, low, high = solve_rate([[episode.solved for episode in task] for task in tasks.values()])
    return Figures(
        tasks=len(tasks),
        episodes=len(episodes),
        solved=sum(episode.solved for episode in episodes),
        rate=rate,
        low=low,
        high=high,
        pass_at=_pass_at([task for result in results for task in result.episodes]),
        mean_turns=turns / max(1, len(episodes)),
        path_optimality=_path_optimality(episodes),
        parse_failures=sum(episode.unparsed for episode in episodes) / max(1, turns),
        wall_hits=_wall_hits(episodes),
        failed_episodes=sum(episode.stop.failed for episode in episodes),
        context_limit=sum(episode.stop is StopReason.CONTEXT_LIMIT for episode in episodes),
    )


def _pass_at(tasks: Sequence[Sequence[Outcome]]) -> dict[int, float]:
    """Mean over tasks of pass@k; empty with one sample a task."""
    samples = min(map(len, tasks), default=0)
    counts = [sum(episode.solved for episode in task[:samples]) for task in tasks]
    return {k: sum(pass_at_k(samples, c, k) for c in counts) / len(counts) for k in ks(samples) if samples > 1}


def _path_optimality(episodes: Sequence[Outcome]) -> float | None:
    ratios = [e.shortest / e.turns for e in episodes if e.solved and e.shortest is not None and e.turns]
    return sum(ratios) / len(ratios) if ratios else None


def _wall_hits(episodes: Sequence[Outcome]) -> float | None:
    counted = [(e.wall_hits, e.turns) for e in episodes if e.wall_hits is not None]
    return sum(hits for hits, _ in counted) / max(1, sum(turns for _, turns in counted)) if counted else None


def compare(first: SuiteResult, second: SuiteResult) -> Paired:
    """McNemar's exact test on the first episode of each task.

    Raises:
        UserError: they are not of the same tasks, played in the same way.
    """
    if first.suite != second.suite:
        raise UserError(f"{first.suite.name} and {second.suite.name} are not the same tasks played in the same way")
    pairs = [(a[0], b[0]) for a, b in zip(first.episodes, second.episodes, strict=True)]
    valid = [(a.solved, b.solved) for a, b in pairs if not a.stop.failed and not b.stop.failed]
    only_first, only_second = valid.count((True, False)), valid.count((False, True))
    return Paired(
        both=valid.count((True, True)),
        only_first=only_first,
        only_second=only_second,
        neither=valid.count((False, False)),
        left_out=len(pairs) - len(valid),
        p_value=mcnemar(only_first, only_second),
    )


def paired_rows(first: Evaluation, second: Evaluation) -> list[dict[str, object]]:
    """`compare` of each suite, for a JSON file."""
    return [
        {"suite": mine.suite.name, "env": mine.suite.env, **asdict(compare(mine, other))}
        for mine, other in zip(first.results, second.results, strict=True)
    ]


_EVALUATION = TypeAdapter(Evaluation)


def rows(results: Sequence[SuiteResult]) -> list[tuple[Suite, Figures]]:
    """Figures of each result. A suite of several environments has a row as a whole first, with an empty `env`."""
    found = list[tuple[Suite, Figures]]()
    for result in results:
        kin = [r for r in results if _kind(r.suite) == _kind(result.suite)]
        if len(kin) > 1 and result is kin[0]:
            found.append((replace(result.suite, env="", seeds=(), max_turns=0), figures(kin)))
        found.append((result.suite, figures([result])))
    return found


def _kind(suite: Suite) -> tuple[str, int, float]:
    return suite.name, suite.samples, suite.temperature


def figure_rows(results: Sequence[SuiteResult]) -> list[dict[str, object]]:
    """`rows` for a JSON file."""
    return [
        {"suite": s.name, "env": s.env, "samples": s.samples, "temperature": s.temperature, **asdict(row)}
        for s, row in rows(results)
    ]


def as_json(evaluation: Evaluation) -> dict[str, object]:
    """Figures for people, and the whole, which `read_evaluation` reads."""
    return {"figures": figure_rows(evaluation.results), **_EVALUATION.dump_python(evaluation, mode="json")}


def read_evaluation(path: Path) -> Evaluation:
    """What `as_json` wrote. Raises DataCorrupt where it is something else."""
    try:
        return _EVALUATION.validate_json(path.read_bytes())
    except ValidationError as problem:
        raise DataCorrupt(f"{path}: not an evaluation of this version ({problem.error_count()} faults)") from problem
