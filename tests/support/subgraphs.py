"""Makes the tensors inside control-flow subgraphs visible: as outputs of the owning nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper


def walk_nodes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Every node of a file with its identity: its first named output, behind the way to its graph."""
    yield from _walk("", model.graph.node)
    for function in model.functions:
        way = "::".join(part for part in (function.domain, function.name, function.overload) if part)
        yield from _walk(f"{way}/", function.node)


def _walk(prefix: str, nodes: object) -> Iterator[tuple[str, onnx.NodeProto]]:
    for position, node in enumerate(nodes):  # type: ignore[call-overload]
        identity = prefix + next((name for name in node.output if name), f"#{position}")
        yield identity, node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _walk(f"{identity}/{attribute.name}/", attribute.g.node)


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Every node of a file, found without the package's own code."""
    return [node for _, node in walk_nodes(model)]


def expose_subgraphs(model: onnx.ModelProto) -> None:
    """Give every node with subgraphs one more output for each tensor made inside, named by the way to it.

    A branch that is not taken gives a zero for each tensor of the other one; a loop stacks what its rounds make.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    types: dict[str, int] = {}
    _collect_types(inferred.graph, types)
    for node in model.graph.node:
        _expose(node, next((name for name in node.output if name), ""), types)


def _collect_types(graph: onnx.GraphProto, types: dict[str, int]) -> None:
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _collect_types(attribute.g, types)


def _expose(node: onnx.NodeProto, identity: str, types: dict[str, int]) -> None:
    subgraphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    made: dict[str, list[tuple[str, str, int]]] = {}
    for name, subgraph in subgraphs.items():
        prefix = f"{identity}/{name}/"
        made[name] = []
        for inner in list(subgraph.node):
            before = len(inner.output)
            own = next((output for output in inner.output if output), "")
            _expose(inner, f"{prefix}{own}", types)
            for place, output in enumerate(inner.output):
                if output in types:
                    shown = output if place >= before else f"{prefix}{output}"
                    made[name].append((output, shown, types[output]))
    if any(made.values()):
        _name_every_output(node, subgraphs)
    for name, tensors in made.items():
        for tensor, shown, kind in tensors:
            copy = f"{shown}#shown"
            types[shown] = kind
            for other, subgraph in subgraphs.items():
                if other == name:
                    subgraph.node.append(helper.make_node("Identity", [tensor], [copy]))
                elif kind == TensorProto.STRING:
                    subgraph.node.append(_constant(copy, TensorProto.STRING, b""))
                else:
                    subgraph.node.append(_constant(copy, kind, 0))
                subgraph.output.append(helper.make_tensor_value_info(copy, kind, None))
            node.output.append(shown)
            for attribute in node.attribute:
                if attribute.name in ("scan_output_axes", "scan_output_directions"):
                    attribute.ints.append(0)


def _name_every_output(node: onnx.NodeProto, subgraphs: dict[str, onnx.GraphProto]) -> None:
    """Outputs that nobody reads may be left out at the end; nothing can come behind them then."""
    results = len(next(iter(subgraphs.values())).output) - (node.op_type == "Loop")
    node.output.extend([""] * (results - len(node.output)))


def _constant(name: str, kind: int, value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=helper.make_tensor(name, kind, [], [value]))
