"""Files with owners that are wrong on purpose: nodes moved to another call in all three stores."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import onnx

import modelexport
from modelexport.artifact import sidecar_path
from modelexport.carriers import write_stores
from modelexport.document import CallRecord, HierarchyDocument, NodeRecord, decode_document, encode_document


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


def write_artifact(path: Path, model: onnx.ModelProto, document: HierarchyDocument) -> Path:
    """Write all three stores."""
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
    """Nodes, each with another call than its own, all drawn evenly; small models have nodes several times."""
    draw = random.Random(seed)
    calls = [call.id for call in document.calls]
    nodes = draw.sample(document.nodes, min(number, len(document.nodes)))
    return [(node.id, draw.choice([call for call in calls if call != node.module])) for node in nodes]


def near_moves(document: HierarchyDocument, number: int, seed: int) -> list[tuple[str, str]]:
    """As `random_moves`, to the caller, a callee or a call beside: the ones that are hardest to tell."""
    draw = random.Random(seed)
    by_id = {call.id: call for call in document.calls}
    callees: dict[str | None, list[str]] = {}
    for call in document.calls:
        callees.setdefault(call.parent, []).append(call.id)
    moves = []
    for node in draw.sample(document.nodes, min(number, len(document.nodes))):
        near = _around(by_id[node.module], callees)
        if near:
            moves.append((node.id, draw.choice(near)))
    return moves


def _around(call: CallRecord, callees: Mapping[str | None, Iterable[str]]) -> list[str]:
    above = [call.parent] if call.parent is not None else []
    beside = callees.get(call.parent, []) if call.parent is not None else []
    return [other for other in (*above, *beside, *callees.get(call.id, ())) if other != call.id]
