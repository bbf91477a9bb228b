"""The owner of each kernel: through the executed graph, or through the nodes of the file that a kernel names."""

from __future__ import annotations

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


def own_by_graph(profile: OrtProfile, executed: ir.Model, projection: Projection) -> tuple[OwnedKernel, ...]:
    """The kernels of a profile with their owners, and with the nodes of the file that they execute.

    A kernel without a node in the executed graph belongs to the call of the kernel around it, else to the root call,
    and its kind is `UNMATCHED`.

    Args:
        profile: The profile.
        executed: The graph that onnxruntime saved in the session of the profile.
        projection: The owners of the nodes of that graph.
    """
    ids = {node: identity for identity, node in nodes_with_ids(executed)}
    originals = _Originals(projection)
    nodes = _nodes_of(profile, executed)
    found: list[OwnedKernel] = []
    for kernel, node, parent in zip(profile.measurement.kernels, nodes, profile.parents, strict=True):
        if node is None:
            around = str(ROOT_CALL) if parent is None else found[parent].call
            found.append(_owned(kernel, kernel.name, around, UNMATCHED))
        else:
            known = msgspec.structs.replace(kernel, sources=originals.of(node), parameter_bytes=_weight_bytes(node))
            found.append(_owned_as(known, ids[node], projection.attributions[node]))
    return tuple(found)


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


def _owned_as(kernel: Kernel, node: str, attribution: Attribution) -> OwnedKernel:
    contributors = tuple(str(call) for call in attribution.contributors)
    return _owned(kernel, node, str(attribution.owner), attribution.kind.value, contributors)


class _Originals:
    """The nodes of the file that nodes of the executed graph execute, by id."""

    def __init__(self, projection: Projection) -> None:
        self._values = values = projection.values
        nodes = nodes_with_ids(values.original) if values is not None else ()
        self._ids = {node: (position, identity) for position, (identity, node) in enumerate(nodes)}

    def of(self, node: ir.Node) -> tuple[str, ...]:
        """The nodes between the tensors that a node consumes and those it produces, in the order of the file."""
        values = self._values
        if values is None:
            return ()
        waiting = [values.producer_of(value) for value in node.outputs]
        seen: set[ir.Node] = set()
        while waiting:
            original = waiting.pop()
            if original is not None and original not in seen:
                seen.add(original)
                removed = (v for v in original.inputs if v is not None and not values.is_kept(values.number(v)))
                waiting.extend(map(values.producer, removed))
        return tuple(identity for _, identity in sorted(self._ids[one] for one in seen if one in self._ids))


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
