"""The document: what an export knows of the hierarchy of one ONNX graph, with a schema version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
import onnx_ir as ir

from modelexport._version import __version__
from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.graph.node_ids import GraphTensor
from modelexport.hierarchy.attribution import Attribution
from modelexport.hierarchy.modules import (
    MAX_DEPTH,
    ROOT_PATH,
    BoundaryTensor,
    CallId,
    CallTree,
    ForwardArgument,
    ModuleCall,
    ModuleInfo,
    ModuleTree,
    TensorInfo,
    parent_path,
)
from modelexport.hierarchy.schemas import json_schema
from modelexport.hierarchy.tags import TagScheme, TagView

SCHEMA_VERSION = 1


class Producer(msgspec.Struct, frozen=True):
    """The program that wrote the document."""

    name: str = "modelexport"
    version: str = __version__


class ModuleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module, its place in the tree, and the tag of its first call, whether or not it was called.

    `parameters` are the module's own; those of its children are in their records. `visible` says whether the
    module has a segment of its own in tags.
    """

    path: str
    class_name: str
    qualified_class: str
    tag: str
    visible: bool
    aliases: tuple[str, ...] = ()
    forward_arguments: tuple[ForwardArgument, ...] = ()
    parameters: dict[str, TensorInfo] = {}
    buffers: dict[str, TensorInfo] = {}
    children: dict[str, str] = {}
    tied_parameters: dict[str, str] = {}


class CallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module call: its id (``path``, ``path@1``), its caller, its tag and its boundary."""

    id: str
    path: str
    index: int
    tag: str
    parent: str | None = None
    inputs: tuple[BoundaryTensor, ...] = ()
    outputs: tuple[BoundaryTensor, ...] = ()


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of the ONNX graph: its id, operator, owner, and how the owner is known.

    `contributors` are the other calls whose work it also does, `context` the calls whose results it combines.
    """

    id: str
    op: str
    module: str
    tag: str
    kind: Literal["exact", "fused", "merged", "folded", "inferred"]
    confidence: float
    reason: str
    contributors: tuple[str, ...] = ()
    context: tuple[str, ...] = ()


class TensorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor of the ONNX graph, with the calls that produce and consume it.

    Attributes:
        id: Its name; in a subgraph or function prefixed with the path to it, as in node ids.
        producer: The call of the node that produces it, or for a folded constant, of the nodes it was folded from; None
            for inputs and weights.
        consumers: All calls whose nodes consume it, including the contributors of merged and fused nodes.
        source: Where it comes from.
        parameter: For a weight, the parameter or buffer of the model, where the exporter kept its name.
        output: Whether it is an output of the model, or of the local function it is in.
        axis: The dynamic axis whose size it holds, where the exporter recorded that.
    """

    id: str
    producer: str | None = None
    consumers: tuple[str, ...] = ()
    source: Literal["node", "input", "weight"] = "node"
    parameter: str | None = None
    output: bool = False
    axis: str | None = None


class ExtractionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call that a submodel was extracted from, its graph, and notes on the extraction."""

    call: str
    source_graph_hash: str
    notes: tuple[str, ...] = ()


def _summary(document: HierarchyDocument) -> Summary:
    facts = {
        "strategy": document.strategy,
        "exporter": document.exporter,
        "modules": len(document.modules),
        "calls": len(document.calls),
        "nodes": len(document.nodes),
        "kinds": ", ".join(f"{count} {kind}" for kind, count in document.kinds.items()),
    }
    own = Counter(node.module for node in document.nodes)
    classes = {module.path: module.class_name for module in document.modules}
    rows = [(call.id or "(root)", classes.get(call.path, ""), own[call.id], call.tag) for call in document.calls]
    return Summary(facts, ("call", "class", "own nodes", "tag"), rows)


