"""extract_module and extract_module_subgraph: one module call of an exported graph, as nodes or as a model."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir

from modelexport.analysis.extraction.call_boundary import ExtractionPlan, ExtractionPlanner
from modelexport.analysis.extraction.submodel import Submodel, SubmodelBuilder
from modelexport.analysis.query import select_calls
from modelexport.deadline import reads_files
from modelexport.errors import ExtractionError, FileFormatError, InputError, SelectorError
from modelexport.gc_pause import gc_paused
from modelexport.graph import graph_hash, nodes_with_ids
from modelexport.hierarchy import CallId, CallRecord, HierarchyDocument, decode_document
from modelexport.storage import LoadedModel, load, read_sidecar, recover_document

_SHOWN = 5
# Characters that only a selector has: then report the error of the selector.
_PATTERN = re.compile(r"[\s*?\[\]():]")
# The types that a graph and a hierarchy can be given as.
ModelSource = str | Path | LoadedModel | ir.Model | onnx.ModelProto
HierarchySource = HierarchyDocument | Mapping[str, Any] | str | Path


def find_call(document: HierarchyDocument, target: str) -> CallRecord:
    """The one call that `target` names."""
    if not isinstance(target, str):
        raise InputError(f"a module is named by a string, as in 'encoder.layer.0', not by {type(target).__name__}")
    calls = {call.id: call for call in document.calls}
    if target in calls:
        return calls[target]
    tree = document.tree()
    given = CallId.parse(target)
    canonical = tree.canonical(given.path)
    if canonical is not None:
        call = calls.get(str(CallId(canonical, given.index)))
        if call is not None:
            return call
        times = sum(call.path == canonical for call in document.calls)
        explanation = (
            f"it was called {times} times, the last is {str(CallId(canonical, times - 1))!r}"
            if times
            else "it was never called"
        )
        raise ExtractionError(target, "never_called", explanation)
    visible = {module.path for module in document.modules if module.visible}
    tagged = [call for call in document.calls if call.tag == target and call.path in visible]
    if len(tagged) == 1:
        return tagged[0]
    uncalled = next((module for module in document.modules if module.tag == target and module.visible), None)
    if uncalled is not None and not tagged:
        raise ExtractionError(target, "never_called", f"module {uncalled.path!r} was never called")
    found = tagged or _selected_calls(document, target)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(call.id) for call in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise ExtractionError(target, "several", f"it picks {len(found)} calls: {names}. Name one of them")
    raise ExtractionError(target, "unknown", f"there is no such module, call, tag or class{_similar(document, target)}")


def _selected_calls(document: HierarchyDocument, target: str) -> list[CallRecord]:
    """The calls of the class of that name, or those that `target` picks as a pattern."""
    classes = {m.path for m in document.modules if target in (m.class_name, m.qualified_class) and target}
    if classes:
        return [call for call in document.calls if call.path in classes]
    try:
        return list(select_calls(document, target))
    except SelectorError as error:
        if _PATTERN.search(target):
            raise ExtractionError(target, "unknown", str(error)) from error
        return []


def _similar(document: HierarchyDocument, target: str) -> str:
    names = dict.fromkeys(name for call in document.calls for name in (call.id, call.tag)) | dict.fromkeys(
        name for module in document.modules for name in (*module.aliases, module.class_name)
    )
    near = difflib.get_close_matches(target, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ": 'modelexport tree FILE' lists the modules"


class Extractor:
    """Extracts modules from one model, which is read and indexed once for all of them.

    Args:
        source: A file, the result of `modelexport.load`, or the model itself.
        hierarchy: The document, its content, or the sidecar's path; None takes what belongs to the source.

    Raises:
        InputError: The source cannot be used, or the hierarchy is that of another graph.
        FileFormatError: The source is not an ONNX model, or the sidecar is damaged.
    """

    @gc_paused()
    def __init__(self, source: ModelSource, hierarchy: HierarchySource | None = None) -> None:
        model, document, self.missing = _open(source, hierarchy)
        self._planner = ExtractionPlanner(model, document)

    @property
    def model(self) -> ir.Model:
        """The model that modules are extracted from."""
        return self._planner.model

    @property
    def document(self) -> HierarchyDocument:
        """The hierarchy that modules are extracted by."""
        return self._planner.document

    def find(self, target: str) -> CallRecord:
        """The one call that `target` names.

        Raises:
            ExtractionError: There is none, or there are several.
        """
        return find_call(self.document, target)

    def plan(self, target: str | CallRecord) -> ExtractionPlan:
        """The boundary of a call in the graph and the nodes between.

        Raises:
            ExtractionError: It cannot be extracted.
        """
        try:
            return self._planner.plan(target if isinstance(target, CallRecord) else self.find(target))
        except ExtractionError as error:
            if not self.missing:
                raise
            explanation = f"{error.explanation} ({self.missing})"
            raise ExtractionError(error.target, error.reason, explanation, error.fused_with, error.enclosing) from None

    @gc_paused()
    def extract(self, target: str | CallRecord | ExtractionPlan) -> Submodel:
        """A call as a model of its own.

        Raises:
            ExtractionError: It cannot be extracted.
        """
        found = SubmodelBuilder(
            self._planner, target if isinstance(target, ExtractionPlan) else self.plan(target)
        ).build()
        if not self.missing:
            return found
        return dataclasses.replace(found, notes=(*found.notes, self.missing))

    def subgraph(self, target: str | CallRecord) -> ModuleSubgraph:
        """The part of the graph that computes a call.

        Raises:
            ExtractionError: Its part of the graph cannot be determined.
        """
        planner, plan = self._planner, self.plan(target)
        entering = {tensor.value for tensor in plan.inputs} | {size.value for size in plan.sizes}
        leaving = {tensor.value for tensor in plan.outputs}
        produced = [value for node in plan.slice.nodes for value in node.outputs if value.name]

        def names(values: Iterable[ir.Value]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(name for name in map(planner.tensor_id, values) if name))

        edge = [
            node
            for node in plan.slice.nodes
            if not leaving.isdisjoint(node.outputs) or not entering.isdisjoint(planner.consumed(node))
        ]
        return ModuleSubgraph(
            call=plan.call.id,
            operations=tuple(planner.node_ids[node] for node in plan.slice.nodes),
            external_inputs=names(tensor.value for tensor in plan.inputs),
            internal_tensors=names(value for value in produced if value not in leaving),
            boundary_operations=tuple(planner.node_ids[node] for node in edge),
            outputs=names(tensor.value for tensor in plan.outputs),
            weights=names(plan.slice.initializers),
        )


@dataclasses.dataclass(frozen=True)
class ModuleSubgraph(Mapping[str, Any]):
    """The part of a graph that computes one module call. As a mapping it has the same content by name.

    Attributes:
        call: The call.
        operations: The ids of its nodes, in graph order; those it shares with other calls included.
        external_inputs: The tensors it starts from: its arguments, and whatever else it consumes.
        internal_tensors: The tensors it produces, except for its outputs.
        boundary_operations: Those of the operations that consume an external input or produce an output.
        outputs: The tensors that leave.
        weights: The initializers it consumes.
    """

    call: str
    operations: tuple[str, ...]
    external_inputs: tuple[str, ...]
    internal_tensors: tuple[str, ...]
    boundary_operations: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]

    def __getitem__(self, key: str) -> Any:
        return dataclasses.asdict(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(dataclasses.asdict(self))

    def __len__(self) -> int:
        return len(dataclasses.fields(self))


@reads_files()
def extract_module(path_or_model: ModelSource, target: str, *, hierarchy: HierarchySource | None = None) -> ir.Model:
    """Extract one module call from an exported model, as a model of its own.

    Its inputs are the module's own arguments, its outputs the module's own results. Weights in other files stay there
    until they are read.

    Args:
        path_or_model: The file, the result of `modelexport.load`, or the model itself.
        target: A module path, a call (``blk@1``), an alias, a tag, or a pattern that picks one call.
        hierarchy: The document, its content, or the sidecar's path; None takes what belongs to the model.

    Returns:
        The submodel, with its hierarchy in its nodes.

    Raises:
        ExtractionError: The module cannot be extracted; has the reason.
        InputError: The model or the hierarchy cannot be used.
        FileFormatError: The file is not an ONNX model, or its sidecar is damaged.
    """
    return Extractor(path_or_model, hierarchy).extract(target).model


def extract_module_subgraph(
    onnx_model: ModelSource, hierarchy_metadata: HierarchySource | None, target_module: str
) -> ModuleSubgraph:
    """The part of a graph that computes one module call.

    Args:
        onnx_model: The model, or its file.
        hierarchy_metadata: The document, its content, or the sidecar's path; None takes what belongs to the model.
        target_module: A module path, a call (``blk@1``), an alias, a tag, or a pattern that picks one call.

    Raises:
        ExtractionError: Its part of the graph cannot be determined; has the reason.
        InputError: The model or the hierarchy cannot be used.
        FileFormatError: The file is not an ONNX model, or its sidecar is damaged.
    """
    return Extractor(onnx_model, hierarchy_metadata).subgraph(target_module)


def _open(source: ModelSource, hierarchy: HierarchySource | None) -> tuple[ir.Model, HierarchyDocument, str]:
    """The model, its hierarchy, and a description of what the hierarchy lacks."""
    if isinstance(source, str | Path):
        source = load(source)
    if isinstance(source, onnx.ModelProto):
        source = ir.from_proto(source)
    if not isinstance(source, ir.Model | LoadedModel):
        raise InputError(
            f"a module is extracted from a file, an onnx_ir.Model or an onnx.ModelProto, not {type(source).__name__}"
        )
    model = source.model if isinstance(source, LoadedModel) else source
    if hierarchy is not None:
        document = _read_hierarchy(hierarchy)
        if document.graph_hash != graph_hash(model):
            raise InputError("the hierarchy describes another graph than this model: give the one it was exported with")
        if {record.id for record in document.nodes} != {identity for identity, _ in nodes_with_ids(model)}:
            raise InputError("the hierarchy does not have the nodes of the model: give the one it was exported with")
        return model, document, ""
    if isinstance(source, LoadedModel) and source.document is not None:
        return model, source.document, ""
    reason = source.missing if isinstance(source, LoadedModel) else "no sidecar was given"
    try:
        if isinstance(source, LoadedModel):
            found = recover_document(source.proto, source.nodes, model, source.graph_hash)
        else:
            found = recover_document(ir.to_proto(model), model=model)
    except FileFormatError as error:
        raise InputError(
            f"the model carries no hierarchy ({error}): export it with modelexport, tag it first (modelexport tag), or "
            "give the hierarchy that belongs to it"
        ) from error
    details = "; ".join(found.missing)
    missing = f"{reason}, so the names of arguments and results are unknown{f'; {details}' if details else ''}"
    return model, found.document, missing


def _read_hierarchy(hierarchy: HierarchySource) -> HierarchyDocument:
    if isinstance(hierarchy, HierarchyDocument):
        return hierarchy
    if isinstance(hierarchy, str | Path):
        return read_sidecar(Path(hierarchy))
    if isinstance(hierarchy, Mapping):
        return decode_document(msgspec.json.encode(hierarchy), "the hierarchy")
    raise InputError(
        f"a hierarchy is a HierarchyDocument, its content, or the path of a sidecar, not {type(hierarchy).__name__}"
    )
