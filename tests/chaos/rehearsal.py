"""A run of `tandem train --restarts` to which things happen: it is watched through its own port, as a person would.

run = Rehearsal(folder, cluster, *settings)
await run.suffer(fault)       # waits for its phase, does it, waits until all is well again
run.stop()                    # SIGTERM: saves, ends
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tandem.rpc.controller_client import ControllerClient
from tandem.types import Member, Role, RunStatus, TandemError
from tandem_controller.control_cli import connected
from tests.chaos.blows import Blow, paused, silenced, slowed
from tests.chaos.schedule import KILLS, PAUSED_S, Fault, Kind
from tests.e2e.crashes import GONE_S, Run
from tests.nodes import MARK, Node, RayCluster

NAME = "e2e"
WELL_S = 400.0  # for all to be well again, on a busy machine
PHASE_S = 60.0  # for a phase to come; then it happens anyway
SOON_S = 8.0  # within which a fault comes that comes soon
SERVICE = ["-m", "tandem.rpc.hosted"]
ENGINE = "EngineCor"  # in the name of vLLM's process, which is cut off there


@dataclass(frozen=True, slots=True)
class Suffered:
    """A fault that came: at which version, what it hit, and how many seconds until all was well again."""

    fault: Fault
    version: int
    hit: str
    seconds: float


class Rehearsal:
    """See the module. Without a cluster the run starts Ray itself, and has one node."""

    def __init__(self, folder: Path, cluster: RayCluster | None, *settings: str, restarts: int = 1000) -> None:
        where = [f"cluster.address={cluster.address}"] if cluster else []
        self._command = (*where, *settings, *([f"--restarts={restarts}"] if restarts else []))
        self.run = Run(folder, *self._command)
        self.folder, self.cluster, self.ranks, self.replicas = folder / NAME, cluster, 2, 2
        self._client: ControllerClient | None = None
        self._connection = None
        self._joined = 0

    async def status(self) -> RunStatus | None:
        """What the controller says; None where there is none that answers."""
        try:
            if self._client is None:
                self._connection = connected(self.folder)
                self._client, _ = await self._connection.__aenter__()
            return await self._client.status(5.0)
        except (TandemError, OSError, ValueError):
            await self.disconnect()
            return None

    async def disconnect(self) -> None:
        if self._client is not None and self._connection is not None:
            await self._connection.__aexit__(None, None, None)
        self._client = None

    async def until(self, what: Callable[[RunStatus], bool], for_s: float, every_s: float = 0.2) -> RunStatus | None:
        """The first status of which it is true; None where there was none in time."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            assert self.run.process.poll() is None, f"the run ended:\n{self.run.said()[-6000:]}"
            if (status := await self.status()) and what(status):
                return status
            self.run.alive()  # buries what it has adopted: to those who look, one who is not buried lives
            await asyncio.sleep(every_s)
        return None

    async def well(self) -> RunStatus:
        """Wait until all services serve, and none of those that were hit."""
        status = await self.until(self.is_well, WELL_S)
        assert status, f"not well within {WELL_S:g} s: {await self.status()}\n{self.run.said()[-6000:]}"
        return status

    def is_well(self, status: RunStatus) -> bool:
        """Whether everybody is there and serves."""
        serving = [m.member.identity.role for m in status.members if m.state == "serving"]
        wanted = {Role.ROLLOUT: self.replicas, Role.LEARNER: self.ranks, Role.CHECKPOINT_MANAGER: 1}
        return (
            all(serving.count(role) == count for role, count in wanted.items())
            and len(serving) == len(status.members)
            and status.phase != "start"
            and all(recovery.seconds is not None or recovery.action for recovery in status.recoveries)
        )

    async def suffer(self, fault: Fault, wait: bool = True) -> Suffered:
        """Have a fault come in its phase; then wait until all is well, and a version later than it is made."""
        status = await self._phase(fault)
        began = time.monotonic()
        hit, undo = await asyncio.to_thread(self._do, fault)
        await undo
        if wait:
            noticed = await self.until(lambda now: _noticed(fault.kind, hit, status, now), WELL_S)
            assert noticed, f"{hit} is not missed: {await self.status()}\n{self.run.said()[-6000:]}"
            after = await self.well()
            seconds = time.monotonic() - began
            later = await self.until(lambda now: now.version > after.version, WELL_S)
            assert later, f"no version after {after.version}: {await self.status()}\n{self.run.said()[-6000:]}"
        else:
            seconds = float("nan")
        return Suffered(fault, status.version, hit, seconds)

    async def scale(self, **numbers: int) -> None:
        """As `tandem scale`."""
        async with connected(self.folder) as (client, _):
            await client.scale(**numbers)

    def die(self) -> None:
        """kill -9 of the controller and of the process that would start it again."""
        controller = self.controller()
        self.run.process.kill()
        controller.kill()
        self.run.wait()

    def again(self) -> None:
        """The same command once more, as who starts it after the machine was lost."""
        self.run = Run(self.run.folder, *self._command)

    def stop(self, timeout_s: float = 300) -> int:
        """End the run in order; its exit code."""
        self.run.process.terminate()
        return self.run.wait(timeout_s)

    def left(self) -> list[str]:
        """What still runs of it, after the time that it has to end by itself."""
        if self.cluster is None:
            return self.run.left()
        end = time.monotonic() + GONE_S
        while (found := [" ".join(process.cmdline()) for process in self._own()]) and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def kill(self) -> None:
        """kill -9 of all that is left of it; the nodes of a cluster stay."""
        if self.cluster is None:
            self.run.kill()
        for process in self._own():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _own(self) -> list[psutil.Process]:
        """Whatever names its folder: the controller, and services."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and str(self.run.folder) in " ".join(process.cmdline()):
                    found.append(process)
        return found

    async def _phase(self, fault: Fault) -> RunStatus:
        """Wait for a moment in the fault's phase."""
        rows = self.run.rows()

        def there(status: RunStatus) -> bool:
            if fault.phase == "save":  # it is beside the step that follows: it begins where a line is written
                return self.run.rows() > rows
            return status.phase == fault.phase

        if fault.soon:
            await asyncio.sleep(SOON_S * fault.share)
            return await self.until(lambda now: True, WELL_S) or await self.well()
        status = await self.until(lambda now: not there(now), PHASE_S, 0.02)
        status = await self.until(there, PHASE_S, 0.02) or status or await self.well()
        await asyncio.sleep(fault.share * min(5.0, self._usual_s(fault.phase)))
        return await self.status() or status

    def _usual_s(self, phase: str) -> float:
        with suppress(OSError, IndexError, ValueError, KeyError):
            return json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])[f"seconds/{phase}"]
        return 0.3

    def _do(self, fault: Fault) -> Blow:
        """Do it: in words, and what must be done after, to be awaited."""
        kind, number = fault.kind, int(fault.share * 1000) % 2
        match kind:
            case Kind.NODE:
                return self._kill_node(fault)
            case Kind.NODE_SLOW:
                node = self._a_node(fault)
                return f"node {node.name}", asyncio.to_thread(slowed, node, 3 * PAUSED_S)
            case Kind.CONTROLLER:
                self.controller().kill()
                return "controller", _nothing()
            case Kind.CONTROLLER_PAUSED:
                return paused(self.controller(), "controller", PAUSED_S)
            case Kind.REPLICA_SILENT:
                return silenced(self.service("rollout", number), f"rollout {number}", WELL_S)
            case Kind.ENGINE:
                self.engine(number).kill()
                return f"rollout {number}", _nothing()
            case Kind.ENGINE_SILENT:
                return silenced(self.engine(number), f"engine of rollout {number}", WELL_S)
            case Kind.REPLICA_PAUSED:
                return paused(self.service("rollout", number), f"rollout {number}", PAUSED_S)
            case Kind.RANK_PAUSED:
                return paused(self.service("learner", 1), "rank 1", PAUSED_S)
            case Kind.MANAGER_PAUSED:
                return paused(self.service("checkpoint_manager", 0), "manager", PAUSED_S)
        role, index = {
            Kind.REPLICA: ("rollout", number),
            Kind.REPLICA_HOST: ("rollout", number),
            Kind.RANK_0: ("learner", 0),
            Kind.RANK_1: ("learner", 1),
            Kind.RANK_HOST: ("learner", 1),
            Kind.MANAGER: ("checkpoint_manager", 0),
        }[kind]
        process = self.service(role, index)
        host = process.parent() if kind in (Kind.REPLICA_HOST, Kind.RANK_HOST) else None
        (host or process).kill()
        return f"{role} {index}", _nothing()

    def controller(self) -> psutil.Process:
        """The process that drives the run: the child of the one that restarts it."""
        [child] = [p for p in psutil.Process(self.run.process.pid).children() if "tandem.cli" in " ".join(p.cmdline())]
        return child

    def service(self, role: str, index: int) -> psutil.Process:
        """A service's process; waits for one that is being started."""
        end = time.monotonic() + WELL_S
        while not (found := list(self.services(role, index))):
            assert time.monotonic() < end, f"{role} {index} is not there"
            time.sleep(0.05)
        return found[-1]

    def engine(self, index: int) -> psutil.Process:
        """The process of vLLM's engine below a replica; waits for one that is being started."""
        end = time.monotonic() + WELL_S
        while True:
            with suppress(psutil.Error):
                for child in self.service("rollout", index).children(recursive=True):
                    if ENGINE in child.name():
                        return child
            assert time.monotonic() < end, f"rollout {index} has no engine"
            time.sleep(0.05)

    def services(self, role: str, index: int) -> Iterator[psutil.Process]:
        """Of this run."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, ValueError, IndexError):
                command = process.cmdline()
                log = Path(command[3]) if command[1:3] == SERVICE else Path()
                if log.is_relative_to(self.folder):
                    its_role, its_index, _ = log.stem.rsplit("-", 2)
                    if (its_role, int(its_index)) == (role, index) and process.status() != psutil.STATUS_ZOMBIE:
                        yield process

    def _a_node(self, fault: Fault) -> Node:
        """One where something of the run is, the head's left out."""
        assert self.cluster
        marks = {
            process.environ().get(MARK, "").rpartition("/")[2]
            for role in ("rollout", "learner")
            for index in range(2)
            for process in self.services(role, index)
        }
        names = sorted(marks - {"head", ""})
        return self.cluster[names[int(fault.share * 1000) % len(names)]]

    def _kill_node(self, fault: Fault) -> Blow:
        node, cluster = self._a_node(fault), self.cluster
        assert cluster
        node.kill()
        self._joined += 1
        return f"node {node.name}", asyncio.to_thread(cluster.add, f"n{self._joined}", cpus=2)


def _noticed(kind: Kind, hit: str, before: RunStatus, now: RunStatus) -> bool:
    """Whether the run has seen what was killed: another is there, or none yet."""
    if kind is Kind.CONTROLLER:
        return now.started != before.started
    if kind not in KILLS:
        return True
    dead = {m.member for m in before.members if hit in (f"node {m.member.node}", _name(m.member))}
    return now.started != before.started or not dead & {m.member for m in now.members}


def _name(member: Member) -> str:
    return f"{member.identity.role} {member.identity.index}"


async def _nothing() -> None:
    return
