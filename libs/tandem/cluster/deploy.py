"""The services of a run on Ray: placed, started, watched, started anew, and stopped at its end.

Placement: one slot for each pair of rollout replica and learner rank of one index, so that both share its GPU in
halves; the checkpoint manager sits where the resource `head_mem` is. Replicas and ranks need not be equally many.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import ray

from tandem.cluster.host import node_name
from tandem.cluster.lives import Lives
from tandem.cluster.nodes import Nodes
from tandem.cluster.registry import DRIVER_S, NODE_LOST_S, next_generation, take_over
from tandem.cluster.session import ray_session, settled
from tandem.cluster.slots import Slots
from tandem.config import Config
from tandem.obs import get_logger, span
from tandem.obs.tracing import carried
from tandem.rpc.keyring import open_keyring
from tandem.types import Death, Identity, Member, Role, Unavailable, UserError

log = get_logger(__name__)


class Deployment:
    """The services of one run. Its methods wait for Ray; several threads may call them.

    Whoever takes the place of another has the next generation; all ranks of the learner have the same.
    """

    def __init__(self, config: Config, run: str, host: str, logs: str) -> None:
        """`host`: what services bind to; empty: each to its own node's address. `logs`: the folder for their logs."""
        self._config, self._run = config, run
        self.host = host or ray.util.get_node_ip_address()  # what a process on this node binds to
        self.node = node_name()  # this one's
        self.keyring = open_keyring(config.security, loopback=bool(host))
        self._nodes = Nodes()
        self._slots = Slots(config.cluster, self._nodes)
        self._lives = Lives(config, run, host, logs, self.keyring)
        self.controller = self._identity(Role.CONTROLLER, 0)  # whoever has made this

    @property
    def rollouts(self) -> tuple[Member, ...]:
        """The replicas that run, by index."""
        return self._lives.members(Role.ROLLOUT)

    @property
    def ranks(self) -> tuple[Member, ...]:
        """The learner's ranks that run."""
        return self._lives.members(Role.LEARNER)

    @property
    def learner(self) -> Member:
        """Rank 0. Raises Unavailable where it does not run."""
        return self._lives.member(Role.LEARNER)

    @property
    def checkpoint(self) -> Member:
        """The checkpoint manager. Raises Unavailable where it does not run."""
        return self._lives.member(Role.CHECKPOINT_MANAGER)

    def start_rollout(self, index: int) -> Member:
        """Start a replica under that index, in the place of one that lives there, if any.

        Raises:
            UserError: `cluster.gpus` does not allow so many.
            Unavailable: no room within `cluster.start_timeout_s` (its slot stays asked for), it was not up by then, or
                its process, actor or node was lost.
            TandemError: what its start raised.
        """
        self._allow(f"rollout {index}", index + 1)
        until = self._until()
        self._lives.end(Role.ROLLOUT, index)
        me = self._identity(Role.ROLLOUT, index)
        self._lives.open(me, self._slots.take(Role.ROLLOUT, index, until))
        return self._lives.start(me, until, replica=index)

    def stop_rollout(self, index: int) -> None:
        """Stop a replica in order, and give its slot back unless a rank has the other half."""
        self._lives.end(Role.ROLLOUT, index, in_order=True)
        self._slots.free(Role.ROLLOUT, index)

    def start_learner(self, world_size: int) -> Member:
        """End all ranks and start so many anew; rank 0. Raises as `start_rollout`.

        Unless slots are given back, room for all is found first: where there is none, those that live go on, and what
        was asked for anew is given back.
        """
        self._allow(f"a learner of {world_size} ranks", world_size)
        until = self._until()
        if world_size > max(self._slots.held(Role.LEARNER), default=-1):
            self._find_room(world_size, until)
        self._end_ranks(world_size)
        generation = self._identity(Role.LEARNER, 0).generation
        ranks = [Identity(Role.LEARNER, index, generation) for index in range(world_size)]
        for me in ranks:
            self._lives.open(me, self._slots.take(Role.LEARNER, me.index, until))
        meeting = self._lives.free_address(ranks[0], until)
        start = partial(self._lives.start, until=until, world_size=world_size, rendezvous=meeting)
        return side_by_side([partial(start, me, rank=me.index) for me in ranks])[0]

    def _find_room(self, world_size: int, until: float) -> None:
        before = self._slots.held(Role.LEARNER)
        try:
            for index in range(world_size):  # all at once, so that an autoscaler sees them all
                self._slots.ask(Role.LEARNER, index)
            for index in range(world_size):
                self._slots.find(Role.LEARNER, index, until)
        except Unavailable:
            for index in set(range(world_size)) - before:
                self._slots.free(Role.LEARNER, index)
            raise

    def _end_ranks(self, world_size: int) -> None:
        """End all ranks, also those whose start failed; of slots, so many are kept."""
        side_by_side([partial(self._lives.end, Role.LEARNER, index) for index in self._lives.indices(Role.LEARNER)])
        for index in self._slots.held(Role.LEARNER):
            if index >= world_size:
                self._slots.free(Role.LEARNER, index)

    def start_checkpoint(self, rewind_to: int | None = None) -> Member:
        """Start the checkpoint manager, in the place of the one that lives, if any; raises as `start_rollout`.

        `rewind_to` is where a resumed run stands: what the store holds beyond it is forgotten.
        """
        until = self._until()
        self._lives.end(Role.CHECKPOINT_MANAGER, 0)
        me = self._identity(Role.CHECKPOINT_MANAGER, 0)
        self._lives.open(me, self._slots.head())
        return self._lives.start(me, until, port=self._config.cluster.checkpoint_port, rewind_to=rewind_to)

    def wait_death(self, timeout_s: float) -> Death | None:
        """The next death of a member that nobody here has ended, each told once; None where there is none in time."""
        return self._lives.wait_death(timeout_s)

    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that are alive: TANDEM_NODE_NAME of a node's environment, or Ray's id."""
        return tuple(sorted(self._nodes.names().values()))

    def avoid(self, node: str) -> None:
        """Place nothing new on a node; what runs there goes on. Raises NotFound where there is no such node."""
        self._nodes.avoid(node)

    def start(self, replicas: int, ranks: int, rewind_to: int | None) -> None:
        """Start all services of a run; the first that fails ends the wait for the others. Raises as `start_rollout`."""
        for role, count in ((Role.ROLLOUT, replicas), (Role.LEARNER, ranks)):
            for index in range(count):
                self._slots.ask(role, index)
        training: list[Callable[[], object]] = []
        if ranks:
            training = [partial(self.start_checkpoint, rewind_to), partial(self.start_learner, ranks)]
        rollouts = [partial(self.start_rollout, index) for index in range(replicas)]
        if self._config.cluster.gpus:
            side_by_side(training)  # the engine takes its share of what the learner leaves of a GPU they share
            training = []
        side_by_side([*training, *rollouts])

    def close(self) -> None:
        """Stop all in order, and give all slots back."""
        self._lives.close()
        self._slots.close()

    def _identity(self, role: Role, index: int) -> Identity:
        return Identity(role, index, next_generation(self._run, role, index))

    def _until(self) -> float:
        return time.monotonic() + self._config.cluster.start_timeout_s

    def _allow(self, what: str, slots: int) -> None:
        gpus = self._config.cluster.gpus
        if 0 < gpus < slots:
            raise UserError(
                f"{what} needs {slots} GPUs, one for each pair of replica and rank, but cluster.gpus is {gpus}; "
                "ask for fewer, or start the run again with a larger cluster.gpus"
            )


def side_by_side(calls: list) -> list:
    """Results in order; the first failure is raised at once, the other calls go on alone.

    Each has a thread of its own: ranks wait for one another.
    """
    if not calls:
        return []
    pool = ThreadPoolExecutor(len(calls), "deploy")
    try:
        futures: list[Future] = [pool.submit(carried(call)) for call in calls]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [future for future in futures if future in done and future.exception() is not None]
        return [future.result() for future in (failed or futures)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def deployed(
    config: Config, run: str, *, rollouts: bool = True, training: bool = True, rewind_to: int | None = None
) -> Iterator[Deployment]:
    """Start rollout replicas, and for training learner and checkpoint manager; stop all at the end.

    `run` names the actors on the cluster. `rewind_to` is where a resumed run stands: the checkpoint manager forgets
    what the store holds beyond it; its cluster may be on its way back, too, and is waited for.

    Raises:
        UserError: the cluster cannot hold what the config asks for, or a service refused its part of the config.
        TandemError: a service could not start.
    """
    replicas, ranks = (config.rollout.replicas if rollouts else 0), (config.learner.world_size if training else 0)
    slots = max(replicas, ranks)
    if 0 < config.cluster.gpus < slots:
        raise UserError(
            f"cluster.gpus is {config.cluster.gpus} but {replicas} replicas and {ranks} ranks need {slots}, one for "
            "each pair; set it to that, to more to scale up later, or to 0 for CPU"
        )
    resumes = rewind_to is not None  # then the cluster, too, may be on its way back
    patience_s = config.cluster.start_timeout_s if resumes else 0.0
    with ray_session(config.cluster, slots, patience_s) as host:
        settled(partial(_check_room, config, slots), patience_s)
        take_over(run, NODE_LOST_S if resumes else DRIVER_S)
        before = _folder(config, run).exists()
        logs = _logs(config, run, training)
        deployment, started = Deployment(config, run, host, str(logs)), False
        try:
            with span("deploy"):
                deployment.start(replicas, ranks, rewind_to)
            started = True
            yield deployment
        except UserError:
            if not (started or before):  # logs of an earlier life of the run tell why it ended
                _discard(logs)
            raise
        finally:
            deployment.close()


def _check_room(config: Config, slots: int) -> None:
    cpus = config.cluster.cpus_per_worker
    if (have := ray.cluster_resources().get("CPU", 0)) < cpus * slots:
        raise UserError(
            f"{slots} replicas or ranks of cluster.cpus_per_worker {cpus:g} do not fit: "
            f"the Ray cluster has {have:g} CPUs"
        )


def _discard(logs: Path) -> None:
    """Of a run that was refused nothing is left: its logs go, and the folders around them where nothing else is in."""
    shutil.rmtree(logs, ignore_errors=True)
    for folder in (logs.parent, logs.parent.parent):
        with suppress(OSError):
            folder.rmdir()


def _folder(config: Config, run: str) -> Path:
    logs = Path(config.run.dir).absolute() / config.run.name / "logs"
    return logs if run == config.run.name else logs / run


def _logs(config: Config, run: str, training: bool) -> Path:
    """The folder for the services' logs. It is made here: where a node has it, too, services write there."""
    logs = _folder(config, run)
    if training or (Path(config.run.dir) / config.run.name).is_dir():
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"{logs}: cannot be made ({problem.strerror}); choose another run.dir") from problem
    return logs
