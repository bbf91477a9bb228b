"""An index over an ONNX graph: every node with a stable identity, bodies and functions included."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

# Larger tensors count by type and shape alone: a graph keeps its identity when its weights are trained further.
SMALL_TENSOR_BYTES = 1024


def graph_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs a node holds in its attributes, each with a name that tells it from the others."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for position, graph in enumerate(attribute.as_graphs()):
                yield f"{name}.{position}", graph


def identified_nodes(model: ir.Model) -> list[tuple[str, ir.Node]]:
    """Every node of the model with its identity, in order: main graph, bodies within, then local functions.

    A node is known by its first named output within its graph, behind the way to that graph:
    ``If_3/then_branch/add_7``. ONNX node names are optional and may repeat, tensor names are neither.
    """
    tops: list[tuple[str, Iterable[ir.Node]]] = [("", model.graph)]
    tops += [(_function_prefix(*key), function) for key, function in model.functions.items()]
    return _identified(tops, lambda node: [value.name for value in node.outputs], graph_bodies)


def identified_proto_nodes(model: onnx.ModelProto) -> list[tuple[str, onnx.NodeProto]]:
    """The same identities for a model as it lies in the file."""
    tops: list[tuple[str, Iterable[onnx.NodeProto]]] = [("", model.graph.node)]
    tops += [(_function_prefix(f.domain, f.name, f.overload), f.node) for f in model.functions]
    return _identified(tops, lambda node: list(node.output), _proto_bodies)


def _function_prefix(domain: str, name: str, overload: str) -> str:
    return "::".join(part for part in (domain, name, overload) if part) + "/"


def _proto_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, Iterable[onnx.NodeProto]]]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g.node
        for position, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{position}", graph.node


_Node = TypeVar("_Node")


def _identified(
    tops: Iterable[tuple[str, Iterable[_Node]]],
    outputs_of: Callable[[_Node], list[str | None]] | Callable[[_Node], list[str]],
    bodies_of: Callable[[_Node], Iterable[tuple[str, Iterable[_Node]]]],
) -> list[tuple[str, _Node]]:
    found: list[tuple[str, _Node]] = []
    taken: set[str] = set()

    def identify(prefix: str, nodes: Iterable[_Node]) -> Iterator[tuple[str, _Node]]:
        for position, node in enumerate(nodes):
            name = next((name for name in outputs_of(node) if name), f"#{position}")
            identity, copies = prefix + name, 1
            while identity in taken:
                copies += 1
                identity = f"{prefix}{name}#{copies}"
            taken.add(identity)
            yield identity, node

    for top, nodes in tops:
        # A stack of iterators rather than recursion: files nest as deeply as they like.
        stack = [identify(top, nodes)]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                continue
            found.append(following)
            identity, node = following
            bodies = [identify(f"{identity}/{name}/", body) for name, body in bodies_of(node)]
            stack.extend(reversed(bodies))
    return found


def tensor_names(model: ir.Model) -> set[str]:
    """The names of the tensors of the main graph."""
    graph = model.graph
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    names.update(value.name for node in graph for value in node.outputs)
    return {name for name in names if name}


def graph_hash(model: ir.Model) -> str:
    """A digest of what the graph computes: nodes, tensors and small constants; no metadata, no weights."""
    digest = hashlib.blake2b(digest_size=16)

    def add(*parts: object) -> None:
        for part in parts:
            text = str(part).encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(4, "little"))
            digest.update(text)

    add(*sorted(model.opset_imports.items()))
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        add("graph", *_signature(graph))
    for name, value in model.graph.initializers.items():
        add("initializer", name, value.dtype, value.shape)
    for identity, node in identified_nodes(model):
        add(identity, node.domain, node.op_type, node.overload)
        add(*(value.name if value is not None else "" for value in node.inputs))
        # Unnamed outputs at the end are not written to files.
        add("->", *" ".join(value.name or "" for value in node.outputs).rstrip().split(" "))
        for name, attribute in sorted(node.attributes.items()):
            add(name, attribute_text(attribute))
        for name, body in graph_bodies(node):
            add(name, *_signature(body))
    return digest.hexdigest()


def _signature(graph: ir.Graph | ir.Function) -> list[str | None]:
    return [*(value.name for value in graph.inputs), "->", *(value.name for value in graph.outputs)]


def attribute_text(attribute: ir.Attr) -> str:
    """An attribute's content but for its bodies, the same before a model is saved and after it is loaded."""
    if attribute.is_ref():
        return f"reference {attribute.ref_attr_name}"
    kind = attribute.type
    if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return f"{kind}"
    if kind == ir.AttributeType.TENSOR:
        # Not `as_tensor`, whose check of the type takes longer than everything else here.
        return f"{kind} {_tensor_text(attribute.value)}"
    if kind == ir.AttributeType.TENSORS:
        return f"{kind} {[_tensor_text(tensor) for tensor in attribute.as_tensors()]}"
    if kind == ir.AttributeType.FLOAT:
        return f"{kind} {_stored_float(attribute.value)}"
    if kind == ir.AttributeType.FLOATS:
        return f"{kind} {[_stored_float(number) for number in attribute.value]}"
    if isinstance(attribute.value, list | tuple):
        return f"{kind} {list(attribute.value)}"
    return f"{kind} {attribute.value}"


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    text = f"{tensor.dtype} {list(tensor.shape)}"
    if tensor.dtype == ir.DataType.STRING:
        return f"{text} {tensor.numpy().tolist()}"
    small = tensor.nbytes <= SMALL_TENSOR_BYTES and not isinstance(tensor, ir.ExternalTensor)
    return f"{text} {tensor.tobytes().hex() if small else ''}"


def _stored_float(number: float) -> str:
    # Files hold attributes as 32-bit floats; a larger number is infinite once it was saved.
    with np.errstate(over="ignore"):
        return np.float32(number).tobytes().hex()
