"""A digest of what a graph computes, the same in memory and in the file, without metadata and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from modelexport.graph.node_ids import nodes_with_ids, proto_nodes_with_ids
from modelexport.graph.traversal import SUBGRAPH_TYPES, proto_subgraphs_of, subgraphs_of

# Larger tensors are hashed by type and shape alone: a graph keeps its hash when its weights are trained further.
SMALL_TENSOR_BYTES = 1024


# Precomputed: formatting an enum member is slow.
_KINDS = {kind: f"{kind}" for kind in ir.AttributeType}


_PART = 10_000
_INT, _INTS = _KINDS[ir.AttributeType.INT], _KINDS[ir.AttributeType.INTS]


def graph_hash(model: ir.Model | onnx.ModelProto, nodes: Iterable[tuple[str, onnx.NodeProto]] | None = None) -> str:
    """A digest of what the graph computes: nodes, tensors and small constants; no metadata, no weights.

    It is the same for a model in memory, for its saved file, and for that file as a proto.

    Args:
        model: The model.
        nodes: The result of `proto_nodes_with_ids`, if already computed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _proto_content(model, nodes) if isinstance(model, onnx.ModelProto) else _content(model):
        try:
            digest.update(msgspec.msgpack.encode(part))
        except UnicodeEncodeError:
            # A lone surrogate: such a name can exist in memory and cannot be saved.
            digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _content(model: ir.Model) -> Iterator[object]:
    """The hashed content, piece by piece; the same as `_proto_content` of the saved file."""
    yield _opsets(model.opset_imports.items())
    weights = model.graph.initializers
    # Whether an initializer is also an input is decided by the exporter when it saves.
    yield [value.name for value in model.graph.inputs if value.name not in weights], _names(model.graph.outputs)
    for key, function in model.functions.items():
        yield key, _names(function.inputs), _names(function.outputs)
    for name, value in sorted(weights.items()):
        content = value if value.const_value is None else value.const_value
        yield name, None if content.dtype is None else int(content.dtype), [*map(str, content.shape or ())]
    for node_id, node in nodes_with_ids(model):
        yield (
            node_id,
            node.domain,
            node.op_type,
            node.overload,
            _names(node.inputs),
            _without_trailing_unnamed(_names(node.outputs)),
            [(name, attribute_text(attribute)) for name, attribute in sorted(node.attributes.items())],
            [(name, _names(graph.inputs), _names(graph.outputs)) for name, graph in subgraphs_of(node)],
        )


def _proto_content(model: onnx.ModelProto, nodes: Iterable[tuple[str, onnx.NodeProto]] | None) -> Iterator[object]:
    graph = model.graph
    yield _opsets((opset.domain, opset.version) for opset in model.opset_import)
    weights = {tensor.name: tensor for tensor in graph.initializer if tensor.name}
    yield [value.name for value in graph.input if value.name not in weights], [value.name for value in graph.output]
    for function in model.functions:
        yield (function.domain, function.name, function.overload), list(function.input), list(function.output)
    for name, tensor in sorted(weights.items()):
        yield name, tensor.data_type, [*map(str, tensor.dims)]
    for node_id, node in proto_nodes_with_ids(model) if nodes is None else nodes:
        attributes, subgraphs = _proto_attributes(node) if node.attribute else ([], [])
        yield (
            node_id,
            "" if node.domain == "ai.onnx" else node.domain,
            node.op_type,
            node.overload,
            list(node.input),
            _without_trailing_unnamed(list(node.output)),
            attributes,
            subgraphs,
        )


def _opsets(opsets: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(("" if domain == "ai.onnx" else domain, version) for domain, version in opsets)


def _names(values: Iterable[ir.Value | None]) -> list[str]:
    return [value.name or "" if value is not None else "" for value in values]


def _without_trailing_unnamed(outputs: list[str]) -> list[str]:
    """Drop unnamed outputs at the end: they are not serialized."""
    while outputs and not outputs[-1]:
        outputs.pop()
    return outputs


def _proto_attributes(node: onnx.NodeProto) -> tuple[list[tuple[str, str]], list[tuple[str, list[str], list[str]]]]:
    """The texts of the attributes by name, and the signatures of their subgraphs."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    texts = [(name, _proto_attribute_text(attribute)) for name, attribute in sorted(attributes.items())]
    subgraphs = [
        (name, [value.name for value in graph.input], [value.name for value in graph.output])
        for name, graph in proto_subgraphs_of(node)
    ]
    return texts, subgraphs


def _proto_attribute_text(attribute: onnx.AttributeProto) -> str:
    """`attribute_text` of the attribute as onnx_ir reads it; frequent types are formatted directly."""
    if attribute.ref_attr_name:
        return f"reference {attribute.ref_attr_name}"
    kind = attribute.type
    if kind == onnx.AttributeProto.INT:
        return f"{_INT} {attribute.i}"
    if kind == onnx.AttributeProto.INTS:
        numbers = attribute.ints
        # In parts: a list of all takes ten times the memory of the file.
        parts = (f"{numbers[start : start + _PART]}"[1:-1] for start in range(0, len(numbers), _PART))
        return f"{_INTS} [{', '.join(parts)}]"
    if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return f"{ir.AttributeType(kind)}"
    return attribute_text(ir.serde.deserialize_attribute(attribute))


def attribute_text(attribute: ir.Attr) -> str:
    """An attribute's content without its subgraphs, the same before a model is saved and after it is loaded."""
    if attribute.is_ref():
        return f"reference {attribute.ref_attr_name}"
    kind = attribute.type
    text = _KINDS[kind]
    if kind in SUBGRAPH_TYPES:
        return text
    if kind == ir.AttributeType.TENSOR:
        # Not `as_tensor`: its type check takes longer than everything else here.
        return f"{text} {_tensor_text(attribute.value)}"
    if kind == ir.AttributeType.TENSORS:
        return f"{text} {[_tensor_text(tensor) for tensor in attribute.as_tensors()]}"
    if kind == ir.AttributeType.FLOAT:
        return f"{text} {_stored_float(attribute.value)}"
    if kind == ir.AttributeType.FLOATS:
        return f"{text} {[_stored_float(number) for number in attribute.value]}"
    if isinstance(attribute.value, list | tuple):
        return f"{text} {list(attribute.value)}"
    return f"{text} {attribute.value}"


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    text = f"{tensor.dtype} {list(tensor.shape)}"
    if tensor.dtype == ir.DataType.STRING:
        # Not as an array: in an untrusted file the shape need not match the content.
        return f"{text} {list(tensor.string_data()) if isinstance(tensor, ir.StringTensor) else ''}"
    small = tensor.nbytes <= SMALL_TENSOR_BYTES and not isinstance(tensor, ir.ExternalTensor)
    return f"{text} {tensor.tobytes().hex() if small else ''}"


def _stored_float(number: float) -> str:
    # Files store float attributes in 32 bits; a larger number becomes infinite when it is saved.
    with np.errstate(over="ignore"):
        return np.float32(number).tobytes().hex()
