"""The tensors of an ONNX graph, each with its producer and its consumers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from modelexport.graph.node_ids import function_prefix, nodes_with_ids
from modelexport.graph.traversal import subgraphs_of


@dataclasses.dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph, subgraph or function: its producer and its consumers.

    Attributes:
        id: Its name, prefixed with the path to its graph as in node ids: ``If_3/then_branch/add_7``.
        value: The tensor itself.
        source: Whether it is an output of a node, an input of the graph, or an initializer.
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


def tensors_with_ids(model: ir.Model, nodes: Sequence[tuple[str, ir.Node]] | None = None) -> list[GraphTensor]:
    """Every named tensor of the model, subgraphs and functions included.

    Args:
        model: The model.
        nodes: The result of `nodes_with_ids`, if already computed.
    """
    nodes = nodes_with_ids(model) if nodes is None else nodes
    ids = {node: node_id for node_id, node in nodes}
    positions = {node: position for position, (_, node) in enumerate(nodes)}
    prefixes: dict[ir.Graph, tuple[str, str | None]] = {model.graph: ("", None)}
    prefixes.update({f.graph: (function_prefix(*key), None) for key, f in model.functions.items()})
    for node_id, node in nodes:
        prefixes.update({graph: (f"{node_id}/{name}/", node_id) for name, graph in subgraphs_of(node)})
    found: list[GraphTensor] = []

    def add(value: ir.Value, prefix: str, source: Literal["node", "input", "weight"], producer: str | None) -> None:
        if not value.name:
            return
        consumers = {use.node for use in value.uses() if use.node in positions}
        # onnx_ir lists uses in the order in which they were added.
        ordered = sorted(consumers, key=positions.__getitem__) if len(consumers) > 1 else consumers
        names = dict.fromkeys(ids[node] for node in ordered)
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
                add(value, prefix, "node", ids[node])
    return found


def shapes_compatible(one: ir.Shape | None, other: ir.Shape | tuple[int, ...] | None) -> bool:
    """Whether two shapes may be the same: an unknown shape, and an axis whose size is not a number, may be any."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        mine == theirs or not (isinstance(mine, int) and isinstance(theirs, int))
        for mine, theirs in zip(one, other, strict=True)
    )


def weight_bytes(model: ir.Model) -> int:
    """The size of the main graph's initializers in bytes; strings, for which onnx_ir has no size, count as 0."""
    weights = (value.const_value for value in model.graph.initializers.values())
    return sum(weight.nbytes for weight in weights if weight is not None and weight.dtype != ir.DataType.STRING)
