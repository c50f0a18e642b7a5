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
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: _common_pb2.ShardRef
    def __init__(self, shard: _Optional[_Union[_common_pb2.ShardRef, _Mapping]] = ...) -> None: ...

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
