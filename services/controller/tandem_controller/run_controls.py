"""What `tandem status`, `scale` and `drain` do with a run, and what watches over it while it runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from rich.console import Console, RenderableType

from tandem.config import Config
from tandem.runtime import WAITS
from tandem.types import Member, MemberStatus, Role, RunStatus
from tandem_controller.control import serve_controls
from tandem_controller.live import view
from tandem_controller.loop import Stopwatch
from tandem_controller.measured import measured
from tandem_controller.node_health import health_watched
from tandem_controller.pace import Pace
from tandem_controller.run_dir import RunDir
from tandem_controller.screen import plain, shown
from tandem_controller.supervisor import Supervisor
from tandem_controller.watchdog import watching


class RunControls:
    """Controls of a run over its supervisor; see `tandem_controller.control.Controls`."""

    def __init__(self, config: Config, supervisor: Supervisor, run: RunDir, watch: Stopwatch, pace: Pace) -> None:
        self._config, self._supervisor, self._run, self._watch, self._pace = config, supervisor, run, watch, pace
        self._started = time.time()
        self.scale, self.drain = supervisor.scale, supervisor.drain

    def status(self) -> RunStatus:
        supervisor = self._supervisor
        return RunStatus(
            name=self._config.run.name,
            run_id=self._run.facts["run_id"],
            started=self._started,
            version=supervisor.services.version,
            steps=self._config.run.steps,
            phase=self._watch.doing,
            phase_s=time.perf_counter() - self._watch.since,
            quiet_s=WAITS.quiet_s,
            members=tuple(map(self._member, supervisor.members())),
            waits=WAITS.lines(),
            pending=supervisor.pending(),
            recoveries=supervisor.recoveries.all,
            groups=self._pace.groups,
            groups_wanted=self._pace.groups_wanted,
            recent=self._pace.recent,
            problems=self._pace.problems,
        )

    def _member(self, member: Member) -> MemberStatus:
        services = self._supervisor.services
        version = None
        if member.identity.role is Role.LEARNER:
            version = services.version
        elif member.identity.role is Role.ROLLOUT and services.fleet.serving:
            version = services.fleet.serving.version
        since = self._supervisor.hosts.since.get(replace(member.identity, index=0), self._started)
        if member.identity.role is Role.ROLLOUT:
            since = self._supervisor.hosts.since.get(member.identity, self._started)
        return MemberStatus(member, self._supervisor.state(member), version, since)


@asynccontextmanager
async def controlled(
    supervisor: Supervisor, run: RunDir, watch: Stopwatch, pace: Pace, console: Console
) -> AsyncIterator[None]:
    """Let people see and change the run while the body runs, on this terminal and from elsewhere; say so in the log
    when it stands still."""
    hosts = supervisor.hosts
    controls = RunControls(hosts.config, supervisor, run, watch, pace)

    def look() -> RenderableType:
        return view(controls.status(), time.time(), console.width, plain(console))

    with pace.listening():
        async with _served(controls, supervisor, run), shown(console, look):
            yield


@asynccontextmanager
async def _served(controls: RunControls, supervisor: Supervisor, run: RunDir) -> AsyncIterator[None]:
    hosts = supervisor.hosts
    async with (
        serve_controls(controls, run.path, hosts.deployment.host, hosts.door),
        watching(hosts.config.faults.stall_s, hosts.door),
        health_watched(controls, hosts.config.health),
        measured(supervisor, run),
    ):
        yield
