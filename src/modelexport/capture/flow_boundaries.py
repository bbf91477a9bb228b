"""Boundaries from data flow, for exporters that do not tell which tensors a call was given and returned.

A value that a call's nodes make and others read leaves the call; one that others make and it reads enters it. Which
argument or field a tensor is, is said only where shape and type leave no choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from modelexport.graph import subgraphs_of
from modelexport.hierarchy import BoundaryTensor, CallId, CallTree, ModuleCall, TensorInfo


@dataclasses.dataclass(frozen=True)
class CallTensors:
    """What a call was given and returned: names, shapes and types."""

    inputs: list[tuple[str, TensorInfo]]
    outputs: list[tuple[str, TensorInfo]]


def find_boundaries(
    graph: ir.Graph,
    owners: Mapping[ir.Node, CallId],
    calls: CallTree,
    sides: Mapping[CallId, CallTensors],
    infos: Mapping[str, TensorInfo],
) -> CallTree:
    """`calls` with their boundaries.

    Args:
        graph: The graph.
        owners: The call of each node for which it is known.
        calls: The calls.
        sides: What each call was given and returned.
        infos: Shape and type of the graph's tensors by name, where known.
    """
    entering, leaving = find_crossing_tensors(graph, owners, calls)
    return CallTree(
        {
            call.id: ModuleCall(
                call.path,
                call.index,
                call.parent,
                inputs=_assign(sides[call.id].inputs, entering.get(call.id, []), infos),
                outputs=_assign(sides[call.id].outputs, leaving.get(call.id, []), infos),
            )
            if call.id in sides
            else call
            for call in calls
        }
    )


def find_crossing_tensors(
    graph: ir.Graph, owners: Mapping[ir.Node, CallId], calls: CallTree
) -> tuple[dict[CallId, list[str]], dict[CallId, list[str]]]:
    """For each call the tensors that enter it and those that leave it, in the order of the graph."""
    entering: dict[CallId, dict[str, None]] = {}
    leaving: dict[CallId, dict[str, None]] = {}
    chains = {call.id: set(calls.chain(call.id)) for call in calls}
    outputs = {value.name for value in graph.outputs}
    inputs = {value.name for value in graph.inputs}
    for node in graph:
        made_in = chains.get(owners[node], set()) if node in owners else set()
        for value in node.outputs:
            if value.name is None:
                continue
            readers = [owners[use.node] for use in value.uses() if use.node in owners]
            outside = made_in if value.name in outputs else set()
            for reader in readers:
                outside = outside | (made_in - chains[reader])
            for call in outside:
                leaving.setdefault(call, {})[value.name] = None
        for value in _read(node):
            if value.name is None or node not in owners:
                continue
            producer = value.producer()
            if producer is None and value.name not in inputs:
                continue
            if producer is not None and (producer not in owners or not producer.inputs):
                continue
            above = chains[owners[producer]] if producer is not None else set()
            for call in chains[owners[node]] - above:
                entering.setdefault(call, {})[value.name] = None
    return {call: list(names) for call, names in entering.items()}, {c: list(names) for c, names in leaving.items()}


def _read(node: ir.Node) -> list[ir.Value]:
    values = [value for value in node.inputs if value is not None]
    for _, body in subgraphs_of(node):
        values.extend(v for inner in body.all_nodes() for v in inner.inputs if v is not None and v.graph is not body)
    return values


def _assign(
    named: list[tuple[str, TensorInfo]], tensors: list[str], infos: Mapping[str, TensorInfo]
) -> tuple[BoundaryTensor, ...]:
    if len(named) == len(tensors) == 1:
        return (BoundaryTensor(named[0][0], tensors[0], named[0][1]),)
    found = []
    for name, info in named:
        alike = [tensor for tensor in tensors if infos.get(tensor) == info]
        rivals = [other for _, other in named if other == info]
        sure = len(alike) == len(rivals) == 1 and all(tensor in infos for tensor in tensors)
        found.append(BoundaryTensor(name, alike[0] if sure else None, info))
    return tuple(found)
