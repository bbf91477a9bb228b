"""retag: transfer the hierarchy of a tagged file to a file that another tool rewrote."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import onnx_ir as ir

from modelexport.analysis.retagging.matching_by_value import match_tensors_by_value
from modelexport.deadline import reads_files
from modelexport.display import Summary, counted, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import (
    ELEMENT_TYPES,
    graph_hash,
    named_values,
    nodes_with_ids,
    operation,
    tensors_with_ids,
    value_types,
)
from modelexport.hierarchy import (
    Attribution,
    BoundaryTensor,
    CallId,
    CallTree,
    HierarchyDocument,
    Kind,
    ModuleCall,
    json_schema,
)
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import infer_types
from modelexport.ownership import Projection, project
from modelexport.storage import (
    LoadedModel,
    UntaggedFile,
    build_document,
    build_ir,
    check_target,
    load,
    read_untagged,
    write_tagged,
)

STRATEGY = "retag"
_PROJECTED = frozenset({"fused", "merged", "folded"})


def correct(file: UntaggedFile, tagged: ir.Model) -> tuple[UntaggedFile, tuple[str, ...]]:
    """The file with sorted nodes and the element types that its operators return, and a note on each change."""
    notes = tuple(note for note in (_sort_nodes(file), _correct_types(file, tagged)) if note)
    return (dataclasses.replace(file, graph=build_ir(file.path, file.proto)) if notes else file), notes


def _sort_nodes(file: UntaggedFile) -> str:
    positions = {node: position for position, node in enumerate(file.graph.graph)}
    try:
        file.graph.graph.sort()
    except ValueError:  # a cycle: the file stays invalid
        return ""
    order = [positions[node] for node in file.graph.graph]
    if order == sorted(order):
        return ""
    nodes = list(file.proto.graph.node)
    del file.proto.graph.node[:]
    file.proto.graph.node.extend(nodes[position] for position in order)
    return "the nodes of the file were not sorted; they are now"


def _correct_types(file: UntaggedFile, tagged: ir.Model) -> str:
    """Correct `value_info` where a converter changed the type of tensors and left it as it was."""
    graph = file.proto.graph
    before = {value.name: value.dtype for value in (*tagged.graph.inputs, *tagged.graph.initializers.values())}
    before.update((value.name, value.dtype) for node in tagged.graph for value in node.outputs)
    if all(before.get(name) in (None, known.element) for name, known in value_types(graph).items()):
        return ""
    found = infer_types(file.proto)
    types = {name: known.element for name, known in value_types(found).items()} if found is not None else {}
    types.update((weight.name, weight.data_type) for weight in graph.initializer)
    kept = [value for value in graph.value_info if value.name in types]
    wrong = [value for value in kept if value.type.tensor_type.elem_type != types[value.name]]
    if not wrong:
        return ""
    for value in wrong:
        value.type.tensor_type.elem_type = types[value.name]
    removed = len(graph.value_info) - len(kept)
    del graph.value_info[:]
    graph.value_info.extend(kept)
    note = f"corrected the element type in value_info of {counted(len(wrong), 'tensor')}, from the operators"
    removal = f"; removed {counted(removed, 'entry', 'entries')} whose type cannot be inferred"
    return f"{note}{removal}" if removed else note


def _summary(report: RetagReport) -> Summary:
    facts = {
        "file": report.files[0] if report.files else None,
        "nodes": len(report.document.nodes),
        "exact": report.exact,
        "projected": report.projected,
        "inferred": report.inferred,
        "tensors_kept": report.tensors_kept,
        "tensors_before": report.tensors_before,
    }
    return Summary(facts)


@summarized(_summary)
@dataclasses.dataclass(frozen=True)
class RetagReport:
    """The result of retagging.

    Attributes:
        files: The files written, the model first.
        document: The hierarchy of the rewritten graph.
        tensors_kept: How many node outputs of the tagged graph the rewritten graph still has, merged ones included.
        tensors_before: How many node outputs the tagged graph has.
        by_value: Whether tensors were matched by value rather than by name.
        notes: What was corrected in the rewritten file.
    """

    files: tuple[Path, ...]
    document: HierarchyDocument
    tensors_kept: int
    tensors_before: int
    by_value: bool = False
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> int:
        """The number of nodes with an exact owner."""
        return sum(node.kind == "exact" for node in self.document.nodes)

    @property
    def projected(self) -> int:
        """The number of nodes that do the work of several original nodes, with all their calls."""
        return sum(node.kind in _PROJECTED for node in self.document.nodes)

    @property
    def inferred(self) -> int:
        """The number of nodes whose owner is inferred from data flow."""
        return len(self.document.nodes) - self.exact - self.projected

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(
            PrintedRetagging(
                files=tuple(str(path) for path in self.files),
                nodes=len(self.document.nodes),
                exact=self.exact,
                projected=self.projected,
                inferred=self.inferred,
                kinds=dict(Counter(node.kind for node in self.document.nodes)),
                coverage=self.document.coverage,
                tensors_kept=self.tensors_kept,
                tensors_before=self.tensors_before,
                by_value=self.by_value,
                notes=self.notes,
            )
        )
        return content


class PrintedRetagging(msgspec.Struct, frozen=True):
    """The JSON of a `RetagReport`, with the numbers of nodes in all, by evidence and by kind of attribution."""

    files: tuple[str, ...]
    nodes: int
    exact: int
    projected: int
    inferred: int
    kinds: dict[str, int]
    coverage: float
    tensors_kept: int
    tensors_before: int
    by_value: bool
    notes: tuple[str, ...]
    schema_version: int = 1


def retagging_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport retag --format json``."""
    return json_schema("modelexport retagging", PrintedRetagging)


