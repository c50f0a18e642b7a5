from tandem.rpc.gen.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrainStepRequest(_message.Message):
    __slots__ = ("header", "group")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    header: TrainStepHeader
    group: _common_pb2.TrajectoryGroup
    def __init__(self, header: _Optional[_Union[TrainStepHeader, _Mapping]] = ..., group: _Optional[_Union[_common_pb2.TrajectoryGroup, _Mapping]] = ...) -> None: ...

class TrainStepHeader(_message.Message):
    __slots__ = ("request_id", "expected_version", "groups")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    expected_version: int
    groups: int
    def __init__(self, request_id: _Optional[str] = ..., expected_version: _Optional[int] = ..., groups: _Optional[int] = ...) -> None: ...

class TrainStepResponse(_message.Message):
    __slots__ = ("policy_version", "metrics", "advantages")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class AdvantagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Advantages
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Advantages, _Mapping]] = ...) -> None: ...
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    metrics: _containers.ScalarMap[str, float]
    advantages: _containers.MessageMap[str, Advantages]
    def __init__(self, policy_version: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., advantages: _Optional[_Mapping[str, Advantages]] = ...) -> None: ...

class Advantages(_message.Message):
    __slots__ = ("by_member",)
    class ByMemberEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    BY_MEMBER_FIELD_NUMBER: _ClassVar[int]
    by_member: _containers.ScalarMap[int, float]
    def __init__(self, by_member: _Optional[_Mapping[int, float]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("request_id", "expected_version", "kind")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    expected_version: int
    kind: _common_pb2.PublishKind
    def __init__(self, request_id: _Optional[str] = ..., expected_version: _Optional[int] = ..., kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("bytes", "seconds")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    seconds: float
    def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("request_id", "expected_version", "kind", "checkpoint_address", "replica_addresses")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    expected_version: int
    kind: _common_pb2.PublishKind
    checkpoint_address: str
    replica_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., expected_version: _Optional[int] = ..., kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., checkpoint_address: _Optional[str] = ..., replica_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("shards", "missed")
    class MissedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[_common_pb2.ShardRef]
    missed: _containers.ScalarMap[str, str]
    def __init__(self, shards: _Optional[_Iterable[_Union[_common_pb2.ShardRef, _Mapping]]] = ..., missed: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("request_id", "adapter", "state")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    adapter: _common_pb2.AdapterRef
    state: _common_pb2.AdapterRef
    def __init__(self, request_id: _Optional[str] = ..., adapter: _Optional[_Union[_common_pb2.AdapterRef, _Mapping]] = ..., state: _Optional[_Union[_common_pb2.AdapterRef, _Mapping]] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("policy_version", "world_size", "base_model", "trainable_parameters", "adapter_config_json", "activity")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    world_size: int
    base_model: str
    trainable_parameters: int
    adapter_config_json: str
    activity: _common_pb2.Activity
    def __init__(self, policy_version: _Optional[int] = ..., world_size: _Optional[int] = ..., base_model: _Optional[str] = ..., trainable_parameters: _Optional[int] = ..., adapter_config_json: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, _Mapping]] = ...) -> None: ...
