"""ONNX files in the protobuf wire format: nodes are read and replaced without parsing the weights.

Parsing and serializing a model costs time in proportion to its weights, though tagging changes only nodes. Here fields
are found by their headers alone, and whatever is not a node is copied unchanged.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO

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

_MODEL_FUNCTION = onnx.ModelProto.DESCRIPTOR.fields_by_name["functions"].number
_FUNCTION_NODE = onnx.FunctionProto.DESCRIPTOR.fields_by_name["node"].number
_NODE_ATTRIBUTE = onnx.NodeProto.DESCRIPTOR.fields_by_name["attribute"].number
_ATTRIBUTE_GRAPH = onnx.AttributeProto.DESCRIPTOR.fields_by_name["g"].number
_ATTRIBUTE_GRAPHS = onnx.AttributeProto.DESCRIPTOR.fields_by_name["graphs"].number
# For each kind of message, its fields that can contain nodes, and their kinds.
_CONTAINERS = {
    "model": {_MODEL_GRAPH: "graph", _MODEL_FUNCTION: "function"},
    "graph": {_GRAPH_NODE: "node"},
    "function": {_FUNCTION_NODE: "node"},
    "node": {_NODE_ATTRIBUTE: "attribute"},
    "attribute": {_ATTRIBUTE_GRAPH: "graph", _ATTRIBUTE_GRAPHS: "graph"},
}
# The byte that every attribute of a node begins with.
_ATTRIBUTE_MARK = bytes([_NODE_ATTRIBUTE << 3 | _LENGTH_DELIMITED])
_VARINT_BYTES = 10
# How many fields are looked at: some for each node, and for the weights and types of tensors beside them.
_FIELDS_PER_NODE, _OTHER_FIELDS = 20, 2_000_000
# Fields of numbers, which a list of numbers in an attribute has by the million: a varint, or four or eight bytes.
_NUMBERS = re.compile(
    rb"(?:[%b][\x80-\xff]{0,9}+[\x00-\x7f]|[%b].{4}|[%b].{8})*+"
    % tuple(re.escape(bytes(tag for tag in range(8, 0x80) if tag & 7 == kind)) for kind in (0, 5, 1)),
    re.DOTALL,
)


def scan(data: bytes, most_nodes: int, deepest: int) -> tuple[int, int]:
    """Walk over the headers of a file's fields, and stop as soon as a limit is passed.

    A parser would create an object for every two bytes of a hostile file; this creates none.

    Returns:
        The number of nodes in all graphs, and the nesting depth of subgraphs.

    Raises:
        ValueError: The bytes are not a protobuf message, or have far more fields than that many nodes need.
    """
    nodes = nesting = 0
    fields = _FIELDS_PER_NODE * most_nodes + _OTHER_FIELDS
    # Begin, end, kind, and the number of enclosing subgraphs.
    waiting = [(0, len(data), "model", 0)]
    while waiting and nodes <= most_nodes and nesting <= deepest:
        start, end, kind, depth = waiting.pop()
        containers = _CONTAINERS[kind]
        for number, _, begin, finish in _spans(data, start, end, skip=kind == "attribute"):
            fields -= 1
            if fields < 0:
                raise ValueError(f"it has more fields than {most_nodes} nodes can have")
            inner = containers.get(number)
            if inner is None:
                continue
            if inner == "node":
                nodes += 1
                if nodes > most_nodes:
                    break
                # Most nodes have no attribute; one search finds those.
                if data.find(_ATTRIBUTE_MARK, begin, finish) >= 0:
                    waiting.append((begin, finish, inner, depth))
            else:
                deeper = depth + (kind == "attribute")
                nesting = max(nesting, deeper)
                waiting.append((begin, finish, inner, deeper))
    return nodes, nesting


@dataclasses.dataclass(frozen=True)
class ExporterFile:
    """A file as the exporter wrote it, with its weights inline or beside it.

    Attributes:
        data: The file; for weights in `weights` its content is ignored.
        weights: The content of external weights, by name.
    """

    data: bytes
    weights: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """The approximate size of the file with its weights inline."""
        return len(self.data) + sum(len(content) for content in self.weights.values())

    def skeleton(self) -> onnx.ModelProto:
        """The model with everything but the content of its large weights."""
        model = onnx.load_model_from_string(read_skeleton(io.BytesIO(self.data), len(self.data)))
        for tensor in model.graph.initializer:
            content = self.weights.get(tensor.name)
            if content is not None:
                tensor.ClearField("raw_data")
                if len(content) <= _SMALL_BYTES:
                    tensor.raw_data = content
        return model

    def pieces(self, tagged: onnx.ModelProto | None = None) -> Iterator[bytes | memoryview]:
        """The file with all its weights inline, piece by piece, without copying.

        Args:
            tagged: The skeleton with changed nodes and metadata; no nodes added or removed.
        """
        data = memoryview(self.data)
        for number, field, content in _fields(data):
            if number == _MODEL_METADATA and tagged is not None:
                continue
            if number != _MODEL_GRAPH:
                yield field
                continue
            pieces = list(self._graph_pieces(content, tagged))
            yield _header(number, sum(len(piece) for piece in pieces))
            yield from pieces
        for entry in tagged.metadata_props if tagged is not None else ():
            yield _delimited(_MODEL_METADATA, entry.SerializeToString())

    def _graph_pieces(self, graph: memoryview, tagged: onnx.ModelProto | None) -> Iterator[bytes | memoryview]:
        sizes = {name: len(content) for name, content in self.weights.items()}
        nodes = iter(tagged.graph.node) if tagged is not None else None
        for number, field, content in _fields(graph):
            if number == _GRAPH_NODE and nodes is not None:
                yield _delimited(number, next(nodes).SerializeToString())
            elif number == _GRAPH_INITIALIZER and sizes:
                for piece in _filled(content, sizes):
                    yield self.weights[piece] if isinstance(piece, str) else piece
            else:
                yield field


def read_skeleton(stream: BinaryIO, size: int) -> bytes:
    """A file without the content of its large weights, which is not read.

    Args:
        stream: The file, at its beginning.
        size: Its size in bytes.

    Raises:
        ValueError: The bytes are not a protobuf message, or the file ends before that size.
    """
    return b"".join(_without_weights(stream, size, _MODEL_GRAPH, 0))


# The field to look into, from the model down to a weight.
_INNER = {_MODEL_GRAPH: _GRAPH_INITIALIZER, _GRAPH_INITIALIZER: None}


def _without_weights(stream: BinaryIO, size: int, inner: int | None, smallest: int) -> Iterator[bytes]:
    """The fields of a message; those of number `inner` without weights, and of a weight without its content."""
    while size > 0:
        number, header, length = _read_header(stream)
        size -= len(header) + length
        if size < 0:
            raise ValueError("a field ends beyond its message")
        if inner is None and number in _TENSOR_CONTENT:
            stream.seek(length, io.SEEK_CUR)
        elif number == inner and length > smallest:
            pieces = b"".join(_without_weights(stream, length, _INNER[number], _SMALL_BYTES))
            yield _delimited(number, pieces)
        else:
            content = stream.read(length)
            if len(content) < length:
                raise ValueError("it ends within a field")
            yield header + content


def find_raw_data(stream: BinaryIO, size: int) -> dict[str, tuple[int, int]]:
    """Offset and length of the content of each weight of the main graph that is stored as raw bytes, by name.

    Args:
        stream: The file.
        size: Its size in bytes.

    Raises:
        ValueError: The bytes are not a protobuf message.
    """
    found: dict[str, tuple[int, int]] = {}
    for graph, graph_begin, graph_end in _places(stream, 0, size):
        for field, begin, end in _places(stream, graph_begin, graph_end) if graph == _MODEL_GRAPH else ():
            if field == _GRAPH_INITIALIZER:
                parts = {number: (start, stop - start) for number, start, stop in _places(stream, begin, end)}
                if _TENSOR_NAME in parts and _TENSOR_RAW_DATA in parts:
                    stream.seek(parts[_TENSOR_NAME][0])
                    found[stream.read(parts[_TENSOR_NAME][1]).decode(errors="replace")] = parts[_TENSOR_RAW_DATA]
    return found


def _places(stream: BinaryIO, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field of the message between two offsets."""
    while position < end:
        stream.seek(position)
        number, header, length = _read_header(stream)
        begin = position + len(header)
        position = begin + length
        if position > end:
            raise ValueError("a field ends beyond its message")
        yield number, begin, position


