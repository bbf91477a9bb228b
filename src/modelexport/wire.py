"""ONNX files in the protobuf wire format: their nodes read and replaced without parsing the weights.

Parsing and writing a model takes as long as its weights are large, though tagging it changes only nodes. Here fields
are told apart by their headers alone; whatever is not a node is copied as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

_LENGTH_DELIMITED = 2
_MODEL_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_MODEL_METADATA = onnx.ModelProto.DESCRIPTOR.fields_by_name["metadata_props"].number
_GRAPH_NODE = onnx.GraphProto.DESCRIPTOR.fields_by_name["node"].number
_GRAPH_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_TENSOR_NAME = onnx.TensorProto.DESCRIPTOR.fields_by_name["name"].number
_TENSOR_RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
_TENSOR_CONTENT = frozenset(
    onnx.TensorProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
)
# Initializers up to this size are kept whole in a skeleton.
_SMALL_BYTES = 4096


def read_skeleton(data: memoryview) -> onnx.ModelProto:
    """The model with everything but the content of its large weights."""
    model = bytearray()
    for number, field, content in _fields(data):
        model += _delimited(number, _without_weights(content)) if number == _MODEL_GRAPH else field
    return onnx.load_model_from_string(bytes(model))


def _without_weights(graph: memoryview) -> bytearray:
    kept = bytearray()
    for number, field, content in _fields(graph):
        if number == _GRAPH_INITIALIZER and len(content) > _SMALL_BYTES:
            head = bytearray()
            for part, part_field, _ in _fields(content):
                if part not in _TENSOR_CONTENT:
                    head += part_field
            kept += _delimited(number, head)
        else:
            kept += field
    return kept


def replace_nodes(data: memoryview, tagged: onnx.ModelProto) -> Iterator[bytes | memoryview]:
    """The file with the nodes of its main graph and its metadata from `tagged`, piece by piece.

    Args:
        data: The file.
        tagged: What `read_skeleton` made of it, with nodes and metadata changed, none added or taken away.
    """
    for number, field, content in _fields(data):
        if number == _MODEL_METADATA:
            continue
        if number != _MODEL_GRAPH:
            yield field
            continue
        nodes = iter(tagged.graph.node)
        pieces = [
            _delimited(part, next(nodes).SerializeToString()) if part == _GRAPH_NODE else part_field
            for part, part_field, _ in _fields(content)
        ]
        yield _header(number, sum(len(piece) for piece in pieces))
        yield from pieces
    for entry in tagged.metadata_props:
        yield _delimited(_MODEL_METADATA, entry.SerializeToString())


def fill_initializers(data: memoryview, sizes: Mapping[str, int]) -> Iterator[bytes | memoryview | str]:
    """A file whose weights were left empty, piece by piece; a name stands for the content of that weight.

    Args:
        data: The file, in which the weights of `sizes` have an empty content.
        sizes: How many bytes the content of each has.
    """
    for number, field, content in _fields(data):
        if number != _MODEL_GRAPH:
            yield field
            continue
        pieces: list[bytes | memoryview | str] = []
        for part, part_field, part_content in _fields(content):
            if part != _GRAPH_INITIALIZER:
                pieces.append(part_field)
            else:
                pieces.extend(_filled(part_content, sizes))
        yield _header(number, sum(sizes[p] if isinstance(p, str) else len(p) for p in pieces))
        yield from pieces


def _filled(tensor: memoryview, sizes: Mapping[str, int]) -> list[bytes | memoryview | str]:
    parts = list(_fields(tensor))
    name = next((bytes(content).decode() for number, _, content in parts if number == _TENSOR_NAME), "")
    if name not in sizes:
        return [_delimited(_GRAPH_INITIALIZER, bytes(tensor))]
    before = b"".join(field for number, field, _ in parts if number < _TENSOR_RAW_DATA)
    after = b"".join(field for number, field, _ in parts if number > _TENSOR_RAW_DATA)
    raw = _header(_TENSOR_RAW_DATA, sizes[name])
    length = len(before) + len(raw) + sizes[name] + len(after)
    return [_header(_GRAPH_INITIALIZER, length) + before + raw, name, after]


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Number, whole field and content of each field of a message."""
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        begin = position
        if kind == _LENGTH_DELIMITED:
            length, begin = _varint(data, position)
            position = begin + length
        elif kind == 0:
            _, position = _varint(data, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {start} is not used by ONNX")
        if position > len(data):
            raise ValueError(f"the field at byte {start} ends beyond its message")
        yield number, data[start:position], data[begin:position]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError(f"the number at byte {position} does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _header(number: int, length: int) -> bytes:
    return _encode(number << 3 | _LENGTH_DELIMITED) + _encode(length)


def _delimited(number: int, content: bytes | bytearray) -> bytes:
    return _header(number, len(content)) + bytes(content)


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
