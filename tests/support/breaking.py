"""Files with owners that are wrong on purpose: nodes moved to another call in all three stores."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import onnx

import modelexport
from modelexport.analysis.contamination.call_index import CallIndex, NodeOwners
from modelexport.analysis.contamination.owner_check import OwnerCheck, find_suspects
from modelexport.graph.flow_graph import NO_NODE, FlowGraph, read_flow_graph
from modelexport.hierarchy.document import CallRecord, HierarchyDocument, NodeRecord
from modelexport.hierarchy.document_codec import decode_document, encode_document
from modelexport.storage.metadata_stores import write_stores
from modelexport.storage.transaction import sidecar_path


def read_document(path: Path) -> HierarchyDocument:
    sidecar = sidecar_path(path)
    return decode_document(sidecar.read_bytes(), str(sidecar))


def with_owners(document: HierarchyDocument, owners: Mapping[str, str]) -> HierarchyDocument:
    """The document with other owners for these nodes, tags and all; nothing else about them is changed."""
    tags = {call.id: call.tag for call in document.calls}

    def moved(record: NodeRecord) -> NodeRecord:
        owner = owners.get(record.id)
        if owner is None:
            return record
        others = tuple(call for call in record.contributors if call != owner)
        return msgspec.structs.replace(record, module=owner, tag=tags[owner], contributors=others)

    return msgspec.structs.replace(document, nodes=tuple(moved(record) for record in document.nodes))


def _with_tensors(document: HierarchyDocument, model: onnx.ModelProto) -> HierarchyDocument:
    """The document with producers and consumers of tensors as they follow from the owners of nodes."""
    owners = {node.id: (node.module, *node.contributors) for node in document.nodes}
    found: dict[str, tuple[str | None, dict[str, None]]] = {}
    flow = read_flow_graph(model)
    for number, name in enumerate(flow.tensor_names):
        producer = flow.producers[number]
        consumers = dict.fromkeys(call for node in flow.consumers[number] for call in owners[flow.node_ids[node]])
        producer_id = flow.node_ids[producer] if producer != NO_NODE else None
        key = name if flow.tensor_numbers.get(name) == number else producer_id
        if key is not None:
            found[key] = (owners[producer_id][0] if producer_id is not None else None, consumers)
    tensors = tuple(
        msgspec.structs.replace(tensor, producer=found[tensor.id][0], consumers=tuple(found[tensor.id][1]))
        if tensor.id in found
        else tensor
        for tensor in document.tensors
    )
    return msgspec.structs.replace(document, tensors=tensors)


def write_artifact(path: Path, model: onnx.ModelProto, document: HierarchyDocument) -> Path:
    """Write all three stores."""
    document = _with_tensors(document, model)
    bare = modelexport.strip_hierarchy(model)
    write_stores(bare, document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bare.SerializeToString())
    sidecar_path(path).write_bytes(encode_document(document))
    return path


def write_broken(source: Path, target: Path, owners: Mapping[str, str]) -> Path:
    """A copy of an artifact with inline weights, with other owners for these nodes."""
    return write_artifact(target, onnx.load(source), with_owners(read_document(source), owners))


def random_moves(document: HierarchyDocument, number: int, seed: int) -> list[tuple[str, str]]:
    """Nodes, each with another call than its own, all drawn evenly; none of these pairs twice."""
    return _drawn(document, {node.id: _wrong_owners(node, document) for node in document.nodes}, number, seed)


def near_moves(document: HierarchyDocument, number: int, seed: int) -> list[tuple[str, str]]:
    """As `random_moves`, to the caller, a callee or a call beside: the ones that are hardest to tell."""
    by_id = {call.id: call for call in document.calls}
    callees: dict[str | None, list[str]] = {}
    for call in document.calls:
        callees.setdefault(call.parent, []).append(call.id)
    near = {
        node.id: [c for c in _around(by_id[node.module], callees) if c in _wrong_owners(node, document)]
        for node in document.nodes
    }
    return _drawn(document, near, number, seed)


def all_at_once(document: HierarchyDocument, number: int, seed: int) -> dict[str, str]:
    """So many nodes, each with one other call."""
    draw = random.Random(seed)
    nodes = draw.sample(document.nodes, min(number, len(document.nodes)))
    return {node.id: draw.choice(_wrong_owners(node, document)) for node in nodes}


def _wrong_owners(node: NodeRecord, document: HierarchyDocument) -> list[str]:
    """The calls that did not run the node; of several that ran equal ones, each is as right as the first."""
    right = {node.module, *(node.contributors if node.kind == "merged" else ())}
    return [call.id for call in document.calls if call.id not in right]


def _drawn(
    document: HierarchyDocument, targets: Mapping[str, list[str]], number: int, seed: int
) -> list[tuple[str, str]]:
    """Node by node, round after round, so that a small model has its nodes several times, each time elsewhere."""
    draw = random.Random(seed)
    left = {node.id: draw.sample(targets[node.id], len(targets[node.id])) for node in document.nodes}
    moves: list[tuple[str, str]] = []
    while len(moves) < number and any(left.values()):
        nodes = [node for node, calls in left.items() if calls]
        moves.extend((node, left[node].pop()) for node in draw.sample(nodes, min(number - len(moves), len(nodes))))
    return moves


def _around(call: CallRecord, callees: Mapping[str | None, Iterable[str]]) -> list[str]:
    above = [call.parent] if call.parent is not None else []
    beside = callees.get(call.parent, []) if call.parent is not None else []
    return [other for other in (*above, *beside, *callees.get(call.id, ())) if other != call.id]


def suspects(check: OwnerCheck, owners: Mapping[str, str]) -> set[str]:
    """The suspects of a file if these nodes had these owners."""
    return {check.flow.node_ids[found.node] for found in check.suspects(with_owners(check.document, owners))}


def suspects_when_moved(check: OwnerCheck, node: str, owner: str) -> set[str]:
    """`suspects` for one moved node in a file without suspects: checks only the nodes that the move can affect."""
    recorded = NodeOwners(check.document, check.flow, check.calls)
    moved = NodeOwners(with_owners(check.document, {node: owner}), check.flow, check.calls)
    number = check.flow.node_ids.index(node)
    nodes = {other for owners in (recorded, moved) for other in _affected(number, owners, check.flow, check.calls)}
    return {check.flow.node_ids[found.node] for found in find_suspects(check.rules, moved, sorted(nodes))}


def _affected(node: int, owners: NodeOwners, flow: FlowGraph, calls: CallIndex) -> set[int]:
    """The nodes whose conflicts may change with the owner of this one."""
    found = {node}
    for tensor in (*flow.node_inputs[node], *flow.node_outputs[node]):
        found.update(flow.consumers[tensor])
        found.add(flow.producers[tensor])
    if any(flow.graph_numbers):
        found.add(flow.owning_nodes[node])
        found.update(inner for inner, owning_node in enumerate(flow.owning_nodes) if owning_node == node)
        found.update(other for call in calls.with_callers(owners.owner(node)) for other in owners.recorded_nodes(call))
    return found - {NO_NODE}
