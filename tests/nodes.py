"""A real Ray cluster of several nodes on this machine, whose nodes and processes can be killed, slowed and added.

    with ray_cluster(folder, workers=3, gpus=2) as cluster:      # head with `head_mem`, and workers w1, w2, w3
        ... tandem train RECIPE cluster.address={cluster.address} ...   # from this process or another
        cluster.services("rollout", 1)[0].kill()    # one service's own process, by role and index; psutil.Process
        cluster["w2"].kill()                        # kill -9 of a whole node: raylet, actors, services, and all else
        cluster.add("w4", gpus=2)                   # a node joins
        cluster["w1"].pause(); cluster["w1"].resume()   # SIGSTOP, SIGCONT of all its processes: a node that hangs
    with cluster.without_gcs(): ...             # `redis=True`: Ray's GCS is killed, and started again after it
    cluster.add("head", cpus=0, head=True)      # after its kill, at the address it had; `redis=True`: with what it knew

Each node is one `ray start --block`; its GPUs are pretended (a number that Ray counts). TANDEM_NODE_NAME is its name.
The head of a cluster with Redis has no `--block`, which would end it with its GCS.
A learner finds out that there is no GPU, so a run that trains has `cluster.gpus` 0 and takes CPUs (of the workers: the
head has none). `services` tells runs on one cluster apart by `run`, a part of the path of their logs.

A node that is killed is off Ray's books in 1 to 2 s (`HEALTH`). A paused node is, too, if it does not resume before.

Leaving the `with` kills all by pid. Ray's files lie in `folder`, whose path must be short (sockets: 40 characters).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest

MARK = "TANDEM_TEST_NODE"
# How soon a lost node is missed: Ray's own values are 5000, 3000, 10000 ms and 5 times.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
REDIS = ("redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
PATIENT = {"RAY_raylet_start_wait_time_s": "200"}  # of 60, on a machine that does other work
UP_S = 240.0
GONE_S = 30.0
STORE_BYTES = 80 * 2**20


def until(ask: Callable[[], object], what: str, for_s: float = UP_S) -> None:
    """Ask until the answer is true; AssertionError after `for_s` seconds."""
    end = time.monotonic() + for_s
    while not ask():
        assert time.monotonic() < end, f"{what}: not within {for_s:g} s"
        time.sleep(0.05)


class Node:
    """One node: the `ray start` that began it, what carries its mark, and all that these have ever started."""

    def __init__(self, name: str, mark: str, root: psutil.Process) -> None:
        self.name, self.mark, self._root = name, mark, root
        self._seen: set[psutil.Process] = set()

    def processes(self) -> list[psutil.Process]:
        """Those that live. One whose title was changed has lost its mark, an orphan its parent: so both ways."""
        for process in [self._root, *(process for process, mark in _marked() if mark == self.mark)]:
            with suppress(psutil.Error):
                self._seen |= {process, *process.children(recursive=True)}
        self._seen = {process for process in self._seen if _lives(process)}
        return list(self._seen)

    def kill(self) -> None:
        """kill -9, until none is left: also of what was being started. Like a power cut: none tells of another."""
        end = time.monotonic() + GONE_S
        self.pause()
        while found := self.processes():
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            with suppress(psutil.Error):
                self._root.wait(0)
            assert time.monotonic() < end, f"node {self.name} keeps {found}"

    @property
    def raylet(self) -> psutil.Process | None:
        """Ray's own process of a node, while it lives."""
        return next((process for process in self.processes() if process.name() == "raylet"), None)

    def pause(self) -> None:
        """SIGSTOP of all."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT of all."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class RayCluster:
    """The nodes, by name. Made by `ray_cluster`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], redis_port: int = 0) -> None:
        self.folder, self.environment, self._redis_port = folder, dict(environment), redis_port
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: dict[str, Node] = {}
        self._id = uuid.uuid4().hex[:8]

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def head(self) -> Node:
        """The head node."""
        return self.nodes["head"]

    def add(self, *names: str, cpus: int = 2, gpus: int = 0, head: bool = False) -> None:
        """Start nodes side by side; returns once Ray knows them all."""
        started = [self._start(name, cpus, gpus, head) for name in names]
        for name, (process, log) in zip(names, started, strict=True):

            def up(process: subprocess.Popen = process, log: Path = log) -> bool:
                said = log.read_text()
                assert process.poll() in (None, 0), said
                return "Ray runtime started" in said

            until(up, f"start of node {name}")

    def _start(self, name: str, cpus: int, gpus: int, head: bool) -> tuple[subprocess.Popen, Path]:
        assert name not in self.nodes or not self.nodes[name].processes(), f"node {name} lives"
        mark = f"{self._id}/{name}"
        shutil.rmtree(self.folder / name, ignore_errors=True)  # one of that name that comes back is another machine
        where, more = [f"--address={self.address}", "--block"], dict[str, str]()
        if head and self._redis_port:
            more = {"RAY_REDIS_ADDRESS": f"127.0.0.1:{self._redis_port}", "RAY_external_storage_namespace": self._id}
        if head:
            where = [
                "--head",
                f"--port={self.port}",
                f"--ray-client-server-port={free_port()}",
                "--include-dashboard=false",
                *([] if more else ["--block"]),
            ]
            where += ['--resources={"head_mem": 1}', f"--system-config={json.dumps(HEALTH)}"]
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            f"--temp-dir={self.folder / name}",
            *where,
        ]
        command += ["--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        command += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        command += ["--include-log-monitor=false"]
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **PATIENT, **self.environment, **more, MARK: mark, "TANDEM_NODE_NAME": name},
            )
        self.nodes[name] = Node(name, mark, psutil.Process(process.pid))
        return process, log

    @contextmanager
    def without_gcs(self) -> Iterator[None]:
        """Ray's GCS is killed -9, and started again when the body has ended; needs `redis`."""
        [gcs] = [process for process in self.head.processes() if process.name() == "gcs_server"]
        command, environment = gcs.cmdline(), gcs.environ()
        gcs.kill()
        until(lambda: not _lives(gcs), "end of the GCS", GONE_S)
        try:
            yield
        finally:
            with (self.folder / "gcs.log").open("a") as log:
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                )

    def services(self, role: str, index: int | None = None, run: str = "") -> list[psutil.Process]:
        """The services' own processes: of one index or all, of one run (part of the path of its logs) or all."""
        found = []
        for process, mark in _marked():
            with suppress(psutil.Error):
                if not mark.startswith(f"{self._id}/"):
                    continue
                command = process.cmdline()
                if command[1:3] == ["-m", "tandem.rpc.hosted"] and run in command[3]:
                    its_role, its_index, _ = Path(command[3]).stem.rsplit("-", 2)
                    if its_role == role and index in (None, int(its_index)):
                        found.append(process)
        return found

    def host_of(self, service: psutil.Process) -> psutil.Process:
        """The actor's process that hosts a service."""
        host = service.parent()
        assert host is not None
        return host

    def node_of(self, process: psutil.Process) -> Node:
        """The node that a process belongs to."""
        mark = process.environ()[MARK]
        return next(node for node in self.nodes.values() if node.mark == mark)

    def close(self) -> None:
        """Kill all."""
        for node in reversed(self.nodes.values()):
            node.kill()


