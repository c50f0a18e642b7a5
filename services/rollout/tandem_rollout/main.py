"""Start a rollout replica in this process. `python -m tandem_rollout` does it alone, without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tandem import envs
from tandem.config import Config
from tandem.rpc.door import OPEN, Door
from tandem.rpc.server import RunningServer, serve
from tandem.types import Unavailable, UserError
from tandem_rollout.adapters import AdapterRules
from tandem_rollout.base_model import BaseModel, read_base_model
from tandem_rollout.core import Limits, Player
from tandem_rollout.engine import Engine
from tandem_rollout.engine_simulated import EngineSimulated
from tandem_rollout.engine_vllm.environment import set_engine_environment
from tandem_rollout.env_processes import EnvProcesses
from tandem_rollout.environments import EnvThreads
from tandem_rollout.replica import Bounds, Replica
from tandem_rollout.servicer import SERVICE, RolloutServicer


@dataclass(frozen=True, slots=True)
class RolloutService:
    """A running replica. `ended` raises Unavailable once its engine is of no use any more: the process has to end."""

    replica: Replica
    server: RunningServer
    ended: asyncio.Future[None]

    @property
    def address(self) -> str:
        """host:port."""
        return self.server.address

    async def stop(self) -> None:
        """Let running calls end, then stop the engine."""
        self.ended.cancel()
        await self.server.stop()
        await self.replica.close()


async def start(
    config: Config, *, host: str = "127.0.0.1", port: int = 0, replica: int = 0, door: Door = OPEN
) -> RolloutService:
    """Start an engine on `config.model.path` and serve it, as version 0: the base model without an adapter.

    Raises:
        UserError: no such model, settings that the engine refuses, or the port is taken.
    """
    base = read_base_model(config.model.path)
    engine = await start_engine(config, base, config.run.seed + replica)
    try:
        serving = build_replica(config, engine, base)
    except UserError:
        await engine.close()
        raise
    try:
        server = await serve(RolloutServicer(serving).register, [SERVICE], host=host, port=port, door=door)
    except UserError:
        await serving.close()
        raise
    return RolloutService(serving, server, asyncio.ensure_future(_end(engine, server)))


async def start_engine(config: Config, base: BaseModel, seed: int) -> Engine:
    """The engine that the config asks for. Raises UserError where that cannot be."""
    if config.rollout.engine.kind == "simulated":
        return EngineSimulated(config, base)
    set_engine_environment()
    from tandem_rollout.engine_vllm.engine import EngineVllm  # noqa: PLC0415 - reads the environment when imported

    return await EngineVllm.start(config, base, seed)


def build_replica(config: Config, engine: Engine, base: BaseModel) -> Replica:
    """The replica of a config around an engine."""
    rollout = config.rollout
    limits = Limits(
        max_concurrent_episodes=rollout.max_concurrent_episodes,
        episode_timeout_s=rollout.episode_timeout_s,
        max_images=config.env.max_images,
        images_per_turn=config.env.images_per_turn,
        deterministic=config.run.deterministic,
    )
    rules = AdapterRules(base, rollout.engine.max_lora_rank, config.learner.lora.vision)
    timeout = config.env.step_timeout_s
    environments = EnvThreads(envs.make, timeout) if config.env.workers == "threads" else EnvProcesses(timeout)
    bounds = Bounds(config.env.id, config.weight_places)
    return Replica(
        engine, Player(engine, base.chat, environments, limits, base.path.name), rules, bounds, config.sync.folder
    )


async def _end(engine: Engine, server: RunningServer) -> None:
    """With its engine: this process may outlive it."""
    why = await engine.died()
    await server.set_serving(False)
    raise Unavailable(f"{why}; this replica must be replaced")
