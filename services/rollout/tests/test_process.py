"""`python -m tandem_rollout` as a process of its own: how it starts, what it says, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.rpc.clients import RolloutClient
from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TrajectoryGroup, Unavailable
from tandem_rollout.base_model import BaseModel

TASK = RolloutTask("maze2d:tiny", tuple(range(8)), 4, 0, Sampling(max_tokens=5), ContextPolicy(1), 14, 0)


def recipe(folder: Path, model: str | Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(model)}, "env": {"window": 1}}))
    return path


@asynccontextmanager
async def service(*arguments: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tandem_rollout",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def engine_of(pid: int) -> int:
    """The process id of vLLM's engine among a process's children."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            if int(rest.split()[1]) == pid and "EngineCor" in name:
                return int(entry.name)
    raise AssertionError(f"no engine below process {pid}")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service="tandem.rollout.v1.RolloutService")
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(request, timeout=10)).status  # pyright: ignore[reportAttributeAccessIssue]


async def played(client: RolloutClient) -> list[TrajectoryGroup]:
    return [group async for group in client.rollout(TASK)]


@pytest.mark.vllm
async def test_ends_with_its_engine(base: BaseModel, tmp_path: Path) -> None:
    async with service(recipe(tmp_path, base.path)) as process:
        assert process.stdout is not None and process.stderr is not None
        said = json.loads(await asyncio.wait_for(process.stdout.readline(), 180))
        assert said["service"] == "rollout"
        client = RolloutClient(said["address"])
        groups = await played(client)
        assert sorted(group.seed for group in groups) == list(TASK.seeds)
        assert (await client.load_adapter(AdapterRef(0, "", "", "", "", 0))).policy_version == 0
        assert await health(said["address"]) == health_pb2.HealthCheckResponse.SERVING
        playing = asyncio.ensure_future(played(client))
        while not (await client.status()).episodes_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(engine_of(process.pid), signal.SIGKILL)
        with pytest.raises(Unavailable, match="died while it played"):  # what it cut off is no result
            await playing
        assert await asyncio.wait_for(process.wait(), 60) == 1
        why = "vLLM's engine process was killed by SIGKILL; this replica must be replaced"
        assert why in (await process.stderr.read()).decode()
        assert await process.stdout.read() == b""  # one line, nothing else
        await client.close()


@pytest.mark.vllm
async def test_a_killed_service_leaves_no_engine_behind(base: BaseModel, tmp_path: Path) -> None:
    async with service(recipe(tmp_path, base.path)) as process:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 180)
        engine = engine_of(process.pid)
        process.kill()
        await process.wait()
    for _ in range(100):
        if not alive(engine):
            break
        await asyncio.sleep(0.1)
    assert not alive(engine)


@pytest.mark.parametrize("missing", ["model", "recipe"])
async def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, missing: str) -> None:
    path = recipe(tmp_path, tmp_path / "no-model") if missing == "model" else tmp_path / "no-recipe.yaml"
    async with service(path) as process:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 2 and out == b""
    lines = err.decode().strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("tandem_rollout: ") and f"no-{missing}" in lines[0]