def _read_header(stream: BinaryIO) -> tuple[int, bytes, int]:
    """The number, header and length of the next field; a number is part of the header."""
    tag, header = _read_varint(stream)
    kind = tag & 7
    if kind == _LENGTH_DELIMITED:
        length, encoded = _read_varint(stream)
        return tag >> 3, header + encoded, length
    if kind == 0:
        return tag >> 3, header + _read_varint(stream)[1], 0
    if kind not in (1, 5):
        raise ValueError(f"wire type {kind} is not used by ONNX")
    return tag >> 3, header, 8 if kind == 1 else 4


def _read_varint(stream: BinaryIO) -> tuple[int, bytes]:
    encoded = stream.read(1)
    while encoded and encoded[-1] >= 0x80 and len(encoded) < _VARINT_BYTES and (byte := stream.read(1)):
        encoded += byte
    return _varint(encoded, 0, len(encoded))[0], encoded


def fill_initializers(data: memoryview, sizes: Mapping[str, int]) -> Iterator[bytes | memoryview | str]:
    """A file with placeholder weights, piece by piece; a string stands for the content of the weight of that name.

    Args:
        data: The file, in which the weights of `sizes` are empty.
        sizes: The size of each weight's content in bytes.
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
    for number, start, begin, end in _spans(data, 0, len(data)):
        yield number, data[start:end], data[begin:end]


def _spans(
    data: bytes | memoryview, position: int, end: int, *, skip: bool = False
) -> Iterator[tuple[int, int, int, int]]:
    """For each field of the message between two offsets: its number, start, start of its content, and end.

    With `skip`, fields of numbers are skipped.
    """
    while position < end:
        if skip and (found := _NUMBERS.match(data, position, end)):
            position = found.end()
            if position == end:
                return
        start = position
        tag = data[position]
        position += 1
        # Nearly all tags are one byte long.
        if tag >= 0x80:
            tag, position = _varint(data, start, end)
        begin, kind = position, tag & 7
        if kind == _LENGTH_DELIMITED:
            # And so are most lengths.
            if position < end and (length := data[position]) < 0x80:
                begin = position + 1
            else:
                length, begin = _varint(data, position, end)
            position = begin + length
        elif kind == 0:
            _, position = _varint(data, position, end)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {start} is not used by ONNX")
        if position > end:
            raise ValueError(f"the field at byte {start} ends beyond its message")
        yield tag >> 3, start, begin, position


def _varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift <= 63:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"the varint at byte {position} is not terminated")


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
