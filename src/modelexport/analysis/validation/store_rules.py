"""Rules about the three stores of the hierarchy: doc_string, metadata_props and sidecar."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modelexport.analysis import Severity
from modelexport.analysis.validation.rule import REPAIR, Rule, ValidatedFile, Violation
from modelexport.storage import has_node_properties

# One or more segments, each a slash and a name without control characters.
_TAG = re.compile(r"(?:/[^/\x00-\x1f]+)+")


def _check_sidecar(file: ValidatedFile) -> Iterator[Violation]:
    if file.sidecar_problem:
        yield Violation(file.sidecar_problem)
    elif file.document is None:
        yield Violation(f"there is no sidecar {file.sidecar.name}", severity=Severity.WARNING)


def _check_sidecar_hash(file: ValidatedFile) -> Iterator[Violation]:
    if file.required_document.graph_hash != file.opened.graph_hash:
        yield Violation(f"the sidecar {file.sidecar.name} describes another graph than {file.path.name}")


def _check_coverage(file: ValidatedFile) -> Iterator[Violation]:
    for (node_id, _), stores in zip(file.nodes, file.opened.stores, strict=True):
        if file.document is not None and node_id not in file.records:
            yield Violation("the sidecar does not have the node", node_id)
        if stores.doc_string is None and stores.module is None:
            yield Violation("the node itself has no owner", node_id)
    if file.document is not None:
        known = {node_id for node_id, _ in file.nodes}
        for record in file.document.nodes:
            if record.id not in known:
                yield Violation("the sidecar describes a node that the graph does not have", record.id)


def _check_tag_format(file: ValidatedFile) -> Iterator[Violation]:
    """Tags are paths of classes, and the fields of a node's doc_string are consistent."""
    valid: set[str] = set()
    for (node_id, _), stores in zip(file.nodes, file.opened.stores, strict=True):
        if stores.damaged:
            yield Violation("its doc_string begins like ours but cannot be decoded", node_id)
        stored = stores.doc_string
        tags = list(stored.hierarchy_tags) if stored is not None else []
        if stores.tag is not None:
            tags.append(stores.tag)
        for tag in tags:
            if tag not in valid and _TAG.fullmatch(tag) is None:
                yield Violation(f"{tag!r} is not a tag: the format is /Class/Class.name", node_id)
            else:
                valid.add(tag)
        if stored is None:
            continue
        if stored.hierarchy_count != len(stored.hierarchy_tags):
            yield Violation(
                f"hierarchy_count is {stored.hierarchy_count}, but it has {len(stored.hierarchy_tags)} tags", node_id
            )
        if stored.hierarchy_path != next(iter(stored.hierarchy_tags), None):
            yield Violation(f"its first tag is not that of its owner, {stored.hierarchy_path!r}", node_id)


def _check_stores_agree(file: ValidatedFile) -> Iterator[Violation]:
    tags = {call.id: call.tag for call in file.document.calls} if file.document is not None else {}
    for (node_id, _), stores in zip(file.nodes, file.opened.stores, strict=True):
        content: dict[str, tuple[str | None, str | None, str | None]] = {}
        stored, record = stores.doc_string, file.records.get(node_id)
        if stored is not None:
            content["doc_string"] = (stored.module, stored.hierarchy_path, stored.kind)
        elif file.document is not None:
            yield Violation("it has no doc_string of ours, but an owner in the sidecar", node_id)
        if stores.module is not None:
            content["metadata_props"] = (stores.module, stores.tag, stores.kind)
        elif stored is not None and has_node_properties(file.model):
            yield Violation("it has a doc_string of ours, but no metadata_props", node_id, Severity.WARNING)
        if record is not None:
            content["sidecar"] = (record.module, record.tag, record.kind)
        if len(set(content.values())) > 1:
            different = "; ".join(f"{store}: {' '.join(map(repr, what))}" for store, what in content.items())
            yield Violation(f"its stores disagree on owner, tag or kind: {different}", node_id)
        elif stored is not None and record is not None:
            contributors = tuple(tags.get(call, "") for call in record.contributors)
            if stored.hierarchy_tags[1:] != contributors:
                yield Violation("doc_string and sidecar list different contributors", node_id)


STORE_RULES = (
    Rule("sidecar", "the sidecar exists and can be read", _check_sidecar, fix=REPAIR),
    Rule(
        "sidecar-hash",
        "the sidecar describes this graph",
        _check_sidecar_hash,
        needs_document=True,
        fix="put the sidecar of this file beside it, or transfer the hierarchy with modelexport retag",
    ),
    Rule("coverage", "every node has an owner in the sidecar and in the node itself", _check_coverage, fix=REPAIR),
    Rule("tag-format", "tags have the format /Class/Class.name", _check_tag_format, fix=REPAIR),
    Rule("stores-agree", "doc_string, metadata_props and sidecar agree on every node", _check_stores_agree, fix=REPAIR),
)
