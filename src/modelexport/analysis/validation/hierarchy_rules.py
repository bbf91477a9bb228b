"""Rules about the content of the sidecar: modules, calls, tags, boundaries, tensors, owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from modelexport.analysis.contamination import FIX, types_compatible
from modelexport.analysis.contamination import RULE as CONTAMINATION
from modelexport.analysis.validation.rule import Rule, ValidatedFile, Violation
from modelexport.hierarchy import (
    ROOT_PATH,
    CallId,
    HierarchyDocument,
    TagScheme,
    parent_path,
)

# The exporter of a document that was recovered from the nodes starts with this.
_RECOVERED = "recovered from"
# Up to this many consumers, a search in the tuple is faster than building a set.
_MAX_SEARCHED = 8


def _check_tags_exist(file: ValidatedFile) -> Iterator[Violation]:
    document = file.required_document
    expected = {call.id: call.tag for call in document.calls}
    if not document.exporter.startswith(_RECOVERED):
        # A recovered module tree has only the modules that tags name.
        yield from _check_tags_of_tree(document)
    for record in document.nodes:
        tag = expected.get(record.module)
        if tag is None:
            yield Violation(f"its owner {record.module!r} is not a call", record.id)
        elif record.tag != tag:
            yield Violation(f"its tag is {record.tag!r}, but its owner's is {tag!r}", record.id)


def _check_tags_of_tree(document: HierarchyDocument) -> Iterator[Violation]:
    scheme = TagScheme(document.tree(), document.tag_view)
    calls = document.call_tree()
    for call in document.calls:
        expected = scheme.tag(CallId(call.path, call.index), calls)
        if call.tag != expected:
            yield Violation(f"the tag of call {call.id!r} is {call.tag!r}, but {expected!r} in the module tree")
    for module in document.modules:
        expected = scheme.module_tag(module.path)
        if module.tag != expected:
            yield Violation(f"the tag of module {module.path!r} is {module.tag!r}, but {expected!r} in the module tree")


def _check_hierarchy(file: ValidatedFile) -> Iterator[Violation]:
    document = file.required_document
    modules = {module.path: module for module in document.modules}
    if len(modules) != len(document.modules):
        yield Violation("a module is listed twice")
    for module in document.modules:
        parent = parent_path(module.path)
        if parent is None:
            continue
        name = module.path.rpartition(".")[2]
        listed = modules[parent].children.get(name) if parent in modules else None
        if listed != module.class_name:
            yield Violation(f"the module {module.path!r} is a {module.class_name}, but its parent lists {listed}")
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for call in document.calls:
        if call.index != counts[call.path]:
            yield Violation(f"the index of call {call.id!r} is {call.index}, but should be {counts[call.path]}")
        counts[call.path] += 1
        if call.id != str(CallId(call.path, call.index)):
            yield Violation(f"the id of call {call.id!r} does not match its module and index")
        if call.parent is None and call.path != ROOT_PATH:
            yield Violation(f"the call {call.id!r} has no caller")
        if call.parent is not None and call.parent not in seen:
            yield Violation(f"the call {call.id!r} is listed before its caller {call.parent!r}")
        seen.add(call.id)


def _check_boundaries(file: ValidatedFile) -> Iterator[Violation]:
    for call in file.required_document.calls:
        for boundary in (*call.inputs, *call.outputs):
            if boundary.tensor is None:
                continue
            if boundary.tensor not in file.tensors:
                yield Violation(f"the graph has no tensor {boundary.tensor!r}, a boundary tensor of call {call.id!r}")
            elif not types_compatible(boundary.info, file.types.get(boundary.tensor)):
                yield Violation(
                    f"{boundary.tensor!r}, a boundary tensor of call {call.id!r}, was recorded as {boundary.info}, but "
                    f"is {file.types[boundary.tensor]} in the graph"
                )


def _check_tensors(file: ValidatedFile) -> Iterator[Violation]:
    tensors = file.required_document.tensors
    producers = {tensor.id: tensor.producer for tensor in tensors}
    # Most tensors have one consumer; a weight or a mask can have thousands.
    consumers = {
        tensor.id: tensor.consumers if len(tensor.consumers) < _MAX_SEARCHED else frozenset(tensor.consumers)
        for tensor in tensors
    }
    if not producers:
        return
    for node_id, node in file.main_nodes:
        record = file.records.get(node_id)
        if record is None:
            continue
        for name in node.output:
            if name in producers and producers[name] != record.module:
                yield Violation(
                    f"the producer of {name!r} is {producers[name]!r}, but the owner of its node is {record.module!r}"
                )
        for name in node.input:
            if name in consumers and record.module not in consumers[name]:
                yield Violation(f"its owner {record.module!r} is not listed as a consumer of {name!r}", node_id)


def _check_owners(file: ValidatedFile) -> Iterator[Violation]:
    for found in file.owner_check.findings():
        yield Violation(found.message, found.node, found.severity, found.case)


HIERARCHY_RULES = (
    Rule("tags-exist", "every tag follows from the module tree", _check_tags_exist, needs_document=True),
    Rule("hierarchy", "modules and calls are consistent", _check_hierarchy, needs_document=True),
    Rule(
        "boundaries",
        "boundary tensors are in the graph, with the recorded type and shape",
        _check_boundaries,
        needs_document=True,
    ),
    Rule("tensors", "the producer and the consumers of a tensor own its nodes", _check_tensors, needs_document=True),
    Rule(
        CONTAMINATION,
        "no node is owned by a call that did not run it",
        _check_owners,
        needs_document=True,
        fix=FIX,
        optional=True,
        lists_all=True,
    ),
)
