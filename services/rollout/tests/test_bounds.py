"""What a request may name: no adapter outside the run's store is opened, and no module imported that the recipe does
not name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rollout_service import serving

from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, UserError
from tandem_rollout.base_model import BaseModel

TASK = RolloutTask("maze2d:tiny", (1,), 2, 0, Sampling(max_tokens=2), ContextPolicy(1), 2, 0)


async def test_an_adapter_elsewhere_is_not_opened(base: BaseModel, publish, tmp_path: Path) -> None:
    ref: AdapterRef = publish(1)
    elsewhere = {"security": {"adapters_from": [str(tmp_path / "not-it")]}}
    async with serving(base, elsewhere) as service:
        for url in (
            ref.url,
            f"file://{ref.url}",
            f"{tmp_path}/not-it/../{ref.url}",
            "http://127.0.0.1:1/a",
            "s3://a/b",
        ):
            with pytest.raises(UserError, match="is not in the run's store"):
                await service.client.load_adapter(replace(ref, url=url))
        (tmp_path / "not-it").mkdir()
        (tmp_path / "not-it/link").symlink_to(ref.url)
        with pytest.raises(UserError, match="is not in the run's store"):
            await service.client.load_adapter(replace(ref, url=str(tmp_path / "not-it/link")))
        assert (await service.client.load_adapter(AdapterRef(0, "", "", "", "", 0))).policy_version == 0
    async with serving(base, {"model": {"path": str(base.path), "adapter": ref.url}, "security": {}}) as service:
        assert (await service.client.load_adapter(replace(ref, version=1))).policy_version == 1
    async with serving(base, {"checkpoint": {"url": str(Path(ref.url).parents[1])}, "security": {}}) as service:
        assert (await service.client.load_adapter(ref)).policy_version == 1


async def test_an_environment_of_another_kind_imports_nothing(base: BaseModel, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "evil_world.py").write_text("class World:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with serving(base) as service:
        for env in ("evil_world:World", "maze2d:medium", "gym:CartPole-v1", "x" * 10_000, "maze2d:tiny?style=night&"):
            with pytest.raises(UserError, match="is neither the recipe's 'maze2d:tiny' nor a variant") as caught:
                await anext(service.client.rollout(replace(TASK, env=env)))
            assert len(str(caught.value)) < 400
        assert "evil_world" not in sys.modules
        variants = ("maze2d:tiny", "maze2d:tiny?style=night")
        groups = [group for env in variants async for group in service.client.rollout(replace(TASK, env=env))]
        assert [group.env for group in groups] == list(variants)


async def test_more_episodes_than_anyone_needs(base: BaseModel) -> None:
    async with serving(base) as service:
        with pytest.raises(UserError, match="1 groups of 4000000000 are more than 100000 episodes"):
            await anext(service.client.rollout(replace(TASK, group_size=4_000_000_000)))
