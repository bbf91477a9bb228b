"""The owner of each kernel: through the executed graph, or through the nodes of the file that a kernel names."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterable

import msgspec
import onnx_ir as ir

from modelexport.graph import nodes_with_ids, subgraphs_of
from modelexport.hierarchy import ROOT_CALL, Attribution, HierarchyDocument
from modelexport.ownership import Projection
from modelexport.profiling.ort_profile import OrtProfile
from modelexport.profiling.records import Kernel, OwnedKernel

UNMATCHED = "unmatched"


@dataclasses.dataclass(frozen=True)
class OwnedGraph:
    """Kernels with their owners, their nodes in the executed graph, and the projection that gave the owners."""

    kernels: tuple[OwnedKernel, ...]
    nodes: tuple[ir.Node | None, ...]
    projection: Projection


def own_by_graph(profile: OrtProfile, executed: ir.Model, projection: Projection) -> OwnedGraph:
    """The owners of the kernels of a profile.

    A kernel without a node in the executed graph belongs to the call of the kernel around it, else to the root call,
    and its kind is `UNMATCHED`.

    Args:
        profile: The profile.
        executed: The graph that onnxruntime saved in the session of the profile.
        projection: The owners of the nodes of that graph.
    """
    ids = {node: identity for identity, node in nodes_with_ids(executed)}
    nodes = _nodes_of(profile, executed)
    found: list[OwnedKernel] = []
    for kernel, node, parent in zip(profile.measurement.kernels, nodes, profile.parents, strict=True):
        if node is None:
            around = str(ROOT_CALL) if parent is None else found[parent].call
            found.append(_owned(kernel, kernel.name, around, UNMATCHED))
        else:
            found.append(_owned_as(kernel, ids[node], projection.attributions[node], _weight_bytes(node)))
    return OwnedGraph(tuple(found), tuple(nodes), projection)


def own_by_sources(document: HierarchyDocument, kernels: Iterable[Kernel]) -> tuple[OwnedKernel, ...]:
    """The owners of kernels that name nodes of the file: that of the last node, the others contribute.

    A kernel without a known node belongs to the root call, and its kind is `UNMATCHED`.
    """
    records = {node.id: node for node in document.nodes}
    found = []
    for kernel in kernels:
        nodes = [records[source] for source in kernel.sources if source in records]
        if not nodes:
            found.append(_owned(kernel, kernel.name, str(ROOT_CALL), UNMATCHED))
            continue
        owner = nodes[-1].module
        calls = dict.fromkeys(call for node in nodes for call in (node.module, *node.contributors) if call != owner)
        kind = nodes[-1].kind if len(nodes) == 1 else "fused" if calls else "exact"
        found.append(_owned(kernel, nodes[-1].id, owner, kind, tuple(calls)))
    return tuple(found)


def _owned_as(kernel: Kernel, node: str, attribution: Attribution, weight_bytes: int) -> OwnedKernel:
    contributors = tuple(str(call) for call in attribution.contributors)
    kernel = msgspec.structs.replace(kernel, parameter_bytes=weight_bytes)
    return _owned(kernel, node, str(attribution.owner), attribution.kind.value, contributors)


def _weight_bytes(node: ir.Node) -> int:
    """The size of a node's weights: onnxruntime's own number leaves out those that it packed for the kernel."""
    weights = {value for value in node.inputs if value is not None and value.is_initializer()}
    return sum(value.const_value.nbytes for value in weights if value.const_value is not None)


def _owned(kernel: Kernel, node: str, call: str, kind: str, contributors: tuple[str, ...] = ()) -> OwnedKernel:
    return OwnedKernel(**msgspec.structs.asdict(kernel), node=node, call=call, kind=kind, contributors=contributors)


def _nodes_of(profile: OrtProfile, executed: ir.Model) -> list[ir.Node | None]:
    """The node of each kernel. Names are unique in a graph, but optional; unnamed nodes are executed in their order."""
    named: dict[tuple[ir.Node | None, str], list[ir.Node]] = defaultdict(list)
    unnamed: dict[tuple[ir.Node | None, str], deque[ir.Node]] = defaultdict(deque)
    waiting: list[tuple[ir.Node | None, ir.Graph]] = [(None, executed.graph)]
    while waiting:
        around, graph = waiting.pop()
        for node in graph:
            if node.name:
                named[around, node.name].append(node)
            else:
                unnamed[around, node.op_type].append(node)
            waiting.extend((node, inner) for _, inner in subgraphs_of(node))
    found: list[ir.Node | None] = []
    for kernel, parent in zip(profile.measurement.kernels, profile.parents, strict=True):
        around = None if parent is None else found[parent]
        # Branches of one node can have nodes of the same name.
        candidates = named[around, kernel.name]
        match = next((node for node in candidates if node.op_type == kernel.op), None)
        if match is None and unnamed[around, kernel.op]:
            match = unnamed[around, kernel.op].popleft()
        found.append(match)
    return found
