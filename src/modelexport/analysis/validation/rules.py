"""What `validate` checks, each rule a small function from the file to what breaks it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from modelexport.analysis import Case, Severity
from modelexport.analysis.contamination import types_compatible
from modelexport.analysis.validation.subject import Subject
from modelexport.hierarchy import (
    ROOT_CALL,
    ROOT_PATH,
    CallId,
    CallRecord,
    CallTree,
    HierarchyDocument,
    ModuleCall,
    TagScheme,
    parent_path,
)
from modelexport.storage import has_node_properties, hash_file, strip_hierarchy

# How the exporter of a document is named that was put together from what nodes say.
RECOVERED = "recovered from"
# One segment or more, each begun by a slash, none of them empty.
_TAG = re.compile(r"(?:/[^/\x00-\x1f]+)+")

# Fewer than these are looked through one by one.
_FEW = 8


@dataclasses.dataclass(frozen=True)
class Breach:
    """Something that breaks a rule: what, at which node, and how bad, where that is not as bad as the rule says."""

    message: str
    node: str | None = None
    severity: Severity | None = None
    case: Case | None = None


# --- the graph -------------------------------------------------------------------------------------------------


def check_onnx(subject: Subject) -> Iterator[Breach]:
    """The ONNX checker accepts the file."""
    if subject.model_checks.checker:
        yield Breach(subject.model_checks.checker)


def check_shapes(subject: Subject) -> Iterator[Breach]:
    """Shape inference finds no contradiction."""
    if subject.model_checks.shapes:
        yield Breach(subject.model_checks.shapes)


def check_topology(subject: Subject) -> Iterator[Breach]:
    """Without our metadata, the graph is that of the baseline: nodes, names, order, attributes, weights' types."""
    if subject.baseline is None:
        return
    ours = strip_hierarchy(subject.model)
    theirs = strip_hierarchy(subject.baseline)
    yield from _first_difference("input", list(ours.graph.input), list(theirs.graph.input))
    yield from _first_difference("output", list(ours.graph.output), list(theirs.graph.output))
    yield from _first_difference("node", list(ours.graph.node), list(theirs.graph.node))
    yield from _first_difference("function", list(ours.functions), list(theirs.functions))
    mine, other = ({t.name: (t.data_type, tuple(t.dims)) for t in m.graph.initializer} for m in (ours, theirs))
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            yield Breach(f"the weight {name!r} differs: {mine.get(name)} here, {other.get(name)} in the baseline")
    opsets, others = ({o.domain: o.version for o in m.opset_import} for m in (ours, theirs))
    if opsets != others:
        yield Breach(f"the opsets differ: {opsets} here, {others} in the baseline")


def _first_difference(what: str, ours: list[Any], theirs: list[Any]) -> Iterator[Breach]:
    for position, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True):
            yield Breach(
                f"the first {what} that differs is number {position}: {_called(mine)} here, {_called(other)} there"
            )
            return
    if len(ours) != len(theirs):
        yield Breach(f"there are {len(ours)} {what}s here, and {len(theirs)} in the baseline")


def _called(item: Any) -> str:
    kind = getattr(item, "op_type", "")
    names = ", ".join(getattr(item, "output", ())) or item.name
    return f"{kind} {names!r}".strip()


# --- the stores ------------------------------------------------------------------------------------------------


def check_sidecar(subject: Subject) -> Iterator[Breach]:
    """There is a sidecar, and it can be read."""
    if subject.unreadable:
        yield Breach(subject.unreadable)
    elif subject.document is None:
        yield Breach(f"there is no sidecar {subject.sidecar.name}", severity=Severity.WARNING)


def check_belongs(subject: Subject) -> Iterator[Breach]:
    """The sidecar describes this graph."""
    document = _document(subject)
    if document.graph_hash != hash_file(subject.path, subject.model, subject.nodes):
        yield Breach(f"the sidecar {subject.sidecar.name} describes another graph than {subject.path.name}")