@summarized(_summary)
class HierarchyDocument(msgspec.Struct, frozen=True):
    """Everything an export knows about the hierarchy of one ONNX graph.

    Attributes:
        schema_version: The version of this format.
        producer: The program that wrote it.
        strategy: Where the evidence came from.
        exporter: The exporter that wrote the graph.
        graph_hash: A digest of the graph, so that a stale sidecar is noticed.
        tag_view: Which modules show in tags.
        modules: The modules in the order of `named_modules()`, the root first.
        calls: The module calls in the order they began.
        nodes: The nodes in graph order, subgraphs and local functions included.
        tensors: The tensors: inputs and weights first, then in graph order; those of subgraphs and functions after.
        extracted: For a submodel: what it was extracted from.
    """

    schema_version: int
    producer: Producer
    strategy: str
    exporter: str
    graph_hash: str
    tag_view: TagView
    modules: tuple[ModuleRecord, ...]
    calls: tuple[CallRecord, ...]
    nodes: tuple[NodeRecord, ...]
    tensors: tuple[TensorRecord, ...]
    extracted: ExtractionRecord | None = None

    @property
    def kinds(self) -> dict[str, int]:
        """The number of nodes by kind of attribution."""
        return dict(Counter(node.kind for node in self.nodes))

    @property
    def coverage(self) -> float:
        """The fraction of nodes that have an owner."""
        known = {call.id for call in self.calls}
        return sum(node.module in known for node in self.nodes) / len(self.nodes) if self.nodes else 1.0

    def tree(self) -> ModuleTree:
        """The modules as a tree, with aliases."""
        return ModuleTree(
            {
                m.path: ModuleInfo(
                    m.path,
                    m.class_name,
                    m.qualified_class,
                    m.aliases,
                    m.forward_arguments,
                    m.parameters,
                    m.buffers,
                    m.children,
                    m.tied_parameters,
                )
                for m in self.modules
            }
        )

    def module_information(self, path: str) -> dict[str, Any]:
        """One module as JSON, with the parameters of its descendants beside its own."""
        record = next((module for module in self.modules if module.path == path), None)
        if record is None:
            raise InputError(f"there is no module {path!r}: module paths are the names in named_modules()")
        prefix = f"{path}." if path else ""
        inherited = {
            f"{reached}.{name}".removeprefix(prefix): msgspec.to_builtins(info)
            for other in self.modules
            # Under the first of its names that goes through this module, as in `named_parameters()`.
            for reached in [n for n in (other.path, *other.aliases) if n and n.startswith(prefix)][:1]
            for name, info in other.parameters.items()
            if reached != path
        }
        information: dict[str, Any] = {
            name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(record).items()
        }
        information["inherited_parameters"] = inherited
        information["calls"] = [msgspec.to_builtins(call) for call in self.calls if call.path == path]
        return information


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
) -> HierarchyDocument:
    """The document of one export.

    Args:
        strategy: Where the evidence came from.
        exporter: The exporter that wrote the graph.
        graph_hash: The digest of the graph.
        view: Which modules show in tags.
        tree: The modules.
        calls: The module calls, with boundary tensors of the graph.
        nodes: Identity, operation and attribution of each node.
        graph_tensors: The tensors of the graph.
        axes: The dynamic axis whose size a tensor holds, by the tensor's identity.
        folded: The calls whose nodes computed a folded constant of the graph, by its name.
    """
    scheme = TagScheme(tree, view)
    tags = {call.id: scheme.tag(call.id, calls) for call in calls}
    records = tuple(_node_record(identity, op, found, tags) for identity, op, found in nodes)
    return HierarchyDocument(
        schema_version=SCHEMA_VERSION,
        producer=Producer(),
        strategy=strategy,
        exporter=exporter,
        graph_hash=graph_hash,
        tag_view=view,
        modules=tuple(_module_record(module, scheme) for module in tree),
        calls=tuple(_call_record(call, tags[call.id]) for call in calls),
        nodes=records,
        tensors=tensor_records(graph_tensors, records, tree, axes or {}, folded),
    )


def tensor_records(
    tensors: Iterable[GraphTensor],
    nodes: Iterable[NodeRecord],
    tree: ModuleTree,
    axes: Mapping[str, str],
    folded: Mapping[str, CallId] | None = None,
) -> tuple[TensorRecord, ...]:
    """Who makes and who reads each tensor, from who owns the nodes that do."""
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
    """Whether a stored tensor that has a parameter's name also looks like it: exporters keep the names of those."""
    return info is not None and value.shape is not None and tuple(value.shape) == info.shape


def _module_record(module: ModuleInfo, scheme: TagScheme) -> ModuleRecord:
    return ModuleRecord(
        path=module.path,
        class_name=module.class_name,
        qualified_class=module.qualified_class,
        tag=scheme.module_tag(module.path),
        visible=scheme.is_visible(module.path),
        aliases=module.aliases,
        forward_arguments=module.forward_arguments,
        parameters=module.parameters,
        buffers=module.buffers,
        children=module.children,
        tied_parameters=module.tied_parameters,
    )


