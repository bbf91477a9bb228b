"""Build the document of a graph from its nodes, their attributions and its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import onnx_ir as ir

from modelexport.graph import GraphTensor
from modelexport.hierarchy import (
    SCHEMA_VERSION,
    Attribution,
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
    SizeRange,
    TagScheme,
    TagView,
    TensorInfo,
    TensorRecord,
)


def build_document(
    *,
    strategy: str,
    exporter: str,
    graph_hash: str,
    view: TagView,
    tree: ModuleTree,
    calls: CallTree,
    nodes: Iterable[tuple[str, str, Attribution]],
    graph_tensors: Iterable[GraphTensor] = (),
    axes: Mapping[str, str] | None = None,
    folded: Mapping[str, CallId] | None = None,
    notes: tuple[str, ...] = (),
    size_ranges: Mapping[str, SizeRange] | None = None,
) -> HierarchyDocument:
    """The document of one export.

    Args:
        strategy: The strategy that found the owners.
        exporter: The exporter that wrote the graph.
        graph_hash: The digest of the graph.
        view: Which modules are visible in tags.
        tree: The modules.
        calls: The module calls with their inputs and outputs.
        nodes: The id, operator and attribution of each node.
        graph_tensors: The tensors of the graph.
        axes: The dynamic axis whose size a tensor is, by the tensor's id.
        folded: The calls whose nodes computed a folded constant of the graph, by its name.
        notes: Fallbacks and lost evidence of the export.
        size_ranges: The sizes of dynamic axes for which the graph is valid.
    """
    scheme = TagScheme(tree, view)
    tags = {call.id: scheme.tag(call.id, calls) for call in calls}
    records = tuple(_node_record(node_id, op, found, tags) for node_id, op, found in nodes)
    return HierarchyDocument(
        schema_version=SCHEMA_VERSION,
        producer=Producer(),
        strategy=strategy,
        exporter=exporter,
        graph_hash=graph_hash,
        tag_view=view,
        modules=tuple(module_record(m, scheme.module_tag(m.path), scheme.is_visible(m.path)) for m in tree),
        calls=tuple(call_record(call, tags[call.id]) for call in calls),
        nodes=records,
        tensors=tensor_records(graph_tensors, records, tree, axes or {}, folded),
        notes=notes,
        size_ranges=dict(size_ranges or {}),
    )


def tensor_records(
    tensors: Iterable[GraphTensor],
    nodes: Iterable[NodeRecord],
    tree: ModuleTree,
    axes: Mapping[str, str],
    folded: Mapping[str, CallId] | None = None,
) -> tuple[TensorRecord, ...]:
    """Records of tensors with the calls that produce and consume each, from the owners of the nodes."""
    owners = {node.id: (node.module, *node.contributors) for node in nodes}
    producers = {name: str(call) for name, call in (folded or {}).items()}
    stored = {
        f"{path}.{name}" if path else name: info
        for module in tree
        for path in (module.path, *module.aliases)
        for name, info in (*module.parameters.items(), *module.buffers.items())
    }
    return tuple(
        TensorRecord(
            id=tensor.id,
            producer=owners[tensor.producer][0] if tensor.producer is not None else producers.get(tensor.id),
            consumers=tuple(dict.fromkeys(call for node in tensor.consumers for call in owners[node])),
            source=tensor.source,
            parameter=tensor.id
            if tensor.source == "weight" and _is_weight(tensor.value, stored.get(tensor.id))
            else None,
            output=tensor.is_output,
            axis=axes.get(tensor.id),
        )
        for tensor in tensors
    )


def _is_weight(value: ir.Value, info: TensorInfo | None) -> bool:
    """Whether an initializer with the name of a parameter also has its shape."""
    return info is not None and value.shape is not None and tuple(value.shape) == info.shape


def module_record(module: ModuleInfo, tag: str, visible: bool) -> ModuleRecord:
    """The record of a module, which may be a record already, with its tag."""
    return ModuleRecord(**(msgspec.structs.asdict(module) | {"tag": tag, "visible": visible}))


def call_record(call: ModuleCall, tag: str) -> CallRecord:
    """The record of a call with its tag."""
    return CallRecord(
        id=str(call.id),
        path=call.path,
        index=call.index,
        tag=tag,
        parent=str(call.parent) if call.parent is not None else None,
        inputs=call.inputs,
        outputs=call.outputs,
    )


def _node_record(node_id: str, op: str, found: Attribution, tags: Mapping[CallId, str]) -> NodeRecord:
    return NodeRecord(
        id=node_id,
        op=op,
        module=str(found.owner),
        tag=tags[found.owner],
        kind=found.kind.value,
        confidence=found.confidence,
        reason=found.reason,
        contributors=tuple(str(call) for call in found.contributors),
        context=tuple(str(call) for call in found.context),
    )
