from tandem.rpc.gen.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutShardRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ShardHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ShardHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ShardHeader(_message.Message):
    __slots__ = ("shard", "spooled")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_FIELD_NUMBER: _ClassVar[int]
    shard: _common_pb2.ShardRef
    spooled: bool
    def __init__(self, shard: _Optional[_Union[_common_pb2.ShardRef, _Mapping]] = ..., spooled: _Optional[bool] = ...) -> None: ...

class PutShardResponse(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: _common_pb2.ShardRef
    def __init__(self, shard: _Optional[_Union[_common_pb2.ShardRef, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("request_id", "kind", "version", "world_size", "adapter_config_json", "base_model", "metadata_json")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    kind: _common_pb2.PublishKind
    version: int
    world_size: int
    adapter_config_json: str
    base_model: str
    metadata_json: str
    def __init__(self, request_id: _Optional[str] = ..., kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., version: _Optional[int] = ..., world_size: _Optional[int] = ..., adapter_config_json: _Optional[str] = ..., base_model: _Optional[str] = ..., metadata_json: _Optional[str] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.AdapterRef
    def __init__(self, adapter: _Optional[_Union[_common_pb2.AdapterRef, _Mapping]] = ...) -> None: ...

class GetAdapterRequest(_message.Message):
    __slots__ = ("kind", "version")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.PublishKind
    version: int
    def __init__(self, kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., version: _Optional[int] = ...) -> None: ...

class GetAdapterResponse(_message.Message):
    __slots__ = ("adapter", "metadata_json")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.AdapterRef
    metadata_json: str
    def __init__(self, adapter: _Optional[_Union[_common_pb2.AdapterRef, _Mapping]] = ..., metadata_json: _Optional[str] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.PublishKind
    def __init__(self, kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ...) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_common_pb2.AdapterRef]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_common_pb2.AdapterRef, _Mapping]]] = ...) -> None: ...

class DeleteAdapterRequest(_message.Message):
    __slots__ = ("request_id", "kind", "version")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    kind: _common_pb2.PublishKind
    version: int
    def __init__(self, request_id: _Optional[str] = ..., kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScoreAdapterRequest(_message.Message):
    __slots__ = ("request_id", "kind", "version", "scores")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    kind: _common_pb2.PublishKind
    version: int
    scores: _containers.ScalarMap[str, float]
    def __init__(self, request_id: _Optional[str] = ..., kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., version: _Optional[int] = ..., scores: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScoreAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("url", "latest", "publish_bytes", "publish_seconds", "problem", "mirror", "activity")
    URL_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    url: str
    latest: _containers.RepeatedCompositeFieldContainer[KindVersion]
    publish_bytes: int
    publish_seconds: float
    problem: str
    mirror: MirrorStatus
    activity: _common_pb2.Activity
    def __init__(self, url: _Optional[str] = ..., latest: _Optional[_Iterable[_Union[KindVersion, _Mapping]]] = ..., publish_bytes: _Optional[int] = ..., publish_seconds: _Optional[float] = ..., problem: _Optional[str] = ..., mirror: _Optional[_Union[MirrorStatus, _Mapping]] = ..., activity: _Optional[_Union[_common_pb2.Activity, _Mapping]] = ...) -> None: ...

class KindVersion(_message.Message):
    __slots__ = ("kind", "version")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.PublishKind
    version: int
    def __init__(self, kind: _Optional[_Union[_common_pb2.PublishKind, str]] = ..., version: _Optional[int] = ...) -> None: ...

class MirrorStatus(_message.Message):
    __slots__ = ("url", "durable", "backlog", "copy_bytes", "copy_seconds", "problem")
    URL_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    url: str
    durable: _containers.RepeatedCompositeFieldContainer[KindVersion]
    backlog: int
    copy_bytes: int
    copy_seconds: float
    problem: str
    def __init__(self, url: _Optional[str] = ..., durable: _Optional[_Iterable[_Union[KindVersion, _Mapping]]] = ..., backlog: _Optional[int] = ..., copy_bytes: _Optional[int] = ..., copy_seconds: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...
