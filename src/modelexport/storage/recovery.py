"""The hierarchy of a file without a sidecar, from what its nodes say: our own stores, torch's metadata, scoped names.

What is found is a document like any other. It says where it comes from, and what it cannot say.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.graph import graph_hash, proto_nodes_with_ids, tensors_with_ids
from modelexport.hierarchy import (
    MAX_DEPTH,
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
from modelexport.storage.document_builder import tensor_records
from modelexport.storage.exporter_scopes import Scope, TagStep, align_tag, read_name_scope, read_torch_scope
from modelexport.storage.metadata_stores import KIND_KEY, MODULE_KEY, TAG_KEY, read_doc_string
from modelexport.storage.opened_file import ModelFile

Origin = Literal["sidecar", "doc_string", "metadata_props", "torch metadata", "scoped names"]
Kind = Literal["exact", "fused", "merged", "folded", "inferred"]

UNKNOWN_CLASS = "unknown"
# A module that no node names: it holds others, or all its nodes are gone. Such ones have no segment in tags.
_SILENT_CLASS = "silent.unknown"
_VIEW = TagView(exclude=(_SILENT_CLASS,))


@dataclasses.dataclass(frozen=True)
class Recovered:
    """A hierarchy and where it comes from.

    Attributes:
        document: The hierarchy.
        origin: What it was read from, mainly.
        origins: How many nodes each origin spoke for; ``none`` stands for the nodes that said nothing.
        missing: What this origin does not tell, in words.
    """

    document: HierarchyDocument
    origin: Origin
    origins: dict[str, int]
    missing: tuple[str, ...] = ()


def find_hierarchy(file: ModelFile) -> Recovered:
    """The hierarchy of a file: its sidecar's, or what can be recovered without one.

    Raises:
        FileFormatError: Nothing in the file speaks of modules.
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
    """A document from what the nodes of a model say.

    Args:
        proto: The model.
        nodes: What `proto_nodes_with_ids` gives for it, where that is known already.
        model: The same model as a graph; with it the document names the makers and readers of each tensor.
        digest: Its `graph_hash`, where that is known already.

    Raises:
        FileFormatError: No node speaks of modules.
    """
    nodes = proto_nodes_with_ids(proto) if nodes is None else nodes
    clues = _read_clues(proto, nodes)
    origins: Counter[str] = Counter(clue.origin if clue is not None else "none" for clue in clues)
    # Ours says most, names say least; one file has one exporter.
    order: list[Origin] = ["doc_string", "metadata_props", "torch metadata", "scoped names"]
    origin = next((name for name in order if origins[name]), None)
    if origin is None:
        raise FileFormatError("no node speaks of modules: neither tags of ours nor torch's metadata nor scoped names")
    weights = _weights(proto)
    renamed = len(proto.graph.initializer) - len(weights)
    draft = _Draft(clues, weights)
    inferred = _from_neighbours(nodes, clues, draft.calls)
    records = tuple(
        draft.node_record(identity, _operation(node), clue, inferred.get(identity))
        for (identity, node), clue in zip(nodes, clues, strict=True)
    )
    document = HierarchyDocument(
        schema_version=SCHEMA_VERSION,
        producer=Producer(),
        strategy=next((clue.method for clue in clues if clue is not None and clue.method), "recovered"),
        exporter=f"recovered from {origin}",
        graph_hash=graph_hash(proto, nodes) if digest is None else digest,
        tag_view=_VIEW,
        modules=draft.module_records(),
        calls=draft.call_records(),
        nodes=records,
        tensors=() if model is None else tensor_records(tensors_with_ids(model), records, draft.modules, {}),
    )
    return Recovered(document, origin, dict(origins), tuple(_missing(draft, origins, renamed)))


# --- what each node says ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Clue:
    """What one node says of its owner."""

    origin: Origin
    owner: CallId
    scope: Scope | None = None
    tag: str = ""
    kind: Kind = "inferred"
    contributor_tags: tuple[str, ...] = ()
    method: str = ""


def _read_clues(proto: onnx.ModelProto, nodes: Sequence[tuple[str, onnx.NodeProto]]) -> list[_Clue | None]:
    known = {path for name in _weights(proto) for path in ancestor_paths(name) if path}
    return [_read_clue(node, known) for _, node in nodes]


def _read_clue(node: onnx.NodeProto, known: set[str]) -> _Clue | None:
    properties = {entry.key: entry.value for entry in node.metadata_props if isinstance(entry.value, str)}
    scope = read_torch_scope(properties)
    stored = read_doc_string(node.doc_string)
    if stored is not None:
        return _ours(
            "doc_string",
            scope,
            stored.module,
            stored.hierarchy_path,
            stored.kind,
            tuple(stored.hierarchy_tags[1:]),
            stored.hierarchy_method,
        )
    if MODULE_KEY in properties and TAG_KEY in properties:
        return _ours(
            "metadata_props", scope, properties[MODULE_KEY], properties[TAG_KEY], properties.get(KIND_KEY, "inferred")
        )
    if scope is not None:
        return _Clue("torch metadata", scope.calls[-1], scope)
    scope = read_name_scope(node.name, node.op_type, known)
    return _Clue("scoped names", scope.calls[-1], scope) if scope is not None else None


