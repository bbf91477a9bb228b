"""From a capture to a tagged model: the owners of the final graph, the document, and the metadata in the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import onnx
import onnx_ir as ir

from modelexport.capture import Capture
from modelexport.display import counted
from modelexport.errors import ContractError
from modelexport.exporting.progress import Pipeline
from modelexport.gc_pause import gc_paused
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import Attribution, HierarchyDocument, SizeRange, TagView
from modelexport.ownership import InferencePolicy, Projection, add_contexts, infer_missing, project
from modelexport.storage import ExporterFile, build_document, remove_source_references, write_stores
from modelexport.strategies import Captured


@dataclasses.dataclass(frozen=True)
class TaggedCapture:
    """A captured graph with its owners, ready to be written.

    Attributes:
        captured: The capture and the attempt it comes from.
        document: The document.
        model: The model with its document in its metadata; with `file`, the skeleton of that file.
        file: The exporter's own file, where its bytes cannot be written from the graph.
        notes: What the user should know about the export.
    """

    captured: Captured
    document: HierarchyDocument
    model: ir.Model | onnx.ModelProto
    file: ExporterFile | None
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tagging:
    """How the captures of one export are tagged.

    Attributes:
        policy: How missing owners are inferred.
        view: The classes that appear in tags.
        private: Leave out all references to source files.
        opset: The opset that the user asked for.
        notes: Notes on the model and its inputs.
    """

    policy: InferencePolicy
    view: TagView
    private: bool
    opset: int | None
    notes: tuple[str, ...]

    def tag(self, captured: Captured, pipeline: Pipeline) -> TaggedCapture:
        """Find the owner of every node and write them into the model."""
        capture = captured.capture
        with pipeline.step("attribute"):
            owners = infer_missing(capture.original_graph, capture.recorded, capture.calls, self.policy)
        with pipeline.step("project"):
            projection = _project(capture, owners, self.policy)
        with pipeline.step("document") as step:
            own = (*_opset_notes(self.opset, capture), *_size_notes(capture.size_ranges))
            notes = tuple(dict.fromkeys((*self.notes, *captured.notes, *capture.notes, *own)))
            # Notes name source lines of the model.
            shown = () if self.private else notes
            ranges = {
                name: msgspec.structs.replace(limits, place="") if self.private else limits
                for name, limits in capture.size_ranges.items()
            }
            document = _build_document(capture, projection, captured.attempt.strategy, self.view, shown, ranges)
            step.detail = counted(len(document.nodes), "node")
            model = capture.model if capture.file is None else capture.file.skeleton()
            if self.private:
                remove_source_references(model)
            write_stores(model, document)
            return TaggedCapture(captured, document, model, capture.file, notes)


def _opset_notes(wanted: int | None, capture: Capture) -> tuple[str, ...]:
    """torch exports with its own opset, and keeps it where it cannot convert the graph to the requested one."""
    written = capture.model.opset_imports.get("")
    if wanted is None or written == wanted:
        return ()
    note = (
        f"the file has opset {written} instead of {wanted}, to which the {capture.exporter} exporter cannot convert it"
    )
    return (f"{note}. The TorchScript exporter (strategy htp) writes older opsets itself",)


def _size_notes(ranges: Mapping[str, SizeRange]) -> tuple[str, ...]:
    # That a size is a multiple of a number, the name of the axis says by itself.
    return tuple(
        f"the file is valid for these sizes only: {name} = {limits}"
        for name, limits in ranges.items()
        if name.isidentifier() or (limits.min, limits.max) != (None, None)
    )


@gc_paused()
def _project(capture: Capture, owners: Mapping[ir.Node, Attribution], policy: InferencePolicy) -> Projection:
    """Project the owners of the original graph onto the final graph."""
    if capture.original_graph is capture.model:
        return Projection(add_contexts(capture.model, owners) if policy.advanced else owners, capture.calls)
    return project(
        capture.original_graph, owners, capture.model, capture.calls, recorded=capture.recorded_in_model, policy=policy
    )


@gc_paused()
def _build_document(
    capture: Capture,
    projection: Projection,
    strategy: str,
    view: TagView,
    notes: tuple[str, ...],
    size_ranges: Mapping[str, SizeRange],
) -> HierarchyDocument:
    model, final = capture.model, projection.attributions
    nodes = nodes_with_ids(model)
    unowned = [node_id for node_id, node in nodes if node not in final]
    if unowned:
        raise ContractError(f"no owner for {counted(len(unowned), 'node')}, {unowned[0]!r} first: please report this")
    return build_document(
        strategy=strategy,
        exporter=capture.exporter,
        graph_hash=graph_hash(model),
        view=view,
        tree=capture.tree,
        calls=projection.calls,
        nodes=[(node_id, operation(node), final[node]) for node_id, node in nodes],
        graph_tensors=tensors_with_ids(model, nodes),
        folded={name: found.owner for name, found in projection.constants.items()},
        axes=projection.renamed(capture.dynamic_sizes),
        notes=notes,
        size_ranges=size_ranges,
    )
