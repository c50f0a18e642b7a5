"""Learner: the update, what it did to the policy, and where its time goes."""

from __future__ import annotations

from typing import Any

from scripts.observability.panels import HALF, lines, number, page
from scripts.observability.queries import grown, highest, rate, select, share

from tandem.obs import instruments as of


def learner() -> Any:
    """The page."""
    return page(
        "tandem-learner",
        "Learning: losses, the policy's movement, phases, figures of rank 0.",
        [("", _figures()), ("The update", _update()), ("The policy", _policy()), ("Time", _time())],
    )


def _figures() -> list[Any]:
    return [
        number("Policy version", "The learner's.", highest(select(of.POLICY_VERSION, role="learner"))),
        number("Loss", "Mean over the step's updates.", highest(select(of.LOSS))),
        number("Gradient norm", "Before it is clipped.", highest(select(of.GRADIENT_NORM))),
        number("Learning rate", "Now.", highest(select(of.LEARNING_RATE))),
        number("Entropy", "Nats a token.", highest(select(of.ENTROPY))),
        number("KL of the step", "To where the step started, nats a token (k3).", highest(select(of.KL))),
        number("Clipped", "Share of tokens.", highest(select(of.CLIPPED)), "percentunit"),
        number("Updates skipped", "In the shown time: not finite.", grown(of.UPDATES_SKIPPED), steps=((1, "red"),)),
    ]


def _curve(title: str, words: str, *shown: tuple[of.Gauge, str], unit: str = "short", percent: bool = False) -> Any:
    return lines(title, words, [(highest(select(gauge)), name) for gauge, name in shown], unit, percent=percent)


def _update() -> list[Any]:
    return [
        _curve("Loss", "Mean over the step's updates; says little by itself.", (of.LOSS, "loss")),
        _curve("Gradient norm", "Before it is clipped.", (of.GRADIENT_NORM, "norm")),
        _curve("Learning rate", "As scheduled.", (of.LEARNING_RATE, "rate")),
        _curve(
            "Advantages",
            "Of the step's episodes.",
            (of.ADVANTAGE_MAX, "largest"),
            (of.ADVANTAGE_STD, "standard deviation"),
            (of.ADVANTAGE_MIN, "smallest"),
        ),
        _curve("Groups with signal", "Only these teach.", (of.SIGNAL, "share"), unit="percentunit", percent=True),
        lines(
            "Updates",
            "A minute; skipped ones were not finite.",
            [(f"60 * {rate(of.UPDATES)}", "all"), (f"60 * {rate(of.UPDATES_SKIPPED)}", "skipped")],
        ),
    ]


def _policy() -> list[Any]:
    return [
        _curve("Entropy", "Mean entropy of a token's distribution, nats.", (of.ENTROPY, "entropy")),
        _curve("KL", "Nats a token.", (of.KL, "of the step")),
        _curve("KL to the base model", "Nats a token; where learner.algo.kl asks for it.", (of.REF_KL, "to the base")),
        _curve("Clipped", "Share of tokens.", (of.CLIPPED, "share"), unit="percentunit"),
        _curve(
            "Gap of engine and learner",
            "Nats, of the same tokens before the update. A rise: they do not compute the same policy.",
            (of.GAP_MEAN, "mean"),
            (of.GAP_MAX, "largest"),
        ),
        _curve("Staleness", "Versions.", (of.STALENESS_MEAN, "mean"), (of.STALENESS_MAX, "oldest")),
    ]


def _time() -> list[Any]:
    phases = share(rate(of.LEARNER_PHASE, "phase"), f"scalar({rate(of.LEARNER_PHASE)})")
    return [
        lines(
            "Phases of a step",
            "Share of the learner's seconds.",
            [(phases, "{{phase}}")],
            "percentunit",
            width=HALF,
            percent=True,
            stacked=True,
        ),
        lines("Tokens learned", "A second.", [(rate(of.TOKENS_LEARNED), "tokens")], width=HALF),
    ]