def _ours(
    origin: Origin,
    scope: Scope | None,
    module: str,
    tag: str,
    kind: str,
    contributor_tags: tuple[str, ...] = (),
    method: str = "",
) -> _Clue | None:
    if not tag.startswith("/") or kind not in confidence.STORED or module.count(".") > MAX_DEPTH:
        return None
    owner = CallId.parse(module)
    # After fusion torch's metadata is often of another module than the owner.
    fitting = scope if scope is not None and scope.calls[-1].path == owner.path else None
    return _Clue(origin, owner, fitting, tag, cast("Kind", kind), contributor_tags, method)


def _weights(proto: onnx.ModelProto) -> dict[str, TensorInfo]:
    """The weights of the main graph that have the name of a parameter: with the path of its module."""
    return {
        tensor.name: TensorInfo(tuple(tensor.dims), _dtype(tensor.data_type))
        for tensor in proto.graph.initializer
        if 0 < tensor.name.count(".") <= MAX_DEPTH and "::" not in tensor.name and "/" not in tensor.name
    }


def _dtype(data_type: int) -> str:
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(data_type).name)
    except (KeyError, TypeError, ValueError):
        return UNKNOWN_CLASS


def _operation(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


# --- what they say together ------------------------------------------------------------------------------------


class _Draft:
    """Modules and calls, put together from what the nodes say."""

    def __init__(self, clues: Iterable[_Clue | None], weights: Mapping[str, TensorInfo]) -> None:
        said = list(dict.fromkeys(clue for clue in clues if clue is not None))
        self._classes: dict[str, str] = {}
        # How many segments the tag of a path has, where it is known.
        self._lengths: dict[str, int] = {}
        for clue in said:
            if clue.scope is not None:
                for call, qualified in zip(clue.scope.calls, clue.scope.classes, strict=True):
                    if qualified is not None:
                        self._classes.setdefault(call.path, qualified)
            if clue.tag:
                self._lengths[clue.owner.path] = clue.tag.count("/")
        self._steps: dict[str, TagStep] = {}
        self._tags: dict[CallId, str] = {}
        self._parents: dict[CallId, CallId | None] = {ROOT_CALL: None}
        for clue in said:
            self._add(clue)
        self._pair_repeated_calls(said)
        self.modules = self._module_tree(weights)
        self.calls = CallTree({call: ModuleCall(call.path, call.index, above) for call, above in self._parents.items()})
        self._tagged = bool(self._tags)
        self._scheme = TagScheme(self.modules, _VIEW)
        self._by_tag = {self.tag(call.id): call.id for call in self.calls if self._is_visible(call.path)}
        self.lost_contributors = 0

    @property
    def classes_unknown(self) -> int:
        """How many modules have no known class."""
        return sum(module.class_name == UNKNOWN_CLASS for module in self.modules)

    def _add(self, clue: _Clue) -> None:
        chain = list(clue.scope.calls) if clue.scope is not None else []
        if clue.tag:
            names = {path: qualified.rpartition(".")[2] for path, qualified in self._classes.items()}
            steps = {s.path: s for s in align_tag(clue.owner.path, clue.tag, self._lengths, names)}
            self._steps = {**steps, **self._steps}
            inside = [*reversed(list(ancestor_paths(clue.owner.path)))]
            chain = chain[:-1] or [CallId(path) for path in inside if path in steps or path in self._lengths]
            chain = [CallId(call.path, steps[call.path].index if call.path in steps else 0) for call in chain]
            self._tags.update((CallId(s.path, s.index), s.tag) for s in steps.values())
            self._tags[clue.owner] = clue.tag
            chain.append(clue.owner)
        above: CallId | None = None
        for call in chain if chain and chain[0] == ROOT_CALL else [ROOT_CALL, *chain]:
            if call != above:
                self._parents.setdefault(call, above)
                above = call

    def _pair_repeated_calls(self, said: Iterable[_Clue]) -> None:
        """Scoped names count the calls of each module for itself: the second of a child is in its parent's second."""
        for clue in said:
            call, above = clue.owner, self._parents.get(clue.owner)
            if clue.origin == "scoped names" and call.index and above is not None and not above.index:
                around = CallId(above.path, call.index)
                if around in self._parents:
                    self._parents[call] = around

    def _module_tree(self, weights: Mapping[str, TensorInfo]) -> ModuleTree:
        called = {call.path for call in self._parents}
        named = [*(call.path for call in self._parents), *(name.rpartition(".")[0] for name in weights)]
        paths = dict.fromkeys(path for name in named for path in (*reversed(list(ancestor_paths(name))), name))
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
                    self._classes.get(path, self._class(path) if path in called else _SILENT_CLASS),
                    parameters=parameters.get(path, {}),
                    children=children.get(path, {}),
                )
                for path in paths
            }
        )

    def _class(self, path: str) -> str:
        if path in self._classes:
            return self._classes[path].rpartition(".")[2]
        return self._steps[path].class_name if path in self._steps else UNKNOWN_CLASS

    def _is_visible(self, path: str) -> bool:
        return path in self._steps if self._tagged else self._scheme.is_visible(path)

    def tag(self, call: CallId) -> str:
        """The tag of a call: as the file has it, or made from the tree where it has none."""
        if not self._tagged:
            return self._scheme.tag(call, self.calls)
        return next((self._tags[outer] for outer in self.calls.chain(call) if outer in self._tags), "/")

    def module_records(self) -> tuple[ModuleRecord, ...]:
        """The modules, those around others first."""
        return tuple(
            ModuleRecord(
                path=module.path,
                class_name=module.class_name,
                qualified_class=module.qualified_class,
                tag=self._module_tag(module.path),
                visible=self._is_visible(module.path),
                parameters=module.parameters,
                children=module.children,
            )
            for module in self.modules
        )

    def _module_tag(self, path: str) -> str:
        if not self._tagged:
            return self._scheme.module_tag(path)
        around = next((p for p in (path, *ancestor_paths(path)) if p in self._steps), None)
        return self._steps[around].tag if around is not None else "/"

    def call_records(self) -> tuple[CallRecord, ...]:
        """The calls, callers first."""
        return tuple(
            CallRecord(
                id=str(call.id),
                path=call.path,
                index=call.index,
                tag=self.tag(call.id),
                parent=str(call.parent) if call.parent is not None else None,
            )
            for call in self.calls
        )

    def node_record(self, identity: str, op: str, clue: _Clue | None, inferred: _Inferred | None) -> NodeRecord:
        """The record of a node: what it says itself, or what its neighbours let us think."""
        if clue is None:
            found = inferred if inferred is not None else _Inferred(ROOT_CALL, *confidence.nothing_in_file())
            tag = self.tag(found.owner)
            return NodeRecord(identity, op, str(found.owner), tag, "inferred", found.confidence, found.reason)
        contributors: dict[str, None] = {}
        for tag in clue.contributor_tags:
            call = self._by_tag.get(tag)
            if call is None:
                self.lost_contributors += 1
            elif call != clue.owner:
                contributors[str(call)] = None
        certainty, reason = _judgement(clue)
        return NodeRecord(
            identity, op, str(clue.owner), self.tag(clue.owner), clue.kind, certainty, reason, tuple(contributors)
        )


