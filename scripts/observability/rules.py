"""Alert rules: when a person should look. Each has a runbook in docs/observability.md."""

from __future__ import annotations

from dataclasses import dataclass

import yaml
from scripts.observability.queries import grown, highest, rate, select

from tandem.obs import instruments as of

QUIET_S, OLD_S, GAP_NATS, FALLEN, SYNC_SHARE, DEATHS = 600, 1800, 0.05, 0.15, 0.25, 3
ALL = ""  # runs


@dataclass(frozen=True, slots=True)
class Rule:
    """`expr` holds for as long as `lasting`: it fires, once for each run or what else `expr` is apart by."""

    name: str
    severity: str
    expr: str
    lasting: str
    summary: str
    description: str

    def as_yaml(self) -> dict[str, object]:
        """As Prometheus reads it."""
        anchor = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in self.name)
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"docs/observability.md#{anchor.lstrip('-')}",
            },
        }


def all_rules() -> tuple[Rule, ...]:
    """Every one."""
    return (no_progress(), solve_rate_falling(), checkpoint_too_old(), logprob_gap(), storage_bound(), flapping())


def no_progress() -> Rule:
    """It waits for something for long, or its controller is gone; that is told for an hour, not for ever."""
    quiet = f"{highest(select(of.QUIET, ALL), 'run')} > {QUIET_S}"
    gone = 'max by (run) (up{role="controller"}) == 0'
    was_there = 'max by (run) (max_over_time(up{role="controller"}[1h])) == 1'
    return Rule(
        "TandemNoProgress",
        "critical",
        f"({quiet}) or (({gone}) and on (run) ({was_there}))",
        "2m",
        "Run {{ $labels.run }} makes no progress",
        f"No turn, group or phase has ended for {QUIET_S // 60} minutes, or its controller is gone.",
    )


def solve_rate_falling() -> Rule:
    """Far below the best quarter of an hour of the last three hours."""
    lately = f"avg_over_time({select(of.SOLVE, ALL)}[15m])"
    best = highest(f"max_over_time({lately}[3h:5m])", "run")
    return Rule(
        "TandemSolveRateFalling",
        "warning",
        f"{highest(lately, 'run')} < {best} - {FALLEN}",
        "10m",
        "Run {{ $labels.run }} solves less than it did",
        f"The solve rate of the last 15 minutes is {FALLEN * 100:.0f} points or more below the best of three hours: "
        "{{ $value | humanizePercentage }}.",
    )


def checkpoint_too_old() -> Rule:
    """Steps are made, and a crash would lose many of them."""
    age = f"time() - {highest(select(of.CHECKPOINT_TIMESTAMP, ALL, kind='state'), 'run')}"
    learns = f"{rate(of.STEPS, 'run', scope=ALL, window='15m')} > 0"
    return Rule(
        "TandemCheckpointTooOld",
        "warning",
        f"({age} > {OLD_S}) and on (run) ({learns})",
        "5m",
        "Run {{ $labels.run }} has saved no state for {{ $value | humanizeDuration }}",
        f"Steps are made, and the state that a resume would start from is older than {OLD_S // 60} minutes.",
    )


def logprob_gap() -> Rule:
    """Engine and learner no longer compute the same policy."""
    return Rule(
        "TandemLogprobGap",
        "warning",
        f"{highest(select(of.GAP_MEAN, ALL), 'run')} > {GAP_NATS}",
        "5m",
        "Run {{ $labels.run }}: engine and learner disagree by {{ printf `%.2f` $value }} nats a token",
        f"The mean gap of their logprobs for the same tokens is above {GAP_NATS}: bf16 explains about 0.02, fp32 "
        "0.0001.",
    )


def storage_bound() -> Rule:
    """Much of the time goes to synchronisation, and storage explains most of that."""
    sync = rate(of.PHASE, "run", scope=ALL, window="15m", phase="sync")
    wall = rate(of.PHASE, "run", scope=ALL, window="15m")
    storage = f"sum by (run) (rate({select(of.STORAGE_TIME, ALL, suffix='_sum')}[15m]))"
    return Rule(
        "TandemStorageBoundSync",
        "warning",
        f"({sync} / {wall} > {SYNC_SHARE}) and on (run) ({storage} > 0.5 * {sync})",
        "10m",
        "Run {{ $labels.run }} waits for storage: {{ $value | humanizePercentage }} of its time is synchronisation",
        "Export, publication and load of adapters take so much of the wall time, and reading, writing and fsync of "
        "files at least half of that.",
    )


def flapping() -> Rule:
    """Something dies again and again, though each time it is replaced."""
    return Rule(
        "TandemReplicaFlapping",
        "warning",
        f"{grown(of.DEATHS, 'run', 'member_role', scope=ALL, window='30m')} > {DEATHS - 0.5}",
        "0m",
        "Run {{ $labels.run }}: {{ $labels.member_role }} dies again and again",
        f"{DEATHS} or more were lost within 30 minutes ({{{{ $value | humanize }}}}). All were replaced, or are being.",
    )


def rules() -> str:
    """The file that Prometheus loads."""
    groups = {"groups": [{"name": "tandem", "rules": [rule.as_yaml() for rule in all_rules()]}]}
    head = "# Made by `make dashboards` from scripts/observability/rules.py.\n"
    return head + yaml.safe_dump(groups, sort_keys=False, width=110, allow_unicode=True)
