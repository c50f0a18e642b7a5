"""The service over real gRPC, around a stub engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rollout_stub_engine import StubEngine

from tandem.config import Config
from tandem.rpc.clients import RolloutClient
from tandem.rpc.server import serve
from tandem_rollout.base_model import BaseModel
from tandem_rollout.main import build_replica
from tandem_rollout.replica import Replica
from tandem_rollout.servicer import SERVICE, RolloutServicer


@dataclass(frozen=True)
class Running:
    client: RolloutClient
    engine: StubEngine
    replica: Replica


@asynccontextmanager
async def serving(base: BaseModel, config: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[Running]:
    """`config`: sections of it; `settings`: of the stub engine."""
    whole = Config.model_validate(
        {
            "model": {"path": str(base.path)},
            "learner": {"lora": {"vision": True}},
            "security": {"adapters_from": ["/"]},
            **(config or {}),
        }
    )
    engine = StubEngine(base.chat, answer=lambda number: "?", **settings)
    replica = build_replica(whole, engine, base)
    server = await serve(RolloutServicer(replica).register, [SERVICE])
    client = RolloutClient(server.address)
    try:
        yield Running(client, engine, replica)
    finally:
        await client.close()
        await server.stop(0)
        await replica.close()