def _judgement(clue: _Clue) -> tuple[float, str]:
    if clue.origin == "torch metadata":
        return confidence.named_by_torch()
    if clue.origin == "scoped names":
        return confidence.named_by_scope()
    return confidence.stored_in_node(clue.kind, clue.origin)


# --- nodes that say nothing ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Inferred:
    owner: CallId
    confidence: float
    reason: str


def _from_neighbours(
    nodes: Sequence[tuple[str, onnx.NodeProto]], clues: Sequence[_Clue | None], calls: CallTree
) -> dict[str, _Inferred]:
    """The owner of each node without a clue: the innermost call around the nearest nodes that have one."""
    if all(clue is not None for clue in clues):
        return {}
    owners = [clue.owner if clue is not None else None for clue in clues]
    producers = {name: position for position, (_, node) in enumerate(nodes) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    for position, (_, node) in enumerate(nodes):
        for name in node.input:
            if name in producers:
                readers.setdefault(producers[name], []).append(position)

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
            below[position] = around(below[reader] for reader in readers.get(position, ()))
    inferred: dict[str, _Inferred] = {}
    for position, (identity, _) in enumerate(nodes):
        owner = around((above[position], below[position])) if owners[position] is None else None
        if owner is not None:
            inferred[identity] = _Inferred(owner, *confidence.nearest_nodes())
    return inferred


def _missing(draft: _Draft, origins: Mapping[str, int], renamed: int) -> Iterable[str]:
    """What a document lacks that was put together without a sidecar."""
    yield "boundaries of calls, forward arguments, aliases and reasons are in a sidecar alone"
    if origins.get("none"):
        yield f"{origins['none']} nodes say nothing: their owners are reasoned from their neighbours"
    if origins.get("torch metadata"):
        yield "torch's metadata does not tell the calls of one module apart, nor what was fused or merged"
    if origins.get("scoped names"):
        yield "scoped names hold no classes, and the second call of a module can look like another module"
    if origins.get("metadata_props"):
        yield "the metadata names owners alone, no contributors"
    if draft.classes_unknown:
        yield f"the classes of {draft.classes_unknown} modules are not known"
    if draft.lost_contributors:
        yield f"{draft.lost_contributors} contributors are modules that no node belongs to any more"
    if renamed:
        yield f"{renamed} weights or constants have lost the name of their parameter: they count with no module"
