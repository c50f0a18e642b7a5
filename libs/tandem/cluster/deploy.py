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

from tandem.cluster.lives import Lives
from tandem.cluster.nodes import Nodes
from tandem.cluster.registry import next_generation, take_over
from tandem.cluster.session import ray_session
from tandem.cluster.slots import Slots
from tandem.config import Config
from tandem.obs import get_logger
from tandem.rpc.keyring import open_keyring
from tandem.types import Death, Identity, Member, Role, UserError

log = get_logger(__name__)
AT_ONCE = 16  # starts side by side


class Deployment:
    """The services of one run. Its methods wait for Ray; several threads may call them.

    Whoever takes the place of another has the next generation; all ranks of the learner have the same.
    """

    def __init__(self, config: Config, run: str, host: str, logs: str) -> None:
        """`host`: what services bind to; empty: each to its own node's address. `logs`: the folder for their logs."""
        self._config, self._run = config, run
        self.host = host or ray.util.get_node_ip_address()  # what a process on this node binds to
        self.keyring = open_keyring(config.security, loopback=bool(host))
        self._nodes = Nodes()
        self._slots = Slots(config.cluster, self._nodes)
        self._lives = Lives(config, run, host, logs, self.keyring)

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
            Unavailable: no room within `cluster.start_timeout_s` (its slot stays asked for), or its process ended.
            TandemError: what its start raised.
        """
        until = self._until()
        self._lives.end(Role.ROLLOUT, index)
        me = self._identity(Role.ROLLOUT, index)
        self._lives.open(me, self._slots.place(index, until), until)
        return self._lives.start(me, until, replica=index)

    def stop_rollout(self, index: int) -> None:
        """Stop a replica in order, and give its slot back unless a rank has the other half."""
        self._lives.end(Role.ROLLOUT, index, in_order=True)
        if not self._lives.lives(Role.LEARNER, index):
            self._slots.free(index)

    def start_learner(self, world_size: int) -> Member:
        """End all ranks and start so many anew; rank 0. Raises as `start_rollout`."""
        until = self._until()
        self._in_parallel([partial(self._end_rank, rank.identity.index, world_size) for rank in self.ranks])
        generation = self._identity(Role.LEARNER, 0).generation
        ranks = [Identity(Role.LEARNER, index, generation) for index in range(world_size)]
        for me in ranks:
            self._slots.ask(me.index)
        for me in ranks:
            self._lives.open(me, self._slots.place(me.index, until), until)
        meeting = self._lives.free_address(ranks[0], until)
        start = partial(self._lives.start, until=until, world_size=world_size, rendezvous=meeting)
        return self._in_parallel([partial(start, me, rank=me.index) for me in ranks])[0]

    def _end_rank(self, index: int, world_size: int) -> None:
        self._lives.end(Role.LEARNER, index)
        if index >= world_size and not self._lives.lives(Role.ROLLOUT, index):
            self._slots.free(index)

    def start_checkpoint(self, rewind_to: int | None = None) -> Member:
        """Start the checkpoint manager, in the place of the one that lives, if any; raises as `start_rollout`.

        `rewind_to` is where a resumed run stands: what the store holds beyond it is forgotten.
        """
        until = self._until()
        self._lives.end(Role.CHECKPOINT_MANAGER, 0)
        me = self._identity(Role.CHECKPOINT_MANAGER, 0)
        self._lives.open(me, self._slots.head(), until)
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
        for index in range(max(replicas, ranks)):
            self._slots.ask(index)
        training: list[Callable[[], object]] = []
        if ranks:
            training = [partial(self.start_checkpoint, rewind_to), partial(self.start_learner, ranks)]
        rollouts = [partial(self.start_rollout, index) for index in range(replicas)]
        if self._config.cluster.gpus:
            self._in_parallel(training)  # the engine takes its share of what the learner leaves of a GPU they share
            training = []
        self._in_parallel([*training, *rollouts])

    def close(self) -> None:
        """Stop all in order, and give all slots back."""
        self._lives.close()
        self._slots.close()

    def _identity(self, role: Role, index: int) -> Identity:
        return Identity(role, index, next_generation(self._run, role, index))

    def _until(self) -> float:
        return time.monotonic() + self._config.cluster.start_timeout_s

    def _in_parallel(self, calls: list) -> list:
        """Results in order; the first failure is raised at once, the other calls go on alone."""
        if not calls:
            return []
        pool = ThreadPoolExecutor(min(AT_ONCE, len(calls)), "deploy")
        try:
            futures: list[Future] = [pool.submit(call) for call in calls]
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
    what the store holds beyond it.

    Raises:
        UserError: the cluster cannot hold what the config asks for, or a service refused its part of the config.
        TandemError: a service could not start.
    """
    replicas, ranks = (config.rollout.replicas if rollouts else 0), (config.learner.world_size if training else 0)
    slots = max(replicas, ranks)
    if config.cluster.gpus not in (0, slots):
        raise UserError(
            f"cluster.gpus is {config.cluster.gpus} but {replicas} replicas and {ranks} ranks need {slots}, one for "
            "each pair; set it to that, or to 0 for CPU"
        )
    with ray_session(config.cluster, slots) as host:
        _check_room(config, slots)
        take_over(run)
        logs = _logs(config, run, training)
        deployment, started = Deployment(config, run, host, str(logs)), False
        try:
            deployment.start(replicas, ranks, rewind_to)
            started = True
            yield deployment
        except UserError:
            if not started:
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


def _logs(config: Config, run: str, training: bool) -> Path:
    """The folder for the services' logs. It is made here: where a node has it, too, services write there."""
    folder = Path(config.run.dir).absolute() / config.run.name
    logs = folder / "logs" if run == config.run.name else folder / "logs" / run
    if training or folder.is_dir():
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"{logs}: cannot be made ({problem.strerror}); choose another run.dir") from problem
    return logs
