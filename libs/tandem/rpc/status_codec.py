"""What services say of themselves <- messages; and what a process is busy with, to the wire."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.rpc.codec import decode_kind
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as checkpoint_pb
from tandem.rpc.gen.common.v1 import common_pb2 as pb
from tandem.rpc.gen.learner.v1 import learner_pb2 as learner_pb
from tandem.rpc.gen.rollout.v1 import rollout_pb2 as rollout_pb
from tandem.runtime import WAITS
from tandem.types import (
    Activity,
    CheckpointStatus,
    LearnerStatus,
    MirrorStatus,
    PublishKind,
    RolloutStatus,
)


def encode_activity() -> pb.Activity:
    """This process's own, to the wire."""
    return pb.Activity(work=WAITS.work, waits=WAITS.lines())


def _activity(message: pb.Activity) -> Activity:
    return Activity(message.work, tuple(message.waits))


def decode_rollout_status(reply: rollout_pb.GetStatusResponse) -> RolloutStatus:
    """From the wire."""
    return RolloutStatus(
        healthy=reply.healthy,
        asleep=reply.asleep,
        policy_version=reply.policy_version,
        base_model=reply.base_model,
        max_lora_rank=reply.max_lora_rank,
        episodes_running=reply.episodes_running,
        episodes_done=reply.episodes_done,
        turns_done=reply.turns_done,
        tokens_done=reply.tokens_done,
        activity=_activity(reply.activity),
    )


def decode_learner_status(reply: learner_pb.GetStatusResponse) -> LearnerStatus:
    """From the wire."""
    return LearnerStatus(
        policy_version=reply.policy_version,
        world_size=reply.world_size,
        base_model=reply.base_model,
        trainable_parameters=reply.trainable_parameters,
        adapter_config_json=reply.adapter_config_json,
        activity=_activity(reply.activity),
    )


def decode_checkpoint_status(reply: checkpoint_pb.GetStatusResponse) -> CheckpointStatus:
    """From the wire."""
    mirror = reply.mirror
    return CheckpointStatus(
        url=reply.url,
        latest=_versions(reply.latest),
        publish_bytes=reply.publish_bytes,
        publish_seconds=reply.publish_seconds,
        problem=reply.problem,
        mirror=MirrorStatus(
            url=mirror.url,
            durable=_versions(mirror.durable),
            backlog=mirror.backlog,
            copy_bytes=mirror.copy_bytes,
            copy_seconds=mirror.copy_seconds,
            problem=mirror.problem,
        )
        if reply.HasField("mirror")
        else None,
        activity=_activity(reply.activity),
    )


def _versions(found: Iterable[checkpoint_pb.KindVersion]) -> dict[PublishKind, int]:
    return {decode_kind(item.kind): item.version for item in found}
