"""Node ids: every node of an ONNX graph under a stable id, subgraphs and local functions included."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

# Larger tensors are hashed by type and shape alone: a graph keeps its hash when its weights are trained further.
SMALL_TENSOR_BYTES = 1024

# Precomputed: formatting an enum member is slow.
_KINDS = {kind: f"{kind}" for kind in ir.AttributeType}
_INT, _INTS = _KINDS[ir.AttributeType.INT], _KINDS[ir.AttributeType.INTS]
_BODY_TYPES = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def graph_bodies(node: ir.Node) -> Sequence[tuple[str, ir.Graph]]:
    """The subgraphs in a node's attributes, each with a name that is unique within the node."""
    attributes = node.attributes
    # Checked first because nearly all nodes have none.
    if not attributes or not any(attribute.type in _BODY_TYPES for attribute in attributes.values()):
        return ()
    found: list[tuple[str, ir.Graph]] = []
    for name, attribute in attributes.items():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append((name, attribute.as_graph()))
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend((f"{name}.{position}", graph) for position, graph in enumerate(attribute.as_graphs()))
    return found


def nodes_within(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of its subgraphs; several times as fast as onnx_ir's own walk."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting.extend(subgraph for _, subgraph in graph_bodies(node))


def named_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """The inputs, initializers and node outputs of a graph by name, those of its subgraphs aside."""
    values = [*graph.inputs, *graph.initializers.values()]
    values.extend(value for node in graph for value in node.outputs)
    return {value.name: value for value in values if value.name}


def identified_nodes(model: ir.Model) -> list[tuple[str, ir.Node]]:
    """Every node of the model with its id, in order: main graph, its subgraphs, then local functions.

    A node's id is the name of its first named output, prefixed with the path to its graph:
    ``If_3/then_branch/add_7``. ONNX node names are optional and may repeat; tensor names are required and unique.
    """
    tops: list[tuple[str, Iterable[ir.Node]]] = [("", model.graph)]
    tops += [(_function_prefix(*key), function) for key, function in model.functions.items()]
    return _identified(tops, lambda node: [value.name for value in node.outputs], graph_bodies)


def identified_proto_nodes(model: onnx.ModelProto) -> list[tuple[str, onnx.NodeProto]]:
    """The same ids for a model as protobuf parses it from the file."""
    tops: list[tuple[str, Iterable[onnx.NodeProto]]] = [("", model.graph.node)]
    tops += [(_function_prefix(f.domain, f.name, f.overload), f.node) for f in model.functions]
    return _identified(tops, lambda node: list(node.output), _proto_bodies)


def _function_prefix(domain: str, name: str, overload: str) -> str:
    return "::".join(part for part in (domain, name, overload) if part) + "/"


def _proto_bodies(node: onnx.NodeProto) -> Iterable[tuple[str, Iterable[onnx.NodeProto]]]:
    return [(name, graph.node) for name, graph in proto_graphs(node)] if node.attribute else ()


def proto_graphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The subgraphs of a node as it lies in the file, each with the name that identities give it."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for position, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{position}", graph


_Node = TypeVar("_Node")


def _identified(
    tops: Iterable[tuple[str, Iterable[_Node]]],
    outputs_of: Callable[[_Node], list[str | None]] | Callable[[_Node], list[str]],
    subgraphs_of: Callable[[_Node], Iterable[tuple[str, Iterable[_Node]]]],
) -> list[tuple[str, _Node]]:
    found: list[tuple[str, _Node]] = []
    # How often each id was asked for: an invalid file may give one name to many outputs.
    uses: dict[str, int] = {}

    def unique(wanted: str) -> str:
        identity = wanted
        while identity in uses:
            uses[wanted] += 1
            identity = f"{wanted}#{uses[wanted]}"
        uses[identity] = 1
        return identity

    def identify(prefix: str, nodes: Iterable[_Node]) -> Iterator[tuple[str, _Node]]:
        for position, node in enumerate(nodes):
            name = next((name for name in outputs_of(node) if name), f"#{position}")
            yield unique(prefix + name), node

    for top, nodes in tops:
        # A stack of iterators rather than recursion: a file may nest subgraphs deeper than Python's stack.
        stack = [identify(top, nodes)]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                continue
            found.append(following)
            identity, node = following
            subgraphs = subgraphs_of(node)
            if subgraphs:
                stack.extend(reversed([identify(f"{identity}/{name}/", inner) for name, inner in subgraphs]))
    return found


def operation(node: ir.Node) -> str:
    """A node's operator, prefixed with its domain unless that is ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


@dataclasses.dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph, subgraph or function: its producer and its consumers.

    Attributes:
        id: Its name, prefixed with the path to its graph as in node ids: ``If_3/then_branch/add_7``.
        value: The tensor itself.
        source: Where it comes from: a node, an input of the graph, or an initializer.
        producer: The id of the node that produces it, or None.
        consumers: The ids of the nodes that consume it, in graph order. An output of a subgraph is consumed by the
            owning node; an outer value that a subgraph uses is consumed by the node inside.
        is_output: Whether it is an output of the model or of its function.
    """

    id: str
    value: ir.Value
    source: Literal["node", "input", "weight"]
    producer: str | None
    consumers: tuple[str, ...]
    is_output: bool


def identified_tensors(model: ir.Model, nodes: Sequence[tuple[str, ir.Node]] | None = None) -> list[GraphTensor]:
    """Every named tensor of the model, subgraphs and functions included.

    Args:
        model: The model.
        nodes: The result of `identified_nodes`, if it is at hand.
    """
    nodes = identified_nodes(model) if nodes is None else nodes
    identities = {node: identity for identity, node in nodes}
    positions = {node: position for position, (_, node) in enumerate(nodes)}
    prefixes: dict[ir.Graph, tuple[str, str | None]] = {model.graph: ("", None)}
    prefixes.update({f.graph: (_function_prefix(*key), None) for key, f in model.functions.items()})
    for identity, node in nodes:
        prefixes.update({body: (f"{identity}/{name}/", identity) for name, body in graph_bodies(node)})
    found: list[GraphTensor] = []

    def add(value: ir.Value, prefix: str, source: Literal["node", "input", "weight"], producer: str | None) -> None:
        if not value.name:
            return
        consumers = {use.node for use in value.uses() if use.node in positions}
        # onnx_ir lists uses in the order in which they came about.
        ordered = sorted(consumers, key=positions.__getitem__) if len(consumers) > 1 else consumers
        names = dict.fromkeys(identities[node] for node in ordered)
        if value in owned:
            names[owned[value]] = None
        found.append(GraphTensor(prefix + value.name, value, source, producer, tuple(names), value in outputs))

    owned = {value: owner for graph, (_, owner) in prefixes.items() if owner for value in graph.outputs}
    outputs = {value for graph, (_, owner) in prefixes.items() if owner is None for value in graph.outputs}
    for graph, (prefix, _) in prefixes.items():
        weights = set(graph.initializers.values())
        for value in graph.inputs:
            add(value, prefix, "weight" if value in weights else "input", None)
        weights.difference_update(graph.inputs)
        for value in graph.initializers.values():
            if value in weights:
                add(value, prefix, "weight", None)
        for node in graph:
            for value in node.outputs:
                add(value, prefix, "node", identities[node])
    return found


def graph_hash(model: ir.Model | onnx.ModelProto, nodes: Iterable[tuple[str, onnx.NodeProto]] | None = None) -> str:
    """A digest of what the graph computes: nodes, tensors and small constants; no metadata, no weights.

    It is the same for a model in memory, for its saved file, and for that file as a proto.

    Args:
        model: The model.
        nodes: The result of `identified_proto_nodes`, if it is at hand.
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
    for identity, node in identified_nodes(model):
        yield (
            identity,
            node.domain,
            node.op_type,
            node.overload,
            _names(node.inputs),
            _without_trailing_unnamed(_names(node.outputs)),
            [(name, attribute_text(attribute)) for name, attribute in sorted(node.attributes.items())],
            [(name, _names(body.inputs), _names(body.outputs)) for name, body in graph_bodies(node)],
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
    for identity, node in identified_proto_nodes(model) if nodes is None else nodes:
        attributes, bodies = _proto_attributes(node) if node.attribute else ([], [])
        yield (
            identity,
            "" if node.domain == "ai.onnx" else node.domain,
            node.op_type,
            node.overload,
            list(node.input),
            _without_trailing_unnamed(list(node.output)),
            attributes,
            bodies,
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
    bodies = [
        (name, [value.name for value in body.input], [value.name for value in body.output])
        for name, body in proto_graphs(node)
    ]
    return texts, bodies


def _proto_attribute_text(attribute: onnx.AttributeProto) -> str:
    """`attribute_text` of the attribute as onnx_ir reads it; frequent types are formatted directly."""
    if attribute.ref_attr_name:
        return f"reference {attribute.ref_attr_name}"
    kind = attribute.type
    if kind == onnx.AttributeProto.INT:
        return f"{_INT} {attribute.i}"
    if kind == onnx.AttributeProto.INTS:
        return f"{_INTS} {list(attribute.ints)}"
    if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return f"{ir.AttributeType(kind)}"
    return attribute_text(ir.serde.deserialize_attribute(attribute))


def attribute_text(attribute: ir.Attr) -> str:
    """An attribute's content without its subgraphs, the same before a model is saved and after it is loaded."""
    if attribute.is_ref():
        return f"reference {attribute.ref_attr_name}"
    kind = attribute.type
    text = _KINDS[kind]
    if kind in _BODY_TYPES:
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


def weight_bytes(model: ir.Model) -> int:
    """The size of the main graph's initializers in bytes; strings, for which onnx_ir has no size, count as 0."""
    weights = (value.const_value for value in model.graph.initializers.values())
    return sum(weight.nbytes for weight in weights if weight is not None and weight.dtype != ir.DataType.STRING)


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
