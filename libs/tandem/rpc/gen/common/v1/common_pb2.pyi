from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_TERMINATED: _ClassVar[StopReason]
    STOP_REASON_TURN_LIMIT: _ClassVar[StopReason]
    STOP_REASON_CONTEXT_LIMIT: _ClassVar[StopReason]
    STOP_REASON_ENV_ERROR: _ClassVar[StopReason]
    STOP_REASON_ENGINE_ERROR: _ClassVar[StopReason]
    STOP_REASON_DEADLINE: _ClassVar[StopReason]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class PublishKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUBLISH_KIND_UNSPECIFIED: _ClassVar[PublishKind]
    PUBLISH_KIND_ADAPTER: _ClassVar[PublishKind]
    PUBLISH_KIND_STATE: _ClassVar[PublishKind]
    PUBLISH_KIND_MODEL: _ClassVar[PublishKind]
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_TERMINATED: StopReason
STOP_REASON_TURN_LIMIT: StopReason
STOP_REASON_CONTEXT_LIMIT: StopReason
STOP_REASON_ENV_ERROR: StopReason
STOP_REASON_ENGINE_ERROR: StopReason
STOP_REASON_DEADLINE: StopReason
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
PUBLISH_KIND_UNSPECIFIED: PublishKind
PUBLISH_KIND_ADAPTER: PublishKind
PUBLISH_KIND_STATE: PublishKind
PUBLISH_KIND_MODEL: PublishKind

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class ContextPolicy(_message.Message):
    __slots__ = ("window",)
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    window: int
    def __init__(self, window: _Optional[int] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("prompt_prefix_length", "prompt_suffix_ids", "completion_ids", "rollout_logprobs", "images", "policy_version", "text", "feedback", "reward", "finish", "parsed")
    PROMPT_PREFIX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SUFFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_IDS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PARSED_FIELD_NUMBER: _ClassVar[int]
    prompt_prefix_length: int
    prompt_suffix_ids: _containers.RepeatedScalarFieldContainer[int]
    completion_ids: _containers.RepeatedScalarFieldContainer[int]
    rollout_logprobs: _containers.RepeatedScalarFieldContainer[float]
    images: _containers.RepeatedScalarFieldContainer[str]
    policy_version: int
    text: str
    feedback: str
    reward: float
    finish: FinishReason
    parsed: bool
    def __init__(self, prompt_prefix_length: _Optional[int] = ..., prompt_suffix_ids: _Optional[_Iterable[int]] = ..., completion_ids: _Optional[_Iterable[int]] = ..., rollout_logprobs: _Optional[_Iterable[float]] = ..., images: _Optional[_Iterable[str]] = ..., policy_version: _Optional[int] = ..., text: _Optional[str] = ..., feedback: _Optional[str] = ..., reward: _Optional[float] = ..., finish: _Optional[_Union[FinishReason, str]] = ..., parsed: _Optional[bool] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("member", "turns", "stop_reason", "task_reward", "error", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    TASK_REWARD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    member: int
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    stop_reason: StopReason
    task_reward: float
    error: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, member: _Optional[int] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., task_reward: _Optional[float] = ..., error: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TrajectoryGroup(_message.Message):
    __slots__ = ("group_id", "env", "seed", "policy_version", "trajectories", "images", "seconds")
    class ImagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    env: str
    seed: int
    policy_version: int
    trajectories: _containers.RepeatedCompositeFieldContainer[Trajectory]
    images: _containers.ScalarMap[str, bytes]
    seconds: float
    def __init__(self, group_id: _Optional[str] = ..., env: _Optional[str] = ..., seed: _Optional[int] = ..., policy_version: _Optional[int] = ..., trajectories: _Optional[_Iterable[_Union[Trajectory, _Mapping]]] = ..., images: _Optional[_Mapping[str, bytes]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("work", "waits")
    WORK_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    work: int
    waits: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, work: _Optional[int] = ..., waits: _Optional[_Iterable[str]] = ...) -> None: ...

class ShardRef(_message.Message):
    __slots__ = ("kind", "version", "rank", "world_size", "sha256", "size", "generation")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    kind: PublishKind
    version: int
    rank: int
    world_size: int
    sha256: str
    size: int
    generation: int
    def __init__(self, kind: _Optional[_Union[PublishKind, str]] = ..., version: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class AdapterRef(_message.Message):
    __slots__ = ("version", "url", "sha256", "name", "base_model", "size")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    version: int
    url: str
    sha256: str
    name: str
    base_model: str
    size: int
    def __init__(self, version: _Optional[int] = ..., url: _Optional[str] = ..., sha256: _Optional[str] = ..., name: _Optional[str] = ..., base_model: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
