"""Dataclasses <-> messages. Decoding checks what a peer could get wrong and raises UserError naming it."""

from __future__ import annotations

import re
from typing import Any

from tandem.rpc.gen.common.v1 import common_pb2 as pb
from tandem.rpc.gen.learner.v1 import learner_pb2 as learner_pb
from tandem.rpc.gen.rollout.v1 import rollout_pb2 as rollout_pb
from tandem.types import (
    AdapterRef,
    ContextPolicy,
    FinishReason,
    PublishKind,
    Pushed,
    Sampling,
    ShardRef,
    StopReason,
    TrainResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
    UserError,
)

_ADDRESS = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
_STOP: dict[StopReason, Any] = {reason: pb.StopReason.Value(f"STOP_REASON_{reason.name}") for reason in StopReason}
_FINISH: dict[FinishReason, Any] = {
    reason: pb.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason
}
_KIND: dict[PublishKind, Any] = {kind: pb.PublishKind.Value(f"PUBLISH_KIND_{kind.name}") for kind in PublishKind}
_STOP_BACK = {value: reason for reason, value in _STOP.items()}
_FINISH_BACK = {value: reason for reason, value in _FINISH.items()}
_KIND_BACK = {value: kind for kind, value in _KIND.items()}


def encode_kind(kind: PublishKind) -> Any:
    """To the wire."""
    return _KIND[kind]


def decode_kind(value: int) -> PublishKind:
    """From the wire."""
    return _known(_KIND_BACK, value, "publish kind")


def encode_sampling(sampling: Sampling) -> pb.Sampling:
    """To the wire."""
    return pb.Sampling(temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_tokens)


def decode_sampling(message: pb.Sampling) -> Sampling:
    """From the wire; the temperature is at least 0, `top_p` in (0, 1], `max_tokens` at least 1."""
    if not (message.temperature >= 0 and 0 < message.top_p <= 1 and message.max_tokens >= 1):
        raise UserError(
            f"sampling: temperature {message.temperature}, top_p {message.top_p}, "
            f"max_tokens {message.max_tokens}: out of range"
        )
    return Sampling(message.temperature, message.top_p, message.max_tokens)


def encode_context(context: ContextPolicy) -> pb.ContextPolicy:
    """To the wire."""
    return pb.ContextPolicy(window=context.window)


def decode_context(message: pb.ContextPolicy) -> ContextPolicy:
    """From the wire."""
    return ContextPolicy(message.window)


def encode_shard(shard: ShardRef) -> pb.ShardRef:
    """To the wire."""
    return pb.ShardRef(
        kind=_KIND[shard.kind],
        version=shard.version,
        rank=shard.rank,
        world_size=shard.world_size,
        sha256=shard.sha256,
        size=shard.size,
        generation=shard.generation,
    )


def decode_shard(message: pb.ShardRef) -> ShardRef:
    """From the wire; the rank must lie below the world size."""
    if not message.rank < message.world_size:
        raise UserError(f"shard: rank {message.rank} of world size {message.world_size} cannot be")
    return ShardRef(
        decode_kind(message.kind),
        message.version,
        message.rank,
        message.world_size,
        message.sha256,
        message.size,
        message.generation,
    )


def check_address(address: str) -> str:
    """host:port from the wire. Raises UserError for anything else: gRPC would take a socket's path, or a scheme."""
    if not _ADDRESS.fullmatch(address):
        raise UserError(f"{address[:100]!r} is no host:port")
    return address


def encode_adapter(ref: AdapterRef) -> pb.AdapterRef:
    """To the wire."""
    return pb.AdapterRef(
        version=ref.version, url=ref.url, sha256=ref.sha256, name=ref.name, base_model=ref.base_model, size=ref.size
    )


def decode_adapter(message: pb.AdapterRef) -> AdapterRef:
    """From the wire."""
    return AdapterRef(message.version, message.url, message.sha256, message.name, message.base_model, message.size)


def encode_pushed(pushed: Pushed) -> rollout_pb.PushedShards:
    """To the wire."""
    return rollout_pb.PushedShards(
        world_size=pushed.world_size,
        adapter_config_json=pushed.adapter_config_json,
        metadata_json=pushed.metadata_json,
    )


def decode_pushed(message: rollout_pb.PushedShards) -> Pushed:
    """From the wire."""
    return Pushed(message.world_size, message.adapter_config_json, message.metadata_json)


def encode_train_result(result: TrainResult) -> learner_pb.TrainStepResponse:
    """To the wire."""
    advantages = {group: learner_pb.Advantages(by_member=members) for group, members in result.advantages.items()}
    return learner_pb.TrainStepResponse(
        policy_version=result.policy_version, metrics=result.metrics, advantages=advantages
    )


