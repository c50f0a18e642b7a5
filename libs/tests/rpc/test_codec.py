"""Messages carry dataclasses whole, and send a growing transcript once."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.rpc import codec
from tandem.rpc.gen.common.v1 import common_pb2 as pb
from tandem.types import (
    AdapterRef,
    FinishReason,
    PublishKind,
    ShardRef,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
    UserError,
)

ids = st.lists(st.integers(0, 2**31), min_size=1, max_size=6).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    completion = draw(ids)
    return Turn(
        prompt_ids=draw(ids),
        completion_ids=completion,
        rollout_logprobs=tuple(draw(st.floats(-20, 0, width=32)) for _ in completion),
        images=draw(st.sampled_from([(), ("a",), ("a", "b")])),
        policy_version=draw(st.integers(0, 9)),
        text=draw(st.text(max_size=5)),
        feedback=draw(st.text(max_size=5)),
        reward=draw(st.floats(-1, 1)),
        finish=draw(st.sampled_from(FinishReason)),
        parsed=draw(st.booleans()),
    )


@st.composite
def groups(draw: st.DrawFn) -> TrajectoryGroup:
    trajectories = tuple(
        Trajectory(
            member,
            tuple(draw(st.lists(turns(), max_size=3))),
            draw(st.sampled_from(StopReason)),
            draw(st.floats(0, 1)),
            "",
            {"n": 2.0},
        )
        for member in range(draw(st.integers(0, 3)))
    )
    return TrajectoryGroup(
        "g", "maze2d:tiny", draw(st.integers(0, 2**63)), 3, trajectories, {"a": b"\x89PNG", "b": b""}, 0.5
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(groups())
def test_a_group_comes_back_equal(group: TrajectoryGroup) -> None:
    assert codec.decode_group(pb.TrajectoryGroup.FromString(codec.encode_group(group).SerializeToString())) == group


def test_a_prompt_that_extends_the_turn_before_sends_only_its_own_ids() -> None:
    first = Turn((1, 2, 3), (4, 5), (-0.5, -0.5), (), 0, "", "", 0.0, FinishReason.STOP)
    second = Turn((1, 2, 3, 4, 5, 6), (7,), (-0.5,), (), 0, "", "", 0.0, FinishReason.STOP)
    message = codec.encode_group(
        TrajectoryGroup("g", "e", 0, 0, (Trajectory(0, (first, second), StopReason.TERMINATED, 1.0),), {})
    )
    assert message.trajectories[0].turns[1].prompt_prefix_length == 5
    assert list(message.trajectories[0].turns[1].prompt_suffix_ids) == [6]


def test_references_come_back_equal() -> None:
    shard = ShardRef(PublishKind.STATE, 3, 1, 2, "ab", 10, 4)
    adapter = AdapterRef(3, "/x", "cd", "tandem-v3", "ef", 11)
    assert codec.decode_shard(codec.encode_shard(shard)) == shard
    assert codec.decode_adapter(codec.encode_adapter(adapter)) == adapter


def wire_group(**turn: object) -> pb.TrajectoryGroup:
    fields = {"completion_ids": [1], "rollout_logprobs": [-1.0], "finish": pb.FINISH_REASON_STOP, **turn}
    trajectory = pb.Trajectory(turns=[pb.Turn(**fields)], stop_reason=pb.STOP_REASON_TERMINATED)
    return pb.TrajectoryGroup(group_id="g7", trajectories=[trajectory])


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"rollout_logprobs": []}, "group g7 member 0 turn 0: 1 completion ids but 0 logprobs"),
        ({"images": ["nope"]}, "image nope is not in the group"),
        ({"prompt_prefix_length": 4}, "prompt shares 4 ids with a turn of 0"),
        ({"finish": 99}, "finish reason 99 is not known here"),
    ],
)
def test_what_a_peer_gets_wrong_is_named(turn: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        codec.decode_group(wire_group(**turn))


def test_impossible_sampling_and_shards_are_refused() -> None:
    with pytest.raises(UserError, match="out of range"):
        codec.decode_sampling(pb.Sampling(temperature=1, top_p=0, max_tokens=5))
    with pytest.raises(UserError, match="out of range"):
        codec.decode_sampling(pb.Sampling(temperature=float("nan"), top_p=1, max_tokens=5))
    with pytest.raises(UserError, match="rank 2 of world size 2"):
        codec.decode_shard(pb.ShardRef(kind=pb.PUBLISH_KIND_ADAPTER, rank=2, world_size=2))
