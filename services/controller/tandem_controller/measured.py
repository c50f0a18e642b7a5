"""The controller's metrics: how the run fares, recorded while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tandem.obs import get_logger
from tandem.obs import instruments as of
from tandem.obs.metrics import count, gauge, observe, scraped_at, watch
from tandem.runtime import WAITS, beside, until
from tandem.types import Member, Role
from tandem_controller.cost import Spending
from tandem_controller.outcomes import Evaluation, rows
from tandem_controller.phases import phases_of
from tandem_controller.run_dir import RunDir
from tandem_controller.suites import FIXED
from tandem_controller.supervisor import Supervisor
from tandem_controller.targets import Targets

log = get_logger(__name__)
LOOK_S = 1.0
SAVING = ("snapshot", "save_wait")
GAUGES: Mapping[of.Gauge, str] = {
    of.SOLVE: "rollout/solve_rate",
    of.RETURN: "rollout/return_mean",
    of.PARSE_FAILURES: "rollout/parse_failures",
    of.STALENESS_MEAN: "rollout/staleness_mean",
    of.STALENESS_MAX: "rollout/staleness_max",
}


class Steps:
    """Records the steps of a run, from now on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()

    def record(self, row: Mapping[str, Any]) -> None:
        """A step is done: its row of metrics.jsonl."""
        count(of.STEPS)
        for instrument, name in GAUGES.items():
            if name in row:
                gauge(instrument, row[name])
        if played := row.get("rollout/groups_played"):
            gauge(of.SIGNAL, row["rollout/groups_with_signal"] / played)
        if "eval_solve_rate" in row:
            gauge(of.EVAL_SOLVE, row["eval_solve_rate"], suite=FIXED, sampling="greedy")
        now = self._clock()
        took, self._since = now - self._since, now
        observe(of.STEP_TIME, took)
        phases = phases_of(row)
        for phase, seconds in phases.items():
            count(of.PHASE, seconds, phase="save" if phase in SAVING else phase)
        count(of.PHASE, max(0.0, took - sum(phases.values())), phase="idle")


def record_evaluation(evaluation: Evaluation | None, seconds: float) -> None:
    """What an evaluation before or after the steps has found, None if it was cut off, and how long it took."""
    for suite, found in rows(evaluation.results) if evaluation else ():
        gauge(of.EVAL_SOLVE, found.rate, suite=suite.name, sampling="sampled" if suite.temperature else "greedy")
    count(of.PHASE, seconds, phase="eval")


@asynccontextmanager
async def measured(supervisor: Supervisor, run: RunDir) -> AsyncIterator[None]:
    """Record who is there, what waits and what it costs, and keep the run's prometheus.json, while the body runs."""
    hosts = supervisor.hosts
    config, deployment = hosts.config, hosts.deployment

    def members() -> tuple[Member, ...]:
        me = Member(deployment.controller, "", deployment.node, scraped_at())
        return (me, *supervisor.members())

    def gpus() -> int:
        return max(len(deployment.rollouts), len(deployment.ranks)) if config.cluster.gpus else 0

    def present(role: Role) -> int:
        if role is Role.ROLLOUT:
            return len(supervisor.replicas.fleet.members)
        return sum(member.identity.role is role for member in supervisor.members())

    spending, targets = Spending(config.cost, gpus), Targets(run.path, config.run.name, members)

    async def look() -> None:
        spending.look()
        await targets.look()

    def failed(problem: BaseException) -> None:
        log.error("prometheus.json is not kept any more: %s", problem, exc_info=problem)

    async with AsyncExitStack() as ends:
        gauge(of.STEPS_PLANNED, config.run.steps)
        for role in (Role.ROLLOUT, Role.LEARNER, Role.CHECKPOINT_MANAGER):
            ends.callback(watch(of.MEMBERS, lambda role=role: present(role), member_role=str(role)))
            ends.callback(watch(of.MEMBERS_WANTED, lambda role=role: supervisor.wanted(role), member_role=str(role)))
        ends.callback(watch(of.POLICY_VERSION, lambda: supervisor.services.version))
        ends.callback(watch(of.QUIET, lambda: WAITS.quiet_s))
        ends.callback(watch(of.GPU_SECONDS, spending.gpu_seconds))
        ends.callback(watch(of.COST, spending.money, currency=config.cost.currency))
        if config.obs.prometheus:
            await targets.look()
            ends.push_async_callback(targets.close)
            await ends.enter_async_context(beside(until(look, every_s=LOOK_S, for_s=math.inf), failed))
        yield