@reads_files(2)
def retag(
    rewritten: str | Path,
    tagged: str | Path,
    output_path: str | Path | None = None,
    *,
    overwrite: bool = False,
    by_value: bool = False,
    inputs: Mapping[str, npt.NDArray[Any]] | None = None,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> RetagReport:
    """Transfer the hierarchy of a tagged file to a file that another tool rewrote.

    The owners follow from the tensors that both graphs have. A node that does the work of several original nodes lists
    all their calls; a new node belongs to the calls between the tensors around it. The graph does not change, except
    that unsorted nodes are sorted and wrong element types in `value_info` are corrected, which the report notes.

    Args:
        rewritten: The output of an optimizer, a quantizer or a converter.
        tagged: The file it was created from, with its sidecar.
        output_path: The file to write; None replaces `rewritten`, which needs `overwrite`.
        overwrite: Replace existing files.
        by_value: Match tensors by their values in a run of both files in onnxruntime, not by name.
        inputs: The inputs of that run by name; None synthesizes them from types and shapes.
        limits: The limits of that run.

    Raises:
        InputError: A file cannot be used, or the two have no tensor in common.
        FileFormatError: A file is not an ONNX model, or `tagged` has no hierarchy.
        StorageError: The files could not be written.
    """
    target = check_target(rewritten if output_path is None else output_path, force=overwrite)
    original = load(tagged)
    if original.document is None:
        raise FileFormatError(
            f"{original.path} has no hierarchy to transfer: {original.missing}; "
            "give the file that modelexport export wrote, with its sidecar beside it"
        )
    original_document = original.document
    given, notes = correct(read_untagged(rewritten, target, overwrite=overwrite), original.model)
    outputs = _node_outputs(original.model)
    names = _names_by_value(original, original_document, given, inputs, limits) if by_value else None
    if names is None and outputs and outputs.isdisjoint(_node_outputs(given.graph)):
        raise InputError(
            f"{given.path} has no tensor of {original.path}: it was created from another model, or by a tool that "
            "renames all tensors; --by-value (by_value=True in Python) matches tensors by value"
        )
    projection = project_owners(original.model, original_document, given.graph, names)
    document = _document(given, original_document, projection)
    files = write_tagged(given, document, target, overwrite=overwrite)
    kept = outputs.intersection(projection.values.surviving) if projection.values is not None else outputs
    return RetagReport(files, document, len(kept), len(outputs), by_value, notes)


def project_owners(
    tagged: ir.Model, document: HierarchyDocument, rewritten: ir.Model, names: Mapping[ir.Value, str] | None = None
) -> Projection:
    """Project the owners in a document onto a rewritten graph; `names` are those of matched tensors, if not their own.

    Args:
        tagged: The graph that the document describes.
        document: The hierarchy of that graph.
        rewritten: The rewritten graph.
        names: For tensors of `rewritten` the names of the same tensors in `tagged`; None where they are the same.
    """
    known = {node.id: node for node in document.nodes}
    owners = {
        node: Attribution(
            CallId.parse(record.module),
            Kind(record.kind),
            record.confidence,
            record.reason,
            tuple(CallId.parse(call) for call in record.contributors),
        )
        for identity, node in nodes_with_ids(tagged)
        if (record := known.get(identity)) is not None
    }
    return project(tagged, owners, rewritten, document.call_tree(), names=names)


def _node_outputs(model: ir.Model) -> set[str]:
    return {value.name for node in model.graph for value in node.outputs if value.name}


def _names_by_value(
    tagged: LoadedModel,
    document: HierarchyDocument,
    given: UntaggedFile,
    inputs: Mapping[str, npt.NDArray[Any]] | None,
    limits: RunLimits,
) -> dict[ir.Value, str]:
    """The names of the matching tensors of the tagged graph, by tensor of the rewritten graph."""
    root = next((call for call in document.calls if call.parent is None), None)
    arguments = {tensor.tensor: tensor.name for tensor in root.inputs if tensor.tensor} if root is not None else {}
    found = match_tensors_by_value(
        tagged.model, tagged.path, given.graph, given.path, inputs=inputs, arguments=arguments, limits=limits
    )
    return {value: original.name for value, original in found.items() if original.name}


def _with_types_of(model: ir.Model, calls: CallTree) -> CallTree:
    """The calls with the element types that their boundary tensors have in this model: a converter may change them."""
    values = named_values(model.graph)
    names = {element: name for name, element in ELEMENT_TYPES.items()}

    def typed(tensor: BoundaryTensor) -> BoundaryTensor:
        value = values.get(tensor.tensor or tensor.stand_in or "")
        dtype = names.get(value.dtype) if value is not None and value.dtype is not None else None
        if tensor.info is None or dtype in (None, tensor.info.dtype):
            return tensor
        return msgspec.structs.replace(tensor, info=msgspec.structs.replace(tensor.info, dtype=dtype))

    def typed_call(call: ModuleCall) -> ModuleCall:
        inputs, outputs = (tuple(map(typed, boundary)) for boundary in (call.inputs, call.outputs))
        return msgspec.structs.replace(call, inputs=inputs, outputs=outputs)

    return CallTree({call.id: typed_call(call) for call in calls})


def _document(given: UntaggedFile, original: HierarchyDocument, projection: Projection) -> HierarchyDocument:
    nodes = nodes_with_ids(given.graph)
    axes = {tensor.id: tensor.axis for tensor in original.tensors if tensor.axis is not None}
    constants = {
        tensor.id: CallId.parse(tensor.producer)
        for tensor in original.tensors
        if tensor.source == "weight" and tensor.producer is not None
    }
    folded = {name: found.owner for name, found in projection.constants.items()}
    return build_document(
        strategy=STRATEGY,
        exporter=given.producer,
        graph_hash=graph_hash(given.graph),
        view=original.tag_view,
        tree=original.tree(),
        calls=_with_types_of(given.graph, projection.calls),
        nodes=[(identity, operation(node), projection.attributions[node]) for identity, node in nodes],
        graph_tensors=tensors_with_ids(given.graph, nodes),
        folded={**projection.renamed(constants), **folded},
        axes=projection.renamed(axes),
        size_ranges=original.size_ranges,
    )