def _call_record(call: ModuleCall, tag: str) -> CallRecord:
    return CallRecord(
        id=str(call.id),
        path=call.path,
        index=call.index,
        tag=tag,
        parent=str(call.parent) if call.parent is not None else None,
        inputs=call.inputs,
        outputs=call.outputs,
    )


def _node_record(identity: str, op: str, found: Attribution, tags: Mapping[CallId, str]) -> NodeRecord:
    return NodeRecord(
        id=identity,
        op=op,
        module=str(found.owner),
        tag=tags[found.owner],
        kind=found.kind.value,
        confidence=found.confidence,
        reason=found.reason,
        contributors=tuple(str(call) for call in found.contributors),
        context=tuple(str(call) for call in found.context),
    )


def encode_document(document: HierarchyDocument) -> bytes:
    """The document as indented JSON; the same document always gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_document(data: bytes, source: str) -> HierarchyDocument:
    """Read what `encode_document` wrote.

    Args:
        data: The JSON.
        source: Where it came from, for the error.

    Raises:
        FileFormatError: It is not a hierarchy document, or of another schema version.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{source} is not a hierarchy document: {error}") from error
    if head.schema_version != SCHEMA_VERSION:
        raise FileFormatError(
            f"{source} has schema version {head.schema_version}, this release reads {SCHEMA_VERSION}: "
            "export the model again, or use the release that wrote it"
        )
    try:
        document = msgspec.json.decode(data, type=HierarchyDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{source} is not a valid hierarchy document: {error}") from error
    problem = _repeated_key(data, document) or _misfit(document)
    if problem is not None:
        raise FileFormatError(f"{source} is not a valid hierarchy document: {problem}")
    return document


def _repeated_key(data: bytes, document: HierarchyDocument) -> str | None:
    """An object with a repeated key, of which readers would keep different values, in words; None if there is none."""
    if encode_document(document) == data:
        # Exactly as `encode_document` writes it. Encoding is much faster than checking each key.
        return None

    def refuse(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError(f"an object has a repeated key: {[key for key, _ in pairs][:12]}")

    try:
        json.loads(data, object_pairs_hook=refuse)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _misfit(document: HierarchyDocument) -> str | None:
    """Why the parts of a document are inconsistent, in words; None if they are consistent."""
    paths = {module.path for module in document.modules}
    if ROOT_PATH not in paths:
        return "it has no root module"
    orphan = next((path for path in paths if (parent_path(path) or ROOT_PATH) not in paths), None)
    if orphan is not None:
        return f"the parent of module {orphan!r} is missing"
    deep = next((path for path in paths if path.count(".") > MAX_DEPTH), None)
    if deep is not None:
        return f"the module {deep[:80]!r}… is nested in more than {MAX_DEPTH} others"
    calls = {call.id: call for call in document.calls}
    if len(calls) < len(document.calls):
        return "it has two calls with the same id"
    for call in document.calls:
        if call.index < 0 or call.id != str(CallId(call.path, call.index)):
            return f"the id of call {call.id!r} is not that of call {call.index} of {call.path!r}"
        if call.path not in paths:
            return f"call {call.id!r} belongs to no module"
        if call.parent is not None and call.parent not in calls:
            return f"the caller of {call.id!r}, {call.parent!r}, is not a call"
    endless = _endless_call(calls)
    if endless is not None:
        return f"call {endless!r} has more than {MAX_DEPTH} callers, or is its own caller"
    for node in document.nodes:
        unknown = next((name for name in (node.module, *node.contributors, *node.context) if name not in calls), None)
        if unknown is not None:
            return f"node {node.id!r} belongs to {unknown!r}, which is not a call"
    return None


def _endless_call(calls: Mapping[str, CallRecord]) -> str | None:
    """A call whose callers form a cycle or exceed the depth limit."""
    depths: dict[str, int] = {}
    for name in calls:
        way: list[str] = []
        current: str | None = name
        while current is not None and current not in depths:
            way.append(current)
            if len(way) > MAX_DEPTH:
                return name
            current = calls[current].parent
        below = depths[current] if current is not None else 0
        depths.update((passed, depth) for depth, passed in enumerate(reversed(way), start=below + 1))
        if depths[name] > MAX_DEPTH:
            return name
    return None


class _Head(msgspec.Struct):
    schema_version: int


def document_schema() -> dict[str, Any]:
    """The JSON Schema of the sidecar."""
    return json_schema("modelexport hierarchy", HierarchyDocument)
