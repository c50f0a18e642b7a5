"""What can be said of solve rates: intervals, pass@k, paired comparison. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959964  # normal quantile of a two-sided 95% interval


def wilson(successes: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Score interval of a proportion (E. B. Wilson, JASA 22, 1927); z is the normal quantile, 95% by default.

    Returns:
        (low, high) within [0, 1]; (0, 1) without trials.
    """
    if not trials:
        return 0.0, 1.0
    share, zz = successes / trials, z * z / trials
    centre = share + zz / 2
    spread = z * math.sqrt(share * (1 - share) / trials + zz / (4 * trials))
    return max(0.0, (centre - spread) / (1 + zz)), min(1.0, (centre + spread) / (1 + zz))


def effective_episodes(tasks: Sequence[Sequence[bool]]) -> float:
    """As how many independent episodes these count, `tasks[i]` being the outcomes of task i, equally many each.

    Episodes of one task are alike: the task is easy or it is hard. With p the solve rate and s^2 the variance
    (ddof 1) of the n tasks' own rates, the variance of p is s^2 / n, which so many independent episodes would have:
    p (1 - p) n / s^2 (L. Kish, Survey Sampling, 1965). Held between n, as though a task's episodes were all one, and
    their whole number; n where the variance says nothing because all fare alike.
    """
    least, most = float(len(tasks)), float(sum(map(len, tasks)))
    rates = [sum(task) / len(task) for task in tasks if task]
    if len(rates) < 2:
        return least
    rate = sum(rates) / len(rates)
    variance = sum((own - rate) ** 2 for own in rates) / (len(rates) - 1)
    if not variance or not 0 < rate < 1:
        return least
    return min(most, max(least, rate * (1 - rate) * len(rates) / variance))


def solve_rate(tasks: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """Solve rate and its 95% interval over tasks: (rate, low, high).

    The interval is Wilson's with the effective number of episodes (C. Franco, R. Little, T. Louis, E. Slud, Journal of
    Survey Statistics and Methodology 7, 2019), so it says how far the rate on other tasks of the same kind may be.
    With one episode a task it is Wilson's own.
    """
    episodes = sum(map(len, tasks))
    rate = sum(map(sum, tasks)) / episodes if episodes else 0.0
    effective = effective_episodes(tasks)
    return (rate, *wilson(rate * effective, effective))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Unbiased estimate, from `solved` of `samples` episodes of a task, of the chance that at least one of k solves it:
    1 - C(samples - solved, k) / C(samples, k).

    M. Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, 2021.

    Raises:
        ValueError: k is not within 1 .. samples, or solved not within 0 .. samples.
    """
    if not 1 <= k <= samples or not 0 <= solved <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {solved} of {samples}")
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def ks(samples: int) -> tuple[int, ...]:
    """The k that pass@k is reported for: 1, 2, 4, ... and `samples` itself."""
    powers = [1 << i for i in range(samples.bit_length()) if 1 << i < samples]
    return (*powers, samples)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p value of McNemar's test in its exact form (Q. McNemar, Psychometrika 12, 1947): were both equally
    good, each task that only one of them solves would be either one's by the toss of a coin.

    Returns:
        the chance of a split at least this uneven, at most 1; 1 where no task tells them apart.
    """
    tosses = only_first + only_second
    tail = sum(math.comb(tosses, heads) for heads in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**tosses)
