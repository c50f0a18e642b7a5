from tandem.rpc.gen.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RolloutRequest(_message.Message):
    __slots__ = ("request_id", "policy_version", "env", "seeds", "group_size", "sampling", "context", "max_turns", "sampling_seed", "may_advance")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_SEED_FIELD_NUMBER: _ClassVar[int]
    MAY_ADVANCE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    policy_version: int
    env: str
    seeds: _containers.RepeatedScalarFieldContainer[int]
    group_size: int
    sampling: _common_pb2.Sampling
    context: _common_pb2.ContextPolicy
    max_turns: int
    sampling_seed: int
    may_advance: bool
    def __init__(self, request_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., env: _Optional[str] = ..., seeds: _Optional[_Iterable[int]] = ..., group_size: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., context: _Optional[_Union[_common_pb2.ContextPolicy, _Mapping]] = ..., max_turns: _Optional[int] = ..., sampling_seed: _Optional[int] = ..., may_advance: _Optional[bool] = ...) -> None: ...

class RolloutResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: _common_pb2.TrajectoryGroup
    def __init__(self, group: _Optional[_Union[_common_pb2.TrajectoryGroup, _Mapping]] = ...) -> None: ...

class PutShardRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ShardHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ShardHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ShardHeader(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: _common_pb2.ShardRef
    def __init__(self, shard: _Optional[_Union[_common_pb2.ShardRef, _Mapping]] = ...) -> None: ...

class PutShardResponse(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: _common_pb2.ShardRef
    def __init__(self, shard: _Optional[_Union[_common_pb2.ShardRef, _Mapping]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("request_id", "adapter", "pushed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    adapter: _common_pb2.AdapterRef
    pushed: PushedShards
    def __init__(self, request_id: _Optional[str] = ..., adapter: _Optional[_Union[_common_pb2.AdapterRef, _Mapping]] = ..., pushed: _Optional[_Union[PushedShards, _Mapping]] = ...) -> None: ...

class PushedShards(_message.Message):
    __slots__ = ("world_size", "adapter_config_json", "metadata_json")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    adapter_config_json: str
    metadata_json: str
    def __init__(self, world_size: _Optional[int] = ..., adapter_config_json: _Optional[str] = ..., metadata_json: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("policy_version", "sha256", "probe_logprob", "seconds")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    PROBE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    sha256: str
    probe_logprob: float
    seconds: float
    def __init__(self, policy_version: _Optional[int] = ..., sha256: _Optional[str] = ..., probe_logprob: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ("freed",)
    FREED_FIELD_NUMBER: _ClassVar[int]
    freed: bool
    def __init__(self, freed: _Optional[bool] = ...) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("healthy", "asleep", "policy_version", "base_model", "max_lora_rank", "episodes_running", "episodes_done", "turns_done", "tokens_done", "activity")
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    EPISODES_RUNNING_FIELD_NUMBER: _ClassVar[int]
    EPISODES_DONE_FIELD_NUMBER: _ClassVar[int]
    TURNS_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    healthy: bool
    asleep: bool
    policy_version: int
    base_model: str
    max_lora_rank: int
    episodes_running: int
    episodes_done: int
    turns_done: int
    tokens_done: int
    activity: _common_pb2.Activity
    def __init__(self, healthy: _Optional[bool] = ..., asleep: _Optional[bool] = ..., policy_version: _Optional[int] = ..., base_model: _Optional[str] = ..., max_lora_rank: _Optional[int] = ..., episodes_running: _Optional[int] = ..., episodes_done: _Optional[int] = ..., turns_done: _Optional[int] = ..., tokens_done: _Optional[int] = ..., activity: _Optional[_Union[_common_pb2.Activity, _Mapping]] = ...) -> None: ...
