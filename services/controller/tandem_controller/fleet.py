"""All rollout replicas as one: play groups, load an adapter everywhere, sleep and wake together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tandem.config import RolloutConfig
from tandem.obs import get_logger
from tandem.rpc.clients import RolloutClient
from tandem.runtime import together
from tandem.types import AdapterLoaded, AdapterRef, Pushed, RolloutTask, TandemError, TrajectoryGroup, UserError

log = get_logger(__name__)
WARN_SHARE = 0.1  # of a step's episodes
GRACE_S = 60.0  # an episode's own deadline must come first: then it is a failed trajectory, not a failed call


class Fleet:
    """The rollout replicas at `addresses`, which all have the same limits.

    `probe_tolerance` (nats) is how far apart the probes of one policy may be on two replicas.
    """

    def __init__(self, addresses: Sequence[str], limits: RolloutConfig, probe_tolerance: float) -> None:
        self.replicas = [RolloutClient(address) for address in addresses]
        self.limits = limits
        self.probe_tolerance = probe_tolerance

    async def play(
        self, task: RolloutTask, on_group: Callable[[TrajectoryGroup], None] = lambda group: None, *, crowd: int = 1
    ) -> list[TrajectoryGroup]:
        """All groups of the task, ordered by seed; `on_group` sees each as it ends.

        The seeds are dealt evenly to the replicas, which play at the same time. `crowd` is how many such tasks share
        them: deadlines are that much longer.
        """
        groups: list[TrajectoryGroup] = []

        async def ask(replica: RolloutClient, seeds: tuple[int, ...]) -> None:
            timeout_s = self.timeout_s(crowd * len(seeds), task.group_size)
            async for group in replica.rollout(replace(task, seeds=seeds), timeout_s):
                groups.append(group)
                on_group(group)

        shares = [task.seeds[index :: len(self.replicas)] for index in range(len(self.replicas))]
        await together(*(ask(*pair) for pair in zip(self.replicas, shares, strict=True) if pair[1]))
        if sorted(group.seed for group in groups) != sorted(task.seeds):
            raise TandemError(f"asked for {len(task.seeds)} groups, {len(groups)} came back")
        return sorted(groups, key=lambda group: group.seed)

    def timeout_s(self, groups: int, group_size: int) -> float:
        """Deadline of so many groups on one replica, in seconds: at worst, each wave of episodes takes its whole time.

        A replica plays what it has seats for; with `run.deterministic`, no more whole groups than that.
        """
        seats = self.limits.max_concurrent_episodes
        waves = max(math.ceil(groups * group_size / seats), math.ceil(groups / max(1, seats // group_size)))
        return waves * self.limits.episode_timeout_s + GRACE_S

    async def load(self, adapter: AdapterRef) -> float:
        """Have every replica serve `adapter`; the longest time that a replica took, in seconds.

        Raises:
            TandemError: a replica acknowledged other weights than asked for.
        """
        loaded = await together(*(replica.load_adapter(adapter) for replica in self.replicas))
        self._check(adapter, loaded)
        return max(answer.seconds for answer in loaded)

    async def load_pushed(
        self, adapter: AdapterRef, pushed: Pushed, missed: Mapping[str, str]
    ) -> list[AdapterLoaded | TandemError]:
        """Wake every replica and have it serve the adapter that the ranks have sent to it: what each acknowledged, or
        why it did not. `missed` says by address who did not get it."""

        async def ask(replica: RolloutClient) -> AdapterLoaded | TandemError:
            if why := missed.get(replica.peer.address):
                return TandemError(why)
            try:
                await replica.wake()
                return await replica.load_adapter(adapter, pushed)
            except TandemError as problem:
                return problem

        return await together(*map(ask, self.replicas))

    async def settle(self, published: AdapterRef, pushed: Sequence[AdapterLoaded | TandemError]) -> None:
        """Hold what `load_pushed` gave against what was published; who did not get it loads that.

        Raises:
            TandemError: a replica serves other weights than were published, or can load them in neither way.
        """

        async def from_store(replica: RolloutClient, answer: AdapterLoaded | TandemError) -> AdapterLoaded:
            if isinstance(answer, AdapterLoaded):
                return answer
            log.warning("%s did not get %s directly: %s; it loads it from the store", replica.peer.name, name, answer)
            try:
                await replica.wake()
                return await replica.load_adapter(published)
            except TandemError as problem:
                raise type(problem)(
                    f"{replica.peer.name}: cannot load {name} from the store: {problem}; nor directly: {answer}"
                ) from problem

        name = published.name
        self._check(published, await together(*map(from_store, self.replicas, pushed)))

    def _check(self, adapter: AdapterRef, loaded: Sequence[AdapterLoaded]) -> None:
        for replica, answer in zip(self.replicas, loaded, strict=True):
            if answer.policy_version != adapter.version or (adapter.url and answer.sha256 != adapter.sha256):
                raise TandemError(
                    f"{replica.peer.name} acknowledged version {answer.policy_version} ({answer.sha256[:12]}), "
                    f"not {adapter.version} ({adapter.sha256[:12]})"
                )
        probes = sorted((answer.probe_logprob, r.peer.name) for r, answer in zip(self.replicas, loaded, strict=True))
        (least, one), (most, other) = probes[0], probes[-1]
        if most - least > self.probe_tolerance:
            raise TandemError(
                f"version {adapter.version}: {one} and {other} serve different policies: the probe's logprob is "
                f"{least:.6f} and {most:.6f}"
            )

    async def sleep(self) -> None:
        """Free the device memory of all replicas."""
        await together(*(replica.sleep() for replica in self.replicas))

    async def wake(self) -> None:
        """Take it back."""
        await together(*(replica.wake() for replica in self.replicas))

    async def check(self, base_model: str) -> None:
        """Raise UserError unless every replica serves the given base model (by fingerprint)."""
        for status, replica in zip(await together(*(r.status() for r in self.replicas)), self.replicas, strict=True):
            if status.base_model != base_model:
                raise UserError(
                    f"{replica.peer.name} has base model {status.base_model[:12]}, the learner {base_model[:12]}; "
                    "give both one folder"
                )

    async def close(self) -> None:
        """Close the channels."""
        await together(*(replica.close() for replica in self.replicas))


def check_played(what: str, groups: Sequence[TrajectoryGroup]) -> None:
    """Warn where more than a tenth of the episodes failed or had no turn: what the rest says is less than it seems.

    Raises:
        TandemError: none is left, so that there is nothing to learn from, and no figure to give.
    """
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    reasons = Counter(t.error or t.stop_reason for t in episodes if t.stop_reason.failed or not t.turns)
    count = reasons.total()
    if count <= WARN_SHARE * len(episodes):
        return
    why = f"mostly for this: {reasons.most_common(1)[0][0]}"
    if count == len(episodes):
        raise TandemError(f"{what}: not one of {count} episodes could be played, {why}")
    log.warning("%s: %d of %d episodes could not be played, %s", what, count, len(episodes), why)
