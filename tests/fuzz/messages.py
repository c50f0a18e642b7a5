"""Messages of any kind, built from their descriptors: what a peer could say that means no good, or no longer speaks as
we do. Values lie at the edges of their types, or look as if they meant something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

TEXTS = (
    "",
    "r1",
    "maze2d:tiny",
    "maze2d:tiny?style=night",
    "os:path",
    "a" * 64,
    "{}",
    '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}',
    "[" * 5000,
    "/etc/passwd",
    "../../../etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "unix:/tmp/x",
    "127.0.0.1:1",
    "\0",
    "é" * 300,
    "x" * 20_000,
)
BYTES = (b"", b"\x89PNG\r\n\x1a\n", b"x" * 2**20, b"\x00" * 9, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}")
INTEGERS = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
MOST = {  # above these, the smaller of the numbers: what is asked for would only take its time
    "seeds": 3,
    "group_size": 3,
    "max_turns": 3,
    "max_tokens": 8,
}
KIND = FieldDescriptor
WHOLE = {
    KIND.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    KIND.CPPTYPE_UINT32: (0, 2**32 - 1),
    KIND.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    KIND.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def messages(descriptor: Descriptor, depth: int = 4) -> st.SearchStrategy[Message]:
    """Messages of a type; what is nested deeper than `depth` is absent."""
    fields = [field for field in descriptor.fields if depth or field.message_type is None]
    given = st.fixed_dictionaries({}, optional={field.name: _values(field, depth) for field in fields})
    return given.map(lambda values: _built(descriptor, values))


def _built(descriptor: Descriptor, values: Mapping[str, Any]) -> Message:
    """One of each oneof counts: the last that is given."""
    return GetMessageClass(descriptor)(**values)


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = (kind.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(_one(key, depth), _one(value, depth), max_size=3)
    one = _one(field, depth)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _one(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99, 2**31 - 1])
    if field.cpp_type in WHOLE:
        least, most = WHOLE[field.cpp_type]
        edges = [number for number in (-1, *INTEGERS) if least <= number <= min(most, MOST.get(field.name, most))]
        return st.sampled_from(edges) | st.integers(least, min(most, MOST.get(field.name, most)))
    if field.cpp_type in (KIND.CPPTYPE_DOUBLE, KIND.CPPTYPE_FLOAT):
        return st.sampled_from(
            [number for number in FLOATS if field.cpp_type == KIND.CPPTYPE_DOUBLE or abs(number) != 1e308]
        )
    if field.cpp_type == KIND.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == KIND.TYPE_BYTES:
        return st.sampled_from(BYTES) | st.binary(max_size=100)
    return st.sampled_from(TEXTS) | st.text(max_size=20)
