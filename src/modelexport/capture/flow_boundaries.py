"""Boundary tensors from data flow, where the exporter does not record the inputs and outputs of calls.

A value that a node inside a call produces and a node outside consumes leaves the call; one that a node outside produces
and a node inside consumes enters it. A tensor is matched with an argument or result only where shape and type leave one
possibility. The inputs and outputs of the graph have the order of the root's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec
import onnx_ir as ir

from modelexport.graph import consumed_values
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall, TensorInfo


@dataclasses.dataclass(frozen=True)
class CallTensors:
    """The inputs and outputs of a call: names, shapes and types."""

    inputs: list[tuple[str, TensorInfo]]
    outputs: list[tuple[str, TensorInfo]]


def find_boundaries(
    graph: ir.Graph,
    owners: Mapping[ir.Node, CallId],
    calls: CallTree,
    tensors: Mapping[CallId, CallTensors],
    infos: Mapping[str, TensorInfo],
) -> CallTree:
    """Return `calls` with their boundary tensors; `infos` has shape and type of the graph's tensors, where known."""
    entering, leaving = find_crossing_tensors(graph, owners, calls)
    found: dict[CallId, ModuleCall] = {}
    for call in calls:
        known = tensors.get(call.id, CallTensors([], []))
        inputs = _assign(known.inputs, entering.get(call.id, []), infos)
        outputs = _assign(known.outputs, leaving.get(call.id, []), infos)
        if call.id == ROOT_CALL:
            inputs = _in_order(known.inputs, graph.inputs, infos) or inputs
            outputs = _in_order(known.outputs, graph.outputs, infos) or outputs
        found[call.id] = msgspec.structs.replace(call, inputs=inputs, outputs=outputs) if call.id in tensors else call
    return CallTree(found)


def find_crossing_tensors(
    graph: ir.Graph, owners: Mapping[ir.Node, CallId], calls: CallTree
) -> tuple[dict[CallId, list[str]], dict[CallId, list[str]]]:
    """Return the tensors that enter and those that leave each call, in the order of the graph."""
    entering: dict[CallId, dict[str, None]] = {}
    leaving: dict[CallId, dict[str, None]] = {}
    chains = {call.id: set(calls.chain(call.id)) for call in calls}
    outputs = {value.name for value in graph.outputs}
    inputs = {value.name for value in graph.inputs}
    for node in graph:
        inside_of = chains.get(owners[node], set()) if node in owners else set()
        for value in node.outputs:
            if value.name is None:
                continue
            consumers = [owners[use.node] for use in value.uses() if use.node in owners]
            left = inside_of if value.name in outputs else set()
            for consumer in consumers:
                left = left | (inside_of - chains[consumer])
            for call in left:
                leaving.setdefault(call, {})[value.name] = None
        for value in consumed_values(node):
            if value.name is None or node not in owners:
                continue
            producer = value.producer()
            if producer is None and value.name not in inputs:
                continue
            if producer is not None and (producer not in owners or not producer.inputs):
                continue
            around = chains[owners[producer]] if producer is not None else set()
            for call in chains[owners[node]] - around:
                entering.setdefault(call, {})[value.name] = None
    return {call: list(names) for call, names in entering.items()}, {c: list(names) for c, names in leaving.items()}


def _in_order(
    named: list[tuple[str, TensorInfo]], values: Sequence[ir.Value], infos: Mapping[str, TensorInfo]
) -> tuple[BoundaryTensor, ...]:
    """Match tensors with values by their order; nothing where their number, a shape or a type differs."""
    if len(named) != len(values):
        return ()
    pairs = [(name, info, value.name or "") for (name, info), value in zip(named, values, strict=True)]
    if any(infos.get(tensor, info) != info for _, info, tensor in pairs):
        return ()
    return tuple(BoundaryTensor(name, tensor, info) for name, info, tensor in pairs)


def _assign(
    named: list[tuple[str, TensorInfo]], tensors: list[str], infos: Mapping[str, TensorInfo]
) -> tuple[BoundaryTensor, ...]:
    if len(named) == len(tensors) == 1:
        return (BoundaryTensor(named[0][0], tensors[0], named[0][1]),)
    found = []
    for name, info in named:
        candidates = [tensor for tensor in tensors if infos.get(tensor) == info]
        same_info = [other for _, other in named if other == info]
        is_unique = len(candidates) == len(same_info) == 1 and all(tensor in infos for tensor in tensors)
        found.append(BoundaryTensor(name, candidates[0] if is_unique else None, info))
    return tuple(found)