def check_coverage(subject: Subject) -> Iterator[Breach]:
    """Every node has an owner, in the sidecar and in the node itself."""
    for (identity, _), stores in zip(subject.nodes, subject.stores, strict=True):
        if subject.document is not None and identity not in subject.records:
            yield Breach("the sidecar does not know the node", identity)
        if stores.doc_string is None and stores.module is None:
            yield Breach("the node itself names no owner", identity)
    if subject.document is not None:
        known = {identity for identity, _ in subject.nodes}
        for record in subject.document.nodes:
            if record.id not in known:
                yield Breach("the sidecar describes a node that the graph does not have", record.id)


def check_tag_format(subject: Subject) -> Iterator[Breach]:
    """Tags are paths of classes, and each node's list of them agrees with itself."""
    good: set[str] = set()
    for (identity, _), stores in zip(subject.nodes, subject.stores, strict=True):
        if stores.damaged:
            yield Breach("its doc_string begins like one of ours and cannot be read", identity)
        stored = stores.doc_string
        tags = list(stored.hierarchy_tags) if stored is not None else []
        if stores.tag is not None:
            tags.append(stores.tag)
        for tag in tags:
            if tag not in good and _TAG.fullmatch(tag) is None:
                yield Breach(f"{tag!r} is not a tag: one is written /Class/Class.name", identity)
            else:
                good.add(tag)
        if stored is None:
            continue
        if stored.hierarchy_count != len(stored.hierarchy_tags):
            yield Breach(f"it counts {stored.hierarchy_count} tags and has {len(stored.hierarchy_tags)}", identity)
        if stored.hierarchy_path != next(iter(stored.hierarchy_tags), None):
            yield Breach(f"its first tag is not that of its owner, {stored.hierarchy_path!r}", identity)


def check_stores_agree(subject: Subject) -> Iterator[Breach]:
    """doc_string, metadata_props and sidecar say the same of every node."""
    tags = {call.id: call.tag for call in subject.document.calls} if subject.document is not None else {}
    for (identity, _), stores in zip(subject.nodes, subject.stores, strict=True):
        said: dict[str, tuple[str | None, str | None, str | None]] = {}
        stored, record = stores.doc_string, subject.records.get(identity)
        if stored is not None:
            said["doc_string"] = (stored.module, stored.hierarchy_path, stored.kind)
        elif subject.document is not None:
            yield Breach("it has no doc_string of ours, and the sidecar has an owner for it", identity)
        if stores.module is not None:
            said["metadata_props"] = (stores.module, stores.tag, stores.kind)
        elif stored is not None and has_node_properties(subject.model):
            yield Breach("it has no metadata_props of ours beside its doc_string", identity, Severity.WARNING)
        if record is not None:
            said["sidecar"] = (record.module, record.tag, record.kind)
        if len(set(said.values())) > 1:
            different = "; ".join(f"{store}: {' '.join(map(repr, what))}" for store, what in said.items())
            yield Breach(f"its stores disagree on owner, tag or kind: {different}", identity)
        elif stored is not None and record is not None:
            others = tuple(tags.get(call, "") for call in record.contributors)
            if stored.hierarchy_tags[1:] != others:
                yield Breach("doc_string and sidecar name different contributors", identity)


# --- the hierarchy ---------------------------------------------------------------------------------------------


def check_tags_exist(subject: Subject) -> Iterator[Breach]:
    """Every tag is the one that the tree of modules gives to the call."""
    document = _document(subject)
    expected = {call.id: call.tag for call in document.calls}
    if not document.exporter.startswith(RECOVERED):
        # A tree that was put together from tags has the modules that tags show, and no more.
        yield from _tags_of_the_tree(document)
    for record in document.nodes:
        tag = expected.get(record.module)
        if tag is None:
            yield Breach(f"its owner {record.module!r} is no call", record.id)
        elif record.tag != tag:
            yield Breach(f"it has the tag {record.tag!r}, and its owner's is {tag!r}", record.id)