def decode_train_result(message: learner_pb.TrainStepResponse) -> TrainResult:
    """From the wire."""
    advantages = {group: dict(found.by_member) for group, found in message.advantages.items()}
    return TrainResult(message.policy_version, dict(message.metrics), advantages)


def encode_group(group: TrajectoryGroup) -> pb.TrajectoryGroup:
    """To the wire; ids that a prompt shares with the turn before it are not sent again."""
    return pb.TrajectoryGroup(
        group_id=group.group_id,
        env=group.env,
        seed=group.seed,
        policy_version=group.policy_version,
        trajectories=[_encode_trajectory(trajectory) for trajectory in group.trajectories],
        images=group.images,
        seconds=group.seconds,
    )


def decode_group(message: pb.TrajectoryGroup) -> TrajectoryGroup:
    """From the wire; every image a turn names must be in the group, every completion id have its logprob."""
    images = dict(message.images)
    return TrajectoryGroup(
        group_id=message.group_id,
        env=message.env,
        seed=message.seed,
        policy_version=message.policy_version,
        trajectories=tuple(_decode_trajectory(item, message.group_id, images) for item in message.trajectories),
        images=images,
        seconds=message.seconds,
    )


def group_to_bytes(group: TrajectoryGroup) -> bytes:
    """As protobuf bytes, for what does not travel by gRPC."""
    return encode_group(group).SerializeToString()


def group_from_bytes(data: bytes) -> TrajectoryGroup:
    """The inverse of `group_to_bytes`."""
    return decode_group(pb.TrajectoryGroup.FromString(data))


def _encode_trajectory(trajectory: Trajectory) -> pb.Trajectory:
    turns, before = [], ()
    for turn in trajectory.turns:
        prefix = len(before) if turn.prompt_ids[: len(before)] == before else 0
        turns.append(_encode_turn(turn, prefix))
        before = turn.prompt_ids + turn.completion_ids
    return pb.Trajectory(
        member=trajectory.member,
        turns=turns,
        stop_reason=_STOP[trajectory.stop_reason],
        task_reward=trajectory.task_reward,
        error=trajectory.error,
        metrics=trajectory.metrics,
    )


def _encode_turn(turn: Turn, prefix: int) -> pb.Turn:
    return pb.Turn(
        prompt_prefix_length=prefix,
        prompt_suffix_ids=turn.prompt_ids[prefix:],
        completion_ids=turn.completion_ids,
        rollout_logprobs=turn.rollout_logprobs,
        images=turn.images,
        policy_version=turn.policy_version,
        text=turn.text,
        feedback=turn.feedback,
        reward=turn.reward,
        finish=_FINISH[turn.finish],
        parsed=turn.parsed,
    )


def _decode_trajectory(message: pb.Trajectory, group: str, images: dict[str, bytes]) -> Trajectory:
    turns: list[Turn] = []
    before: tuple[int, ...] = ()
    for item in message.turns:
        where = f"group {group} member {message.member} turn {len(turns)}"
        turns.append(_decode_turn(item, before, where, images))
        before = turns[-1].prompt_ids + turns[-1].completion_ids
    return Trajectory(
        member=message.member,
        turns=tuple(turns),
        stop_reason=_known(_STOP_BACK, message.stop_reason, "stop reason"),
        task_reward=message.task_reward,
        error=message.error,
        metrics=dict(message.metrics),
    )


def _decode_turn(message: pb.Turn, before: tuple[int, ...], where: str, images: dict[str, bytes]) -> Turn:
    if message.prompt_prefix_length > len(before):
        raise UserError(f"{where}: prompt shares {message.prompt_prefix_length} ids with a turn of {len(before)}")
    if len(message.completion_ids) != len(message.rollout_logprobs):
        raise UserError(
            f"{where}: {len(message.completion_ids)} completion ids but {len(message.rollout_logprobs)} logprobs"
        )
    if missing := [name for name in message.images if name not in images]:
        raise UserError(f"{where}: image {missing[0]} is not in the group")
    return Turn(
        prompt_ids=before[: message.prompt_prefix_length] + tuple(message.prompt_suffix_ids),
        completion_ids=tuple(message.completion_ids),
        rollout_logprobs=tuple(message.rollout_logprobs),
        images=tuple(message.images),
        policy_version=message.policy_version,
        text=message.text,
        feedback=message.feedback,
        reward=message.reward,
        finish=_known(_FINISH_BACK, message.finish, "finish reason"),
        parsed=message.parsed,
    )


def _known(table: dict, value: int, what: str):
    if value not in table:
        raise UserError(f"{what} {value} is not known here; install the same Tandem release on both sides")
    return table[value]
