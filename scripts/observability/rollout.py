"""Rollout: episodes, turns, engines and environments, by replica."""

from __future__ import annotations

from typing import Any

from scripts.observability.panels import QUARTER, THIRD, choice, lines, number, page, times
from scripts.observability.queries import average, busy, grown, highest, quantile, rate, select, share, total

from tandem.obs import instruments as of

MINE = 'run="$run",index=~"$replica"'
REPLICA = "replica {{index}}"


def rollout() -> Any:
    """The page."""
    replicas = choice("replica", "Replica", f'label_values({of.EPISODES_RUNNING.name}{{run="$run"}}, index)')
    return page(
        "tandem-rollout",
        "Playing: episodes, turns, engines, environments.",
        [("", _figures()), ("Episodes", _episodes()), ("Engine", _engine()), ("Work", _work())],
        [replicas],
    )


def _figures() -> list[Any]:
    solved = share(grown(of.EPISODES, scope=MINE, solved="true"), grown(of.EPISODES, scope=MINE))
    hit = share(rate(of.ENGINE_PREFIX_HITS, scope=MINE), rate(of.ENGINE_PREFIX_QUERIES, scope=MINE))
    return [
        number("Episodes a second", "Ended.", rate(of.EPISODES, scope=MINE)),
        number("Solved", "Of the episodes in the shown time.", solved, "percentunit", curve=False),
        number("Turns a second", "Played.", rate(of.TURNS, scope=MINE)),
        number("Tokens a second", "Sampled.", rate(of.TOKENS_GENERATED, scope=MINE)),
        number("Episodes now", "Being played.", total(select(of.EPISODES_RUNNING, MINE))),
        number("KV cache", "In use; the fullest engine.", highest(select(of.ENGINE_KV, MINE)), "percentunit"),
        number("Prefix cache hits", "Tokens found, of those looked up.", hit, "percentunit"),
        number(
            "Parse failures",
            "Turns without an action, of the last step.",
            highest(select(of.PARSE_FAILURES)),
            "percentunit",
        ),
    ]


def _episodes() -> list[Any]:
    return [
        lines(
            "How episodes end",
            "A second, by stop reason.",
            [(rate(of.EPISODES, "stop_reason", scope=MINE), "{{stop_reason}}")],
            stacked=True,
        ),
        times("An episode", "From reset to the last reply.", of.EPISODE_TIME, scope=MINE),
        times("A group", "From its first member's start to its last one's end.", of.GROUP_TIME, scope=MINE),
        times("A turn", "Completion and reply.", of.TURN_TIME, scope=MINE),
        times("A completion", "Queue and all.", of.GENERATE_TIME, scope=MINE),
        times("The environment", "Waiting for a worker included.", of.ENV_TIME, "call", scope=MINE),
    ]


def _engine() -> list[Any]:
    prompt, sampled = rate(of.TOKENS_PROMPT, "index", scope=MINE), rate(of.TOKENS_GENERATED, "index", scope=MINE)
    hit = share(rate(of.ENGINE_PREFIX_HITS, "index", scope=MINE), rate(of.ENGINE_PREFIX_QUERIES, "index", scope=MINE))
    return [
        lines("Tokens sampled", "A second, by replica.", [(sampled, REPLICA)], width=QUARTER),
        lines("Prompt tokens", "A second, cached ones too.", [(prompt, REPLICA)], width=QUARTER),
        lines(
            "Requests",
            "That the engine computes, and has queued.",
            [
                (highest(select(of.ENGINE_RUNNING, MINE), "index"), f"{REPLICA} computed"),
                (highest(select(of.ENGINE_WAITING, MINE), "index"), f"{REPLICA} queued"),
            ],
            width=QUARTER,
        ),
        lines(
            "KV cache in use",
            "Near 100% requests wait or are set back.",
            [(highest(select(of.ENGINE_KV, MINE), "index"), REPLICA)],
            "percentunit",
            width=QUARTER,
            percent=True,
        ),
        lines("Prefix cache hits", "By tokens.", [(hit, REPLICA)], "percentunit", percent=True),
        lines(
            "Requests set back",
            "A minute: the KV cache was full.",
            [(f"60 * {rate(of.ENGINE_PREEMPTIONS, 'index', scope=MINE)}", REPLICA)],
        ),
        lines(
            "Completions at once",
            "Seconds of completions a second, and of environments' calls: the larger one is the bottleneck.",
            [(busy(of.GENERATE_TIME, scope=MINE), "engine"), (busy(of.ENV_TIME, scope=MINE), "environment")],
        ),
    ]


def _work() -> list[Any]:
    return [
        lines(
            "Units of work",
            "Waiting for a replica, and played by one.",
            [(highest(select(of.UNITS_WAITING)), "waiting"), (highest(select(of.UNITS_PLAYING)), "playing")],
            stacked=True,
        ),
        lines(
            "Late units begun elsewhere",
            "A minute.",
            [(f"60 * {rate(of.UNITS_TWICE)}", "repeated")],
        ),
        lines(
            "Groups ahead, and staleness",
            "Groups played and not learned from yet; age of those learned from, in versions.",
            [
                (highest(select(of.GROUPS_AHEAD)), "groups ahead"),
                (highest(select(of.STALENESS_MEAN)), "staleness, mean"),
                (highest(select(of.STALENESS_MAX)), "staleness, oldest"),
            ],
        ),
        lines(
            "Adapter load",
            "Read or received, checked, proved by the probe; mean, and p95.",
            [
                (average(of.ADAPTER_LOAD, "source", scope=MINE), "{{source}} mean"),
                (quantile(0.95, of.ADAPTER_LOAD, "source", scope=MINE), "{{source}} p95"),
            ],
            "s",
            width=THIRD,
        ),
        lines(
            "Version served",
            "By replica; one that lags gets no work of the new version.",
            [(highest(select(of.POLICY_VERSION, MINE, role="rollout"), "index"), REPLICA)],
        ),
        lines(
            "Groups with signal",
            "Of the step's groups, those with unlike members.",
            [(highest(select(of.SIGNAL)), "share")],
            "percentunit",
            percent=True,
        ),
    ]
