"""The document: the hierarchy of one ONNX graph as an export records it, with a schema version."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import msgspec

from modelexport._version import __version__
from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy.calls import BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.hierarchy.file_check import FileCheck
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree
from modelexport.hierarchy.size_range import SizeRange
from modelexport.hierarchy.tags import TagView

SCHEMA_VERSION = 1


class Producer(msgspec.Struct, frozen=True):
    """The program that wrote the document."""

    name: str = "modelexport"
    version: str = __version__


class ModuleRecord(ModuleInfo, frozen=True, omit_defaults=True, kw_only=True):
    """A module, the tag of its first call, whether or not it was called, and whether it has a segment in tags."""

    tag: str
    visible: bool


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
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
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
        notes: What the user of the file should know of its export: fallbacks, lost evidence, warnings of exporters.
        check: What the export showed of the file in onnxruntime.
        size_ranges: The sizes for which the file is valid, by name of the dynamic axis, where torch limits them.
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
    notes: tuple[str, ...] = ()
    check: FileCheck | None = None
    size_ranges: dict[str, SizeRange] = {}

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
        return ModuleTree({module.path: module for module in self.modules})

    def call_tree(self) -> CallTree:
        """The calls as a tree, with their boundaries."""

        def read(call: CallRecord) -> ModuleCall:
            parent = CallId.parse(call.parent) if call.parent is not None else None
            return ModuleCall(call.path, call.index, parent, call.inputs, call.outputs)

        return CallTree({CallId(call.path, call.index): read(call) for call in self.calls})

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
