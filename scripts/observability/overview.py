"""Overview: does it learn, how fast, what is slow, what goes wrong. The first screen answers all four."""

from __future__ import annotations

from typing import Any

from scripts.observability.panels import (
    HALF,
    RED,
    YELLOW,
    lines,
    listing,
    number,
    page,
    slowest_steps,
    times,
)
from scripts.observability.queries import WINDOW, average, grown, highest, quantile, rate, select, share, so_far, total

from tandem.obs import instruments as of

CONTROLLER_VERSION = highest(select(of.POLICY_VERSION, role="controller"))
FAILED = "env_error|engine_error|deadline"
ALERTS = 'ALERTS{alertstate="firing",run="$run"}'


def overview() -> Any:
    """The page."""
    return page(
        "tandem-overview",
        "One run: does it learn, how fast, what is slow, what goes wrong.",
        [("", _figures() + _curves()), ("Quality of what is learned", _quality()), ("Look closer", _closer())],
    )


def _figures() -> list[Any]:
    left = f"({highest(select(of.STEPS_PLANNED))} - {CONTROLLER_VERSION}) * ({average(of.STEP_TIME, window='30m')})"
    return [
        number(
            "Solve rate",
            "Share of the last step's episodes that solved their task, sampled.",
            highest(select(of.SOLVE)),
            "percentunit",
        ),
        number(
            "Evaluation, greedy",
            "Mean over the suites, at the last evaluation.",
            f"avg({select(of.EVAL_SOLVE, sampling='greedy')})",
            "percentunit",
        ),
        number("Policy version", "Optimizer steps made so far.", CONTROLLER_VERSION),
        number(
            "Steps an hour",
            "Over the last 10 minutes.",
            f"3600 * ({rate(of.STEPS, window='10m')})",
        ),
        number("Time left", "Steps still to make, at the pace of the last half hour.", left, "s", curve=False),
        number(
            "Without progress",
            "Since anything at all made progress: a turn, a group, a phase.",
            highest(select(of.QUIET)),
            "s",
            steps=((60, YELLOW), (600, RED)),
        ),
        number(
            "Failures",
            "In the shown time: members lost, failed episodes, skipped updates, failed saves.",
            " + ".join(f"({part})" for part in _failures()),
            steps=((1, YELLOW), (10, RED)),
            curve=False,
        ),
        number(
            "Alerts",
            "What fires now; see the table below.",
            f"count({ALERTS}) or vector(0)",
            steps=((1, RED),),
            curve=False,
        ),
    ]


def _curves() -> list[Any]:
    return [
        lines(
            "Does it learn",
            "Solve rates: of training episodes, and of the evaluation's suites.",
            [
                (highest(select(of.SOLVE)), "training"),
                (highest(select(of.EVAL_SOLVE), "suite", "sampling"), "{{suite}}, {{sampling}}"),
            ],
            "percentunit",
            width=HALF,
            percent=True,
        ),
        lines(
            "Where the time goes",
            "Share of wall time by what the run waits for.",
            [(share(rate(of.PHASE, "phase"), f"scalar({rate(of.PHASE)})"), "{{phase}}")],
            "percentunit",
            width=HALF,
            percent=True,
            stacked=True,
        ),
        lines(
            "Speed",
            "Tokens a second: sampled by the engines, learned from by the learner.",
            [(rate(of.TOKENS_GENERATED), "sampled"), (rate(of.TOKENS_LEARNED), "learned")],
        ),
        times("A step", "From the first prompt to the adapter loaded. Points lead to traces.", of.STEP_TIME),
        lines(
            "What went wrong",
            "By kind, in the interval that a point stands for.",
            [
                (_events(of.DEATHS, "cause"), "lost: {{cause}}"),
                (_events(of.EPISODES, "stop_reason", stop_reason=FAILED), "episode: {{stop_reason}}"),
                (_events(of.UPDATES_SKIPPED), "update skipped"),
                (_events(of.SAVE_FAILURES), "save failed"),
            ],
        ),
    ]


def _events(counter: of.Counter, *by: str, **labels: str) -> str:
    return grown(counter, *by, window=WINDOW, **labels)


def _failures() -> list[str]:
    return [
        grown(of.DEATHS),
        grown(of.EPISODES, stop_reason=FAILED),
        grown(of.UPDATES_SKIPPED),
        grown(of.SAVE_FAILURES),
    ]


def _quality() -> list[Any]:
    return [
        lines("Mean return", "Of the step's episodes, as rewarded.", [(highest(select(of.RETURN)), "return")]),
        lines(
            "Gap of engine and learner",
            "Of the logprobs of the same tokens, before the update: bf16 about 0.02, fp32 below 0.0001.",
            [(highest(select(of.GAP_MEAN)), "mean"), (highest(select(of.GAP_MAX)), "largest")],
        ),
        lines(
            "Entropy",
            "Mean entropy of a token's distribution. A rise before a fall of the solve rate: a rate too high.",
            [(highest(select(of.ENTROPY)), "entropy")],
        ),
    ]


def _closer() -> list[Any]:
    return [
        slowest_steps(),
        listing("Alerts that fire", "Their runbooks are in docs/observability.md.", ALERTS),
        lines(
            "Who is there",
            "Members that serve, and how many there should be.",
            [
                (total(select(of.MEMBERS), "member_role"), "{{member_role}}"),
                (total(select(of.MEMBERS_WANTED), "member_role"), "{{member_role}}, wanted"),
            ],
        ),
        lines(
            "Publish to load",
            "From the learner's export to the last replica serving the version.",
            [(quantile(0.5, of.PUBLISH_TO_LOAD), "p50"), (quantile(0.95, of.PUBLISH_TO_LOAD), "p95")],
            "s",
        ),
        number(
            "Cost",
            "Since start or resume, by the recipe's prices.",
            so_far(of.COST, "currency"),
            width=4,
            legend="{{currency}}",
        ),
        number("GPU hours", "Held by the run since start or resume.", f"{so_far(of.GPU_SECONDS)} / 3600", width=4),
    ]
