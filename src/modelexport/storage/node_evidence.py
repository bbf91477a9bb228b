"""Read the evidence that each node of a file has about its owner: our stores, torch's metadata, its scoped name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, cast

import onnx

from modelexport.hierarchy import MAX_DEPTH, CallId, TensorInfo, ancestor_paths, confidence
from modelexport.storage.exporter_scopes import Scope, read_name_scope, read_torch_scope
from modelexport.storage.metadata_stores import KIND_KEY, MODULE_KEY, TAG_KEY, read_doc_string

Origin = Literal["sidecar", "doc_string", "metadata_props", "torch metadata", "scoped names"]
Kind = Literal["exact", "fused", "merged", "folded", "inferred"]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEvidence:
    """The evidence that one node has about its owner."""

    origin: Origin
    owner: CallId
    scope: Scope | None = None
    tag: str = ""
    kind: Kind = "inferred"
    contributor_tags: tuple[str, ...] = ()
    method: str = ""


def read_evidence(proto: onnx.ModelProto, nodes: Sequence[tuple[str, onnx.NodeProto]]) -> list[NodeEvidence | None]:
    """The evidence of each node; None for a node that names no module."""
    known = {path for name in named_weights(proto) for path in ancestor_paths(name) if path}
    return [_read_node(node, known) for _, node in nodes]


def _read_node(node: onnx.NodeProto, known: set[str]) -> NodeEvidence | None:
    properties = {entry.key: entry.value for entry in node.metadata_props if isinstance(entry.value, str)}
    scope = read_torch_scope(properties)
    stored = read_doc_string(node.doc_string)
    if stored is not None:
        return _from_our_store(
            "doc_string",
            scope,
            stored.module,
            stored.hierarchy_path,
            stored.kind,
            tuple(stored.hierarchy_tags[1:]),
            stored.hierarchy_method,
        )
    if MODULE_KEY in properties and TAG_KEY in properties:
        return _from_our_store(
            "metadata_props", scope, properties[MODULE_KEY], properties[TAG_KEY], properties.get(KIND_KEY, "inferred")
        )
    if scope is not None:
        return NodeEvidence("torch metadata", scope.calls[-1], scope)
    scope = read_name_scope(node.name, node.op_type, known)
    return NodeEvidence("scoped names", scope.calls[-1], scope) if scope is not None else None


def _from_our_store(
    origin: Origin,
    scope: Scope | None,
    module: str,
    tag: str,
    kind: str,
    contributor_tags: tuple[str, ...] = (),
    method: str = "",
) -> NodeEvidence | None:
    if not tag.startswith("/") or kind not in confidence.STORED or module.count(".") > MAX_DEPTH:
        return None
    owner = CallId.parse(module)
    # After fusion torch's metadata often names another module than the owner.
    fitting = scope if scope is not None and scope.calls[-1].path == owner.path else None
    return NodeEvidence(origin, owner, fitting, tag, cast("Kind", kind), contributor_tags, method)


def named_weights(proto: onnx.ModelProto) -> dict[str, TensorInfo]:
    """The initializers of the main graph whose name is that of a parameter, with a module path."""
    return {
        tensor.name: TensorInfo(tuple(tensor.dims), _dtype(tensor.data_type))
        for tensor in proto.graph.initializer
        if 0 < tensor.name.count(".") <= MAX_DEPTH and "::" not in tensor.name and "/" not in tensor.name
    }


def _dtype(data_type: int) -> str:
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(data_type).name)
    except (KeyError, TypeError, ValueError):
        return "unknown"
