"""The service over real gRPC, one rank in this process."""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from processes import service

from tandem.algo import group_advantages, return_table
from tandem.config import Config
from tandem.rpc import codec
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.rpc.gen.learner.v1 import learner_pb2 as pb
from tandem.types import AdapterRef, NotFound, PublishKind, StaleRequest, TrajectoryGroup, Unavailable, UserError
from tandem_learner.comm import close_comm, open_comm, open_store
from tandem_learner.core import LearnerCore
from tandem_learner.figures import gap_warning, warnings
from tandem_learner.leader import Leader
from tandem_learner.main import main, start
from tandem_learner.rank import Rank


def _stream(
    request_id: str, version: int, groups: Sequence[TrajectoryGroup], said: int | None = None
) -> Iterator[pb.TrainStepRequest]:
    count = len(groups) if said is None else said
    yield pb.TrainStepRequest(header=pb.TrainStepHeader(request_id=request_id, expected_version=version, groups=count))
    for group in groups:
        yield pb.TrainStepRequest(group=codec.encode_group(group))


async def _send(client: LearnerClient, stream: Iterator[pb.TrainStepRequest]) -> pb.TrainStepResponse:
    return await client.peer.unary(client.stub.TrainStep, stream, 120)


async def test_status_and_step(client: LearnerClient, groups: list[TrajectoryGroup]) -> None:
    status = await client.status()
    assert (status.policy_version, status.world_size, len(status.base_model)) == (0, 1, 64)
    # rank 4 times inputs plus outputs, over 4 layers: q, k, v, o 96 + 96 each, gate, up 96 + 320, down 320 + 96
    assert status.trainable_parameters == 4 * 4 * (4 * (96 + 96) + 3 * (96 + 320))
    assert '"r": 4' in status.adapter_config_json
    result = await client.train_step(0, groups)
    assert result.policy_version == 1
    assert result.metrics["groups_used"] == 3
    kept = [group for group in groups if group.has_signal]
    expected = group_advantages("grpo", *return_table(kept))[0].tolist()
    found = {group.group_id: [result.advantages[group.group_id][m] for m in range(4)] for group in kept}
    assert list(found.values()) == expected and found.keys() == result.advantages.keys()
    assert (await client.status()).policy_version == 1


async def test_same_request_again_is_answered_but_not_done_again(
    client: LearnerClient, groups: list[TrajectoryGroup]
) -> None:
    first, at_once = await asyncio.gather(
        _send(client, _stream("one", 0, groups)), _send(client, _stream("one", 0, groups))
    )
    later = await _send(client, _stream("one", 0, groups))
    assert first == at_once == later
    assert (await client.status()).policy_version == 1