def _tags_of_the_tree(document: HierarchyDocument) -> Iterator[Breach]:
    scheme = TagScheme(document.tree(), document.tag_view)
    calls = _call_tree(document)
    for call in document.calls:
        expected = scheme.tag(_identity(call), calls)
        if call.tag != expected:
            yield Breach(f"the call {call.id!r} has the tag {call.tag!r}, and the tree gives {expected!r}")
    for module in document.modules:
        if module.tag != scheme.module_tag(module.path):
            yield Breach(f"the module {module.path!r} has the tag {module.tag!r}, which the tree does not give it")


def check_hierarchy(subject: Subject) -> Iterator[Breach]:
    """Modules and calls hang together: children are there, calls are numbered, callers are calls."""
    document = _document(subject)
    modules = {module.path: module for module in document.modules}
    if len(modules) != len(document.modules):
        yield Breach("a module is listed twice")
    for module in document.modules:
        above = parent_path(module.path)
        if above is None:
            continue
        name = module.path.rpartition(".")[2]
        listed = modules[above].children.get(name) if above in modules else None
        if listed != module.class_name:
            yield Breach(f"the module {module.path!r} is a {module.class_name}, and the one around it lists {listed}")
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for call in document.calls:
        if call.index != counts[call.path]:
            yield Breach(
                f"the call {call.id!r} has the number {call.index}, and is number {counts[call.path]} of its module"
            )
        counts[call.path] += 1
        if call.id != str(CallId(call.path, call.index)):
            yield Breach(f"the call {call.id!r} is not named after its module and number")
        if call.parent is None and call.path != ROOT_PATH:
            yield Breach(f"nobody made the call {call.id!r}")
        if call.parent is not None and call.parent not in seen:
            yield Breach(f"the call {call.id!r} comes before {call.parent!r}, which made it")
        seen.add(call.id)


def check_boundaries(subject: Subject) -> Iterator[Breach]:
    """Tensors of boundaries are in the graph, and look there as they were seen."""
    document = _document(subject)
    for call in document.calls:
        for boundary in (*call.inputs, *call.outputs):
            if boundary.tensor is None:
                continue
            if boundary.tensor not in subject.tensors:
                yield Breach(f"{boundary.tensor!r} at the boundary of {call.id!r} is no tensor of the graph")
            elif not types_compatible(boundary.info, subject.types.get(boundary.tensor)):
                yield Breach(
                    f"{boundary.tensor!r} at the boundary of {call.id!r} was {boundary.info} when it was recorded, "
                    f"and is {subject.types[boundary.tensor]} in the graph"
                )


def check_tensors(subject: Subject) -> Iterator[Breach]:
    """Who makes and reads a tensor of the main graph is who owns the nodes that do."""
    makers = {tensor.id: tensor.producer for tensor in _document(subject).tensors}
    # Most tensors have one reader, a weight or a mask may have thousands.
    readers = {
        tensor.id: tensor.consumers if len(tensor.consumers) < _FEW else frozenset(tensor.consumers)
        for tensor in _document(subject).tensors
    }
    if not makers:
        return
    for identity, node in subject.main_nodes:
        record = subject.records.get(identity)
        if record is None:
            continue
        for name in node.output:
            if name in makers and makers[name] != record.module:
                yield Breach(f"{name!r} is said to be made by {makers[name]!r}, and its node is of {record.module!r}")
        for name in node.input:
            if name in readers and record.module not in readers[name]:
                yield Breach(f"{name!r} is read by {record.module!r}, which is not among its consumers", identity)


def check_owners(subject: Subject) -> Iterator[Breach]:
    """No node is owned by a call that did not run it, as far as the file shows."""
    for found in subject.owner_check.findings():
        yield Breach(found.message, found.node, found.severity, found.case)


def _document(subject: Subject) -> HierarchyDocument:
    assert subject.document is not None, "the rule says that it needs one"
    return subject.document


def _identity(call: CallRecord) -> CallId:
    return CallId(call.path, call.index)


def _call_tree(document: HierarchyDocument) -> CallTree:
    known = {call.id: _identity(call) for call in document.calls}
    return CallTree(
        {
            _identity(call): ModuleCall(
                call.path, call.index, known.get(call.parent, ROOT_CALL) if call.parent is not None else None
            )
            for call in document.calls
        }
    )
