"""All four services, as they are, in one process and on loopback: only the engine is a stub, and the run that the
controller's port drives is told, not run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from tandem.config import Config
from tandem.rpc.door import Door
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2
from tandem.rpc.gen.controller.v1 import controller_pb2
from tandem.rpc.gen.learner.v1 import learner_pb2
from tandem.rpc.gen.rollout.v1 import rollout_pb2
from tandem.rpc.keyring import Keyring
from tandem.rpc.server import serve
from tandem.types import Identity, Role

ROOT = Path(__file__).parents[2]
SERVICES: Mapping[Role, ServiceDescriptor] = {
    Role.ROLLOUT: rollout_pb2.DESCRIPTOR.services_by_name["RolloutService"],
    Role.LEARNER: learner_pb2.DESCRIPTOR.services_by_name["LearnerService"],
    Role.CHECKPOINT_MANAGER: checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"],
    Role.CONTROLLER: controller_pb2.DESCRIPTOR.services_by_name["ControllerService"],
}


@contextmanager
def all_services(folder: Path, keyring: Keyring) -> Iterator[dict[Role, str]]:
    """Their addresses, by role; they run on a loop of their own."""
    ready: SimpleQueue[dict[Role, str] | BaseException] = SimpleQueue()
    ends: list[Callable[[], Any]] = []

    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(done.set))
        async with AsyncExitStack() as stack:
            ready.put(await _start(folder, keyring, stack))
            await done.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as problem:
            ready.put(problem)
            raise

    thread = threading.Thread(target=work, name="services", daemon=True)
    thread.start()
    found = ready.get(timeout=120)
    if isinstance(found, BaseException):
        raise found
    try:
        yield found
    finally:
        ends[0]()
        thread.join(60)
    assert not thread.is_alive(), "the services did not stop"


async def _start(folder: Path, keyring: Keyring, stack: AsyncExitStack) -> dict[Role, str]:
    from tandem_checkpoint_manager import main as manager
    from tandem_controller.servicer import SERVICE as CONTROLLER
    from tandem_controller.servicer import ControllerServicer
    from tandem_learner import main as learner
    from tandem_rollout.base_model import read_base_model
    from tandem_rollout.main import build_replica
    from tandem_rollout.servicer import SERVICE as ROLLOUT
    from tandem_rollout.servicer import RolloutServicer

    sys.path += [str(ROOT / f"services/{service}/tests") for service in ("rollout", "controller")]
    run, stub = import_module("control_runs"), import_module("rollout_stub_engine")

    config = Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
            "learner": {"lora": {"rank": 4}, "collective_timeout_s": 10},
            "rollout": {"episode_timeout_s": 5, "group_size": 2},
            "checkpoint": {"url": str(folder / "store")},
            "sync": {"folder": str(folder / "memory")},
        }
    )
    doors = {role: keyring.door(Identity(role, 0, 1)) for role in Role}
    base = read_base_model(config.model.path)
    engine: Any = stub.StubEngine(base.chat)
    replica = build_replica(config, engine, base)
    stack.push_async_callback(replica.close)
    running_manager = await manager.start(config, door=doors[Role.CHECKPOINT_MANAGER])
    stack.push_async_callback(running_manager.stop)
    running_learner = await learner.start(config, door=doors[Role.LEARNER])
    stack.push_async_callback(running_learner.stop)
    addresses = {Role.CHECKPOINT_MANAGER: running_manager.address, Role.LEARNER: running_learner.address}
    for role, servicer, name in (
        (Role.ROLLOUT, RolloutServicer(replica), ROLLOUT),
        (Role.CONTROLLER, ControllerServicer(run.Run()), CONTROLLER),
    ):
        server = await serve(servicer.register, [name], door=doors[role])
        stack.push_async_callback(server.stop, 0)
        addresses[role] = server.address
    return addresses


def door_of(role: Role, keyring: Keyring) -> Door:
    """A caller's."""
    return keyring.door(Identity(role, 0, 1))
