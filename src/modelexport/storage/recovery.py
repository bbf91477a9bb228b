"""Recover the hierarchy of a file without a sidecar, from its nodes: our stores, torch's metadata, scoped names.

The result is an ordinary document, with its origin and with notes on what it lacks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from modelexport.deadline import reads_files
from modelexport.display import counted
from modelexport.errors import FileFormatError
from modelexport.graph import graph_hash, proto_nodes_with_ids, tensors_with_ids
from modelexport.hierarchy import (
    ROOT_CALL,
    ROOT_PATH,
    SCHEMA_VERSION,
    CallId,
    CallRecord,
    CallTree,
    HierarchyDocument,
    ModuleCall,
    ModuleInfo,
    ModuleRecord,
    ModuleTree,
    NodeRecord,
    Producer,
    TagScheme,
    TagView,
    TensorInfo,
    ancestor_paths,
    confidence,
    parent_path,
)
from modelexport.storage.document_builder import call_record, module_record, tensor_records
from modelexport.storage.exporter_scopes import TagStep, align_tag
from modelexport.storage.node_evidence import NodeEvidence, Origin, named_weights, read_evidence
from modelexport.storage.opened_file import ModelFile

UNKNOWN_CLASS = "unknown"
# A module that no node names: a container, or one whose nodes were all optimized away. It has no segment in tags.
_UNNAMED_CLASS = "silent.unknown"
_VIEW = TagView(exclude=(_UNNAMED_CLASS,))
# How many modules the nodes and weights of a file can name: one path names every module that encloses its own.
_FEW_MODULES = 10_000
_MODULES_PER_NAME = 4
_MOST_PATH_CHARACTERS = 2**26


@dataclasses.dataclass(frozen=True)
class Recovered:
    """A hierarchy and where it comes from.

    Attributes:
        document: The hierarchy.
        origin: The main source of it.
        origins: The number of nodes by origin; ``none`` counts the nodes that name no module.
        missing: What a sidecar would have and this document lacks.
    """

    document: HierarchyDocument
    origin: Origin
    origins: dict[str, int]
    missing: tuple[str, ...] = ()


@reads_files()
def find_hierarchy(file: ModelFile) -> Recovered:
    """The hierarchy of a file: from its sidecar, or recovered without one.

    Raises:
        FileFormatError: No node names a module.
    """
    if file.document is not None:
        return Recovered(file.document, "sidecar", {"sidecar": len(file.document.nodes)})
    try:
        return recover_document(file.proto, file.nodes, digest=file.graph_hash)
    except FileFormatError as error:
        raise FileFormatError(
            f"{file.path} has no hierarchy ({file.missing}, and {error}): export the model with "
            "modelexport export, or tag the file with modelexport tag"
        ) from error


def recover_document(
    proto: onnx.ModelProto,
    nodes: Sequence[tuple[str, onnx.NodeProto]] | None = None,
    model: ir.Model | None = None,
    digest: str | None = None,
) -> Recovered:
    """Build a document from the metadata and names of the nodes of a model.

    Args:
        proto: The model.
        nodes: The result of `proto_nodes_with_ids`, if already computed.
        model: The same model in onnx_ir; with it the document has the producers and consumers of each tensor.
        digest: Its `graph_hash`, if already computed.

    Raises:
        FileFormatError: No node names a module.
    """
    nodes = proto_nodes_with_ids(proto) if nodes is None else nodes
    evidence = read_evidence(proto, nodes)
    origins: Counter[str] = Counter(entry.origin if entry is not None else "none" for entry in evidence)
    # From the most to the least informative; one file has one exporter.
    order: list[Origin] = ["doc_string", "metadata_props", "torch metadata", "scoped names"]
    origin = next((name for name in order if origins[name]), None)
    if origin is None:
        raise FileFormatError(
            "no node names a module: there are neither modelexport tags nor torch metadata nor scoped names"
        )
    weights = named_weights(proto)
    renamed = len(proto.graph.initializer) - len(weights)
    tree = _RecoveredTree(evidence, weights)
    inferred = _from_neighbours(nodes, evidence, tree.calls)
    records = tuple(
        tree.node_record(node_id, _operation(node), entry, inferred.get(node_id))
        for (node_id, node), entry in zip(nodes, evidence, strict=True)
    )
    document = HierarchyDocument(
        schema_version=SCHEMA_VERSION,
        producer=Producer(),
        strategy=next((entry.method for entry in evidence if entry is not None and entry.method), "recovered"),
        exporter=f"recovered from {origin}",
        graph_hash=graph_hash(proto, nodes) if digest is None else digest,
        tag_view=_VIEW,
        modules=tree.module_records(),
        calls=tree.call_records(),
        nodes=records,
        tensors=() if model is None else tensor_records(tensors_with_ids(model), records, tree.modules, {}),
    )
    return Recovered(document, origin, dict(origins), tuple(_missing(tree, origins, renamed)))


class _RecoveredTree:
    """Modules and calls, collected from the evidence of all nodes."""

    def __init__(self, evidence: Iterable[NodeEvidence | None], weights: Mapping[str, TensorInfo]) -> None:
        entries = list(dict.fromkeys(entry for entry in evidence if entry is not None))
        self._classes: dict[str, str] = {}
        self._class_names: dict[str, str] = {}
        # The number of segments in the tag of a path, where known.
        self._lengths: dict[str, int] = {}
        for entry in entries:
            if entry.scope is not None:
                for call, qualified in zip(entry.scope.calls, entry.scope.classes, strict=True):
                    if qualified is not None:
                        self._classes.setdefault(call.path, qualified)
                        self._class_names.setdefault(call.path, qualified.rpartition(".")[2])
            if entry.tag:
                self._lengths[entry.owner.path] = entry.tag.count("/")
        self._steps: dict[str, TagStep] = {}
        self._tags: dict[CallId, str] = {}
        self._module_tags: dict[str, str] = {}
        self._parents: dict[CallId, CallId | None] = {ROOT_CALL: None}
        for entry in entries:
            self._add(entry)
        self._pair_repeated_calls(entries)
        self.modules = self._module_tree(weights, _FEW_MODULES + _MODULES_PER_NAME * (len(entries) + len(weights)))
        self.calls = CallTree({call: ModuleCall(call.path, call.index, above) for call, above in self._parents.items()})
        self._scheme = None if self._tags else TagScheme(self.modules, _VIEW)
        if self._scheme is None:
            # Enclosing modules and callers come first.
            for module in self.modules:
                step = self._steps.get(module.path)
                around = self._module_tags.get(parent_path(module.path) or ROOT_PATH, "/")
                self._module_tags[module.path] = around if step is None else step.tag
            for each in self.calls:
                outer = each
                while outer.id not in self._tags and outer.parent is not None:
                    outer = self.calls[outer.parent]
                self._tags.setdefault(each.id, self._tags.get(outer.id, "/"))
        else:
            self._tags = {call.id: self._scheme.tag(call.id, self.calls) for call in self.calls}
        self._by_tag = {self.tag(call.id): call.id for call in self.calls if self._is_visible(call.path)}
        self.lost_contributors = 0

    @property
    def classes_unknown(self) -> int:
        """How many modules have no known class."""
        return sum(module.class_name == UNKNOWN_CLASS for module in self.modules)

    def _add(self, entry: NodeEvidence) -> None:
        chain = list(entry.scope.calls) if entry.scope is not None else []
        if entry.tag:
            steps = {s.path: s for s in align_tag(entry.owner.path, entry.tag, self._lengths, self._class_names)}
            for path, step in steps.items():
                self._steps.setdefault(path, step)
            inside = [*reversed(list(ancestor_paths(entry.owner.path)))]
            chain = chain[:-1] or [CallId(path) for path in inside if path in steps or path in self._lengths]
            chain = [CallId(call.path, steps[call.path].index if call.path in steps else 0) for call in chain]
            self._tags.update((CallId(s.path, s.index), s.tag) for s in steps.values())
            self._tags[entry.owner] = entry.tag
            chain.append(entry.owner)
        above: CallId | None = None
        for call in chain if chain and chain[0] == ROOT_CALL else [ROOT_CALL, *chain]:
            if call != above:
                self._parents.setdefault(call, above)
                above = call

    def _pair_repeated_calls(self, entries: Iterable[NodeEvidence]) -> None:
        """Scoped names count the calls of each module separately: a child's second call is in its parent's second."""
        for entry in entries:
            call, above = entry.owner, self._parents.get(entry.owner)
            if entry.origin == "scoped names" and call.index and above is not None and not above.index:
                around = CallId(above.path, call.index)
                if around in self._parents:
                    self._parents[call] = around

    def _module_tree(self, weights: Mapping[str, TensorInfo], most: int) -> ModuleTree:
        called = {call.path for call in self._parents}
        paths: dict[str, None] = {}
        characters = 0
        for name in (*(call.path for call in self._parents), *(name.rpartition(".")[0] for name in weights)):
            missing = list(itertools.takewhile(lambda path: path not in paths, (name, *ancestor_paths(name))))
            paths.update(dict.fromkeys(reversed(missing)))
            characters += sum(map(len, missing))
            if len(paths) > most or characters > _MOST_PATH_CHARACTERS:
                raise FileFormatError(
                    f"its nodes name more than {most:,} modules, or modules whose paths have more than "
                    f"{_MOST_PATH_CHARACTERS:,} characters: far more than they can belong to"
                )
        parameters: dict[str, dict[str, TensorInfo]] = {}
        for name, info in weights.items():
            above, _, local = name.rpartition(".")
            parameters.setdefault(above, {})[local] = info
        children: dict[str, dict[str, str]] = {}
        for path in paths:
            if path:
                children.setdefault(parent_path(path) or ROOT_PATH, {})[path.rpartition(".")[2]] = self._class(path)
        return ModuleTree(
            {
                path: ModuleInfo(
                    path,
                    self._class(path),
                    self._classes.get(path, self._class(path) if path in called else _UNNAMED_CLASS),
                    parameters=parameters.get(path, {}),
                    children=children.get(path, {}),
                )
                for path in paths
            }
        )

    def _class(self, path: str) -> str:
        if path in self._class_names:
            return self._class_names[path]
        return self._steps[path].class_name if path in self._steps else UNKNOWN_CLASS

    def _is_visible(self, path: str) -> bool:
        return path in self._steps if self._scheme is None else self._scheme.is_visible(path)

    def tag(self, call: CallId) -> str:
        """The tag of a call: as stored in the file, or computed from the tree where it has none."""
        return self._tags[call]

    def module_records(self) -> tuple[ModuleRecord, ...]:
        """The modules, enclosing ones first."""
        return tuple(module_record(m, self._module_tag(m.path), self._is_visible(m.path)) for m in self.modules)

    def _module_tag(self, path: str) -> str:
        return self._module_tags[path] if self._scheme is None else self._scheme.module_tag(path)

    def call_records(self) -> tuple[CallRecord, ...]:
        """The calls, callers first."""
        return tuple(call_record(call, self.tag(call.id)) for call in self.calls)

    def node_record(self, node_id: str, op: str, entry: NodeEvidence | None, inferred: _Inferred | None) -> NodeRecord:
        """The record of a node, from its own evidence or that of its neighbours."""
        if entry is None:
            found = inferred if inferred is not None else _Inferred(ROOT_CALL, *confidence.nothing_in_file())
            tag = self.tag(found.owner)
            return NodeRecord(node_id, op, str(found.owner), tag, "inferred", found.confidence, found.reason)
        contributors: dict[str, None] = {}
        for tag in entry.contributor_tags:
            call = self._by_tag.get(tag)
            if call is None:
                self.lost_contributors += 1
            elif call != entry.owner:
                contributors[str(call)] = None
        certainty, reason = _confidence_and_reason(entry)
        return NodeRecord(
            node_id, op, str(entry.owner), self.tag(entry.owner), entry.kind, certainty, reason, tuple(contributors)
        )


def _confidence_and_reason(entry: NodeEvidence) -> tuple[float, str]:
    if entry.origin == "torch metadata":
        return confidence.named_by_torch()
    if entry.origin == "scoped names":
        return confidence.named_by_scope()
    return confidence.stored_in_node(entry.kind, entry.origin)


def _operation(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


# --- nodes without evidence ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Inferred:
    owner: CallId
    confidence: float
    reason: str


def _from_neighbours(
    nodes: Sequence[tuple[str, onnx.NodeProto]], evidence: Sequence[NodeEvidence | None], calls: CallTree
) -> dict[str, _Inferred]:
    """The owner of each node without evidence: the innermost common caller of the nearest nodes with evidence."""
    if all(entry is not None for entry in evidence):
        return {}
    owners = [entry.owner if entry is not None else None for entry in evidence]
    producers = {name: position for position, (_, node) in enumerate(nodes) for name in node.output if name}
    consumers: dict[int, list[int]] = {}
    for position, (_, node) in enumerate(nodes):
        for name in node.input:
            if name in producers:
                consumers.setdefault(producers[name], []).append(position)

    def around(found: Iterable[CallId | None]) -> CallId | None:
        known = {call for call in found if call is not None}
        return calls.innermost_around(known) if known else None

    above: list[CallId | None] = list(owners)
    below: list[CallId | None] = list(owners)
    for position, (_, node) in enumerate(nodes):
        if owners[position] is None:
            above[position] = around(above[producers[name]] for name in node.input if name in producers)
    for position in range(len(nodes) - 1, -1, -1):
        if owners[position] is None:
            below[position] = around(below[consumer] for consumer in consumers.get(position, ()))
    inferred: dict[str, _Inferred] = {}
    for position, (node_id, _) in enumerate(nodes):
        owner = around((above[position], below[position])) if owners[position] is None else None
        if owner is not None:
            inferred[node_id] = _Inferred(owner, *confidence.nearest_nodes())
    return inferred


def _missing(tree: _RecoveredTree, origins: Mapping[str, int], renamed: int) -> Iterable[str]:
    """What a document lacks that was recovered without a sidecar."""
    yield "only a sidecar has the inputs and outputs of calls, forward arguments, aliases and reasons"
    if origins.get("none"):
        yield f"owners inferred from neighbours: {counted(origins['none'], 'node')} without the name of a module"
    if origins.get("torch metadata"):
        yield "torch's metadata does not distinguish the calls of one module, nor record what was fused or merged"
    if origins.get("scoped names"):
        yield "scoped names have no classes, and the second call of a module can have the name of another module"
    if origins.get("metadata_props"):
        yield "the metadata has owners but no contributors"
    if tree.classes_unknown:
        yield f"the classes of {counted(tree.classes_unknown, 'module')} are unknown"
    if tree.lost_contributors:
        yield f"left out {counted(tree.lost_contributors, 'contributor')}: modules without nodes"
    if renamed:
        yield f"counted for no module: {counted(renamed, 'initializer')} without the name of a parameter"
