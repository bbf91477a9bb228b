"""The hierarchy of a graph from what its own nodes say, for a file without its sidecar."""

from __future__ import annotations

import re
from collections.abc import Container

import onnx_ir as ir

from modelexport.attribution import Kind
from modelexport.carriers import StoredHierarchy, read_doc_string
from modelexport.document import (
    SCHEMA_VERSION,
    CallRecord,
    HierarchyDocument,
    ModuleRecord,
    NodeRecord,
    Producer,
    tensor_records,
)
from modelexport.errors import InputError
from modelexport.graph import graph_hash, identified_nodes, identified_tensors, operation
from modelexport.hierarchy import ROOT_CALL, ROOT_PATH, CallId, ModuleTree, ancestor_paths, common_ancestor, parent_path
from modelexport.resolution import NO_EVIDENCE
from modelexport.tags import TagView

_INDEX = re.compile(r"@(\d+)(?=/|$)")
_UNKNOWN = "the node says so itself; there is no sidecar that says why"


def document_from_stores(model: ir.Model) -> HierarchyDocument:
    """What the nodes' `doc_string`s tell: owners, tags, and the calls and modules that follow from them.

    Arguments and results of calls, classes, aliases, parameters, and modules that left no node are not known.

    Raises:
        InputError: The nodes carry no hierarchy.
    """
    nodes = identified_nodes(model)
    stored = {identity: found for identity, node in nodes if (found := read_doc_string(node.doc_string)) is not None}
    if not stored:
        raise InputError(
            "the model carries no hierarchy: export it with modelexport, or tag it first (modelexport tag), "
            "or give the hierarchy that belongs to it"
        )
    parents = _parents(stored)
    tags = {CallId.parse(found.module): found.hierarchy_path for found in reversed(stored.values())}
    root_tag = "/" + next(iter(stored.values())).hierarchy_path.split("/")[1]
    by_tag = _calls_by_tag(tags)
    records = tuple(
        _node_record(identity, node, stored.get(identity), by_tag, parents, root_tag) for identity, node in nodes
    )
    paths = dict.fromkeys(call.path for call in parents)
    modules = tuple(ModuleRecord(path, "", "", tags.get(CallId(path), root_tag), visible=False) for path in paths)
    return HierarchyDocument(
        schema_version=SCHEMA_VERSION,
        producer=Producer(),
        strategy=next(iter(stored.values())).hierarchy_method,
        exporter="unknown",
        graph_hash=graph_hash(model),
        tag_view=TagView(),
        modules=modules,
        calls=tuple(
            CallRecord(str(call), call.path, call.index, tags.get(call, ""), None if parent is None else str(parent))
            for call, parent in parents.items()
        ),
        nodes=records,
        tensors=tensor_records(identified_tensors(model, nodes), records, ModuleTree({}), {}),
    )


def _calls_by_tag(tags: dict[CallId, str]) -> dict[str, CallId]:
    """The call that a tag stands for. Hidden modules show the tag of the one around them: then it is that one."""
    found: dict[str, CallId] = {}
    for call, tag in tags.items():
        known = found.get(tag)
        found[tag] = call if known is None else CallId(common_ancestor(known.path, call.path), known.index)
    return {tag: call if call.path else ROOT_CALL for tag, call in found.items()}


def _node_record(
    identity: str,
    node: ir.Node,
    stored: StoredHierarchy | None,
    by_tag: dict[str, CallId],
    calls: Container[CallId],
    root_tag: str,
) -> NodeRecord:
    op = operation(node)
    if stored is None:
        return NodeRecord(
            identity, op, str(ROOT_CALL), root_tag, Kind.INFERRED.value, NO_EVIDENCE, "the node says nothing"
        )
    others = [by_tag[tag] for tag in stored.hierarchy_tags[1:] if tag in by_tag and by_tag[tag] in calls]
    contributors = tuple(dict.fromkeys(name for call in others if (name := str(call)) != stored.module))
    kind = Kind(stored.kind) if stored.kind in list(Kind) else Kind.INFERRED
    return NodeRecord(identity, op, stored.module, stored.hierarchy_path, kind.value, 1.0, _UNKNOWN, contributors)


def _parents(stored: dict[str, StoredHierarchy]) -> dict[CallId, CallId | None]:
    """The calls that own nodes and those around them, callers first, each with its caller.

    Which call of a module made which call of its child is not stored. The calls of the child come in order, so where
    their number is a multiple of the module's, each of its calls made as many; otherwise the first is taken.
    """
    seen: dict[str, int] = {ROOT_PATH: 1}
    repeated: dict[str, int] = {}
    for found in stored.values():
        call = CallId.parse(found.module)
        seen[call.path] = max(seen.get(call.path, 1), call.index + 1)
        shown = max((int(index) for index in _INDEX.findall(found.hierarchy_path)), default=0) + 1
        for path in ancestor_paths(call.path):
            repeated[path] = max(repeated.get(path, 1), shown)
    # A module that owns no node itself: as many calls as the tags below it show.
    for path, shown in repeated.items():
        seen.setdefault(path, shown)
    seen[ROOT_PATH] = 1
    parents: dict[CallId, CallId | None] = {}
    for path in sorted(seen, key=lambda path: (path.count(".") + bool(path), path)):
        above = parent_path(path)
        for index in range(seen[path]):
            if above is None:
                parents[CallId(path, index)] = None
                continue
            share, rest = divmod(seen[path], seen[above])
            parents[CallId(path, index)] = CallId(above, index // share if not rest else 0)
    return parents