async def test_step_whose_caller_went_away_is_finished_and_kept(config: Config, groups: list[TrajectoryGroup]) -> None:
    core = LearnerCore(config, open_comm(config, 0, 1, open_store(0, 1, "", 30)))
    leader = Leader(Rank(core, ThreadPoolExecutor(1)), [], 60)
    call = asyncio.create_task(leader.train_step("gone", 0, groups))
    while not leader.known("gone"):
        await asyncio.wait({call}, timeout=0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    answer = await leader.train_step("gone", 0, groups)
    assert (answer.policy_version, core.version) == (1, 1)
    await leader.stop()
    close_comm()


async def test_what_cannot_be_sent_or_seen_is_refused_and_the_learner_goes_on(
    client: LearnerClient, groups: list[TrajectoryGroup]
) -> None:
    first = groups[0]
    with pytest.raises(UserError, match=rf"group '{first.group_id}': cannot be sent"):
        await client.train_step(0, [replace(first, seed=-1)])
    png = min(first.images.values())[:-30]  # its header is whole
    name = hashlib.sha256(png).hexdigest()
    cut = replace(first, images={**first.images, name: png})
    with pytest.raises(UserError, match=f"group {first.group_id}: image {name[:12]}: .*not a whole PNG image"):
        await client.train_step(0, [cut])
    assert (await client.train_step(0, groups)).policy_version == 1


async def test_other_version_is_stale(client: LearnerClient, groups: list[TrajectoryGroup]) -> None:
    with pytest.raises(StaleRequest, match="at version 0, the request expects 1"):
        await client.train_step(1, groups)
    with pytest.raises(StaleRequest, match="at version 0"):
        await client.export(4, PublishKind.ADAPTER, "127.0.0.1:1")


async def test_malformed_streams_are_refused_and_change_nothing(
    client: LearnerClient, groups: list[TrajectoryGroup]
) -> None:
    nan = replace(groups[0].trajectories[1].turns[0], reward=math.nan)
    broken = replace(groups[0].trajectories[1], turns=(nan, *groups[0].trajectories[1].turns[1:]))
    poisoned = replace(groups[0], trajectories=(groups[0].trajectories[0], broken, *groups[0].trajectories[2:]))
    for stream, said in (
        (_stream("cut", 0, groups, said=5), "3 groups came where the header said 5"),
        (_stream("", 0, groups), "no request id"),
        (iter(list(_stream("x", 0, groups))[1:]), "must begin with its header"),
        (iter([*_stream("x", 0, groups), *_stream("x", 0, [])]), "only groups may follow"),
        (_stream("nan", 0, [poisoned]), f"group {groups[0].group_id} member 1 turn 0: reward nan is not within"),
    ):
        with pytest.raises(UserError, match=said):
            await _send(client, stream)
    assert (await client.status()).policy_version == 0
    assert (await client.train_step(0, groups)).policy_version == 1


async def test_an_id_is_of_one_kind_of_request(client: LearnerClient, groups: list[TrajectoryGroup]) -> None:
    """Another method's answer is none of ours."""
    taken = await client.snapshot(0, PublishKind.ADAPTER, request_id="same")
    assert await client.snapshot(0, PublishKind.ADAPTER, request_id="same") == taken
    with pytest.raises(UserError, match="is not in the run's store"):
        await client.restore(AdapterRef(0, "/etc", "0" * 64, "", "", 0), None, request_id="same")
    assert (await client.train_step(0, groups, request_id="same")).policy_version == 1


async def test_export_publish_restore_round(
    client: LearnerClient, groups: list[TrajectoryGroup], config: Config, tmp_path: Path
) -> None:
    """With a real checkpoint manager; and what cannot be restored is refused without harm."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config.model_dump_json())  # JSON is YAML
    async with service("tandem_checkpoint_manager", str(recipe)) as (_, address):
        manager = CheckpointClient(address)
        await client.train_step(0, groups)
        status = await client.status()
        [shard] = await client.export(1, PublishKind.ADAPTER, address)
        assert (shard.rank, shard.world_size, shard.version) == (0, 1, 1)
        adapter = await manager.publish(
            PublishKind.ADAPTER,
            1,
            world_size=1,
            base_model=status.base_model,
            adapter_config_json=status.adapter_config_json,
        )
        await client.train_step(1, groups)
        with pytest.raises(UserError, match="base model"):
            await client.restore(replace(adapter, base_model="f" * 64), None)
        with pytest.raises(UserError, match="version 5, adapter of 1"):
            await client.restore(adapter, replace(adapter, version=5))
        with pytest.raises(NotFound):
            await client.restore(replace(adapter, url=f"{adapter.url}-not-there"), None)
        for url in ("/etc", f"{adapter.url}/../../../..", f"file://{adapter.url}", "s3://bucket/adapter"):
            with pytest.raises(UserError, match="is not in the run's store"):
                await client.restore(replace(adapter, url=url), None)
            with pytest.raises(UserError, match="is not in the run's store"):
                await client.restore(adapter, replace(adapter, url=url))
        assert (await client.train_step(2, groups)).policy_version == 3
        assert await client.restore(adapter, None) == 1
        # back at version 1 with the same weights: the same shard
        assert await client.export(1, PublishKind.ADAPTER, address) == (shard,)
        await manager.close()
    with pytest.raises(Unavailable):
        await client.export(1, PublishKind.ADAPTER, address)
    assert (await client.train_step(1, groups)).policy_version == 2  # a failed export breaks nothing


async def test_taken_port_is_one_clear_line_and_leaves_nothing_behind(config: Config) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="taken"):
            await start(config, port=other.getsockname()[1])
    running = await start(config)
    await running.stop()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.path=/nowhere", "/nowhere does not exist"),
        ("rollout.top_p=0.9", "top_p"),
        ("learner.world_size=2", "rendezvous"),
        ("cluster.gpus=2", "no CUDA device"),
        ("learner.speed=3", "unknown key 'learner.speed'"),
    ],
)
def test_command_line_refuses_in_one_line(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config.model_dump_json())
    assert main([str(recipe), override]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not dist.is_initialized()


async def test_gap_between_engine_and_learner_is_warned_of(
    client: LearnerClient, groups: list[TrajectoryGroup], caplog: pytest.LogCaptureFixture
) -> None:
    """The logprobs of these groups are made up; a second service is told to expect as much."""
    metrics = (await client.train_step(0, groups)).metrics
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    said = record.getMessage()
    assert "version 0: engine and learner disagree on the sampled tokens' logprobs" in said
    assert f"{metrics['rollout_learner_logprob_gap_mean']:.1e} nats on average" in said


def test_gap_is_held_against_what_the_dtype_explains() -> None:
    def warning(mean: float, largest: float, dtype: str = "float32", **algo: float) -> str:
        tree = {"model": {"path": "x", "dtype": dtype}, "learner": {"algo": algo}}
        figures = {"rollout_learner_logprob_gap_mean": mean, "rollout_learner_logprob_gap_max": largest}
        return gap_warning(figures, Config.model_validate(tree))

    assert not warning(9e-5, 9e-4)
    assert "1.1e-04 nats on average" in warning(1.1e-4, 2e-4)
    assert "2.0e-03 at most" in warning(1e-5, 2e-3)
    assert not warning(1.9e-2, 0.19, "bfloat16")
    assert warning(2.1e-2, 0.19, "bfloat16")
    assert not warning(0.4, 4.0, gap_warning=0.5)
    assert not gap_warning({}, Config.model_validate({"model": {"path": "x"}}))  # supervised: no engine


async def test_recorded_trajectories_are_learned_by_supervision(
    config: Config, groups: list[TrajectoryGroup], caplog: pytest.LogCaptureFixture
) -> None:
    """Of any number and any version, where an RL step would refuse them."""
    one = replace(groups[0], trajectories=groups[0].trajectories[:1])
    turn = replace(one.trajectories[0].turns[0], policy_version=7)
    recorded = replace(one, trajectories=(replace(one.trajectories[0], turns=(turn,)),))
    settings = {**config.learner.model_dump(), "algo": {"loss": "sft"}}
    running = await start(Config.model_validate({**config.model_dump(), "learner": settings}))
    client = LearnerClient(running.address)
    result = await client.train_step(0, [recorded, groups[1]])
    assert result.metrics["trajectories_used"] == 5
    assert not caplog.records
    await client.close()
    await running.stop()


def test_skipped_updates_are_said(config: Config) -> None:
    figures = {"rollout_learner_logprob_gap_mean": 0.0, "skipped_updates": 1.0, "updates": 2.0}
    assert warnings(figures, config) == ["1 of 2 updates skipped: loss or gradient was not finite"]
    assert warnings({**figures, "skipped_updates": 0.0}, config) == []