@contextmanager
def ray_cluster(
    folder: Path,
    *,
    workers: int,
    gpus: int = 0,
    cpus: int = 2,
    environment: Mapping[str, str] | None = None,
    redis: bool = False,
) -> Iterator[RayCluster]:
    """A cluster of a head and so many workers, w1 and on, each with so many CPUs and pretended GPUs; `redis`: its GCS
    keeps what it knows in a Redis of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with redis_server(folder / "redis") if redis else nullcontext(0) as port:
        yield from _cluster(RayCluster(folder, environment or {}, port), workers, gpus, cpus)


def _cluster(cluster: RayCluster, workers: int, gpus: int, cpus: int) -> Iterator[RayCluster]:
    try:
        cluster.add("head", cpus=0, head=True)  # slots go to the workers
        cluster.add(*(f"w{number}" for number in range(1, workers + 1)), cpus=cpus, gpus=gpus)
        yield cluster
    finally:
        cluster.close()
        for name in cluster.nodes:
            shutil.rmtree(cluster.folder / name, ignore_errors=True)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """A Redis on loopback, which keeps nothing on disk; its port. Skips where Debian's redis-server is missing."""
    if not shutil.which(REDIS[0]):
        pytest.skip("redis-server is not installed: sudo make system-deps")
    folder.mkdir(parents=True)
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*REDIS, "--port", str(port), "--dir", str(folder)], stdout=log, stderr=log)
    try:
        until(lambda: "Ready to accept connections" in (folder / "log").read_text(), "start of Redis")
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _marked() -> list[tuple[psutil.Process, str]]:
    """Processes of nodes, alive, with their marks."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark and _lives(process):
                found.append((process, mark))
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
