"""`export_model`, the export pipeline as a list of steps, and the exporter classes around it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import onnx
import onnx_ir as ir
import torch

from modelexport.attempt_report import AttemptReport
from modelexport.capture import Capture, DynamicAxes, check_forward, check_signature, read_module_tree
from modelexport.errors import ContractError, InputError
from modelexport.exporting.export_writer import TaggedModel, write_export
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.gc_pause import gc_paused
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import Attribution, Boundaries, HierarchyDocument, TagView, boundary_paths
from modelexport.ownership import InferencePolicy, Projection, add_contexts, infer_missing, project
from modelexport.storage import (
    build_document,
    check_target,
    check_text_target,
    remove_source_references,
    sidecar_path,
    staged_text,
    write_stores,
)
from modelexport.strategies import (
    AUTO,
    DEFAULT_TIMEOUT,
    Attempts,
    Candidate,
    CaptureRequest,
    FxStrategy,
    HtpStrategy,
    StrategyRegistry,
    StrategySelector,
    UsageBasedStrategy,
    capture_model,
)
from modelexport.torch_support import CopyOnWrite, flattened_names, normalize_inputs

STEPS = ("check", "capture", "attribute", "project", "document", "write")

# Arguments of torch.onnx.export that `export_model` sets itself.
_RESERVED = frozenset({"model", "args", "f", "dynamo"})
# Arguments of torch.onnx.export that declare dynamic axes.
_DYNAMIC = ("dynamic_shapes", "dynamic_axes")


def export_model(
    model: torch.nn.Module,
    example_inputs: object,
    output_path: str | Path,
    *,
    strategy: str = AUTO,
    exporter: str | None = None,
    optimize: bool = True,
    verbose: bool = False,
    torch_nn_exceptions: Iterable[str] | str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    advanced_resolution: bool = True,
    boundaries: Boundaries = (),
    dynamic: DynamicAxes | None = None,
    private: bool = False,
    training: bool = False,
    allow_specialization: bool = False,
    timeout: float | None = DEFAULT_TIMEOUT,
    external_data: bool | None = None,
    overwrite: bool = False,
    fx_graph_path: str | Path | None = None,
    jit_graph_path: str | Path | None = None,
    progress: Observer | None = None,
    registry: StrategyRegistry | None = None,
    **torch_options: Any,
) -> ExportResult:
    """Export a model to ONNX with every node attributed to the module call it came from.

    The graph is the one that `torch.onnx.export` writes with the same arguments; without our metadata
    (`strip_hierarchy`) the bytes are the same too. Whether the export succeeds, fails or is interrupted: the model and
    torch's global state do not change, and the files at `output_path` are completely old or completely new.

    Args:
        model: The model. It is exported in evaluation mode unless `training` is set.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: The ``<name>.onnx`` to write; the sidecar ``<name>_hierarchy.json`` is written next to it.
        strategy: The source of the evidence; ``"auto"`` tries all strategies in order.
        exporter: The exporter that creates the graph; None tries those of the strategy in order.
        optimize: Passed to `torch.onnx.export`.
        verbose: Passed to `torch.onnx.export`: the dynamo exporter prints its progress, the TorchScript exporter
            writes stack traces into the file.
        torch_nn_exceptions: The torch.nn classes that appear in tags: names, ``"all"`` or ``"none"``.
        include: Patterns of qualified class names that always appear in tags.
        exclude: Patterns of qualified class names that never appear in tags.
        advanced_resolution: Infer owners from data flow for nodes without a recorded module call; without it such
            nodes belong to the root.
        boundaries: Modules that this inference must not cross: paths, classes (``"class:BertLayer"``, or the class),
            or a predicate on a module's information.
        dynamic: Dynamic axes of the inputs. ``"auto"`` finds them by running the model, and drops those that torch
            cannot export; ``{"input_ids": {0: "batch", 1: "length"}}`` names them by the arguments of `forward`
            (``"pair.left"`` for a nested tensor). An axis of size 1 in the example is exported with size 2.
        private: Leave out all source paths and stack traces, including those that torch writes.
        training: Export the model in its current mode.
        allow_specialization: Fall back to tracing also where the model's Python code depends on values of its inputs.
            These values then become constants of the example inputs; the notes of the result name the places.
        timeout: Seconds for all attempts together, None for no limit. When they are used up, no further strategy,
            exporter or variant is tried; a running attempt is not interrupted. `result.attempts` lists all.
        external_data: Store weights in a separate file; None does so only where their size requires it.
        overwrite: Replace existing files.
        fx_graph_path: Write the traced FX graph to this file, each node with its module call.
        jit_graph_path: The same for the TorchScript graph of strategy ``"htp"``.
        progress: Called with a `ProgressEvent` when a step begins and ends.
        registry: The strategies to choose from.
        **torch_options: Other arguments of `torch.onnx.export`: `opset_version`, `dynamic_shapes`, `input_names`,
            `output_names`, `kwargs`, … ``output_names="auto"`` names the outputs after the fields of the result
            (``output`` for a single tensor, ``output.0`` for a position in a tuple), with ``output.`` in front where
            another tensor has that name.

    Returns:
        The result, which is also a mapping.

    Raises:
        InputError: The model, its inputs, an option or the path cannot be used as given.
        ExportError: No strategy could export the model.
        SpecializationError: Only tracing could, but it turns values that depend on the inputs into constants: see
            `allow_specialization`.
        StorageError: The files could not be written.
    """
    pipeline = Pipeline(STEPS, progress)
    with pipeline.step("check"):
        target, graph_files = _check_targets(output_path, {"fx": fx_graph_path, "jit": jit_graph_path}, overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        _check_model(model)
        policy = _inference_policy(model, boundaries, advanced_resolution)
        candidates = _candidates(registry, strategy, exporter, model, dynamic, torch_options)
        _check_options(torch_options, dynamic)
        options = {**torch_options, "optimize": optimize, "verbose": verbose}
        request, notes = _request(model, example_inputs, options, training, allow_specialization)
    with pipeline.step("capture") as step:
        attempts = Attempts(timeout)
        captured = capture_model(request, candidates, dynamic, attempts)
        taken = _taken_names(captured.capture.model.graph).intersection(request.result_names)
        if taken:
            # torch gives an output its name even if another tensor has it already: such a file is invalid.
            attempts.reject_last(f"other tensors have the names of its outputs: {', '.join(sorted(taken))}")
            request = dataclasses.replace(request, result_names=_prefixed(request.result_names, taken))
            captured = capture_model(request, candidates, dynamic, attempts)
        capture, attempt = captured.capture, captured.attempts[-1]
        step.detail = f"{capture.exporter}, {len(capture.calls)} calls"
        _check_graph_kinds(graph_files, capture, attempt)
    with pipeline.step("attribute"):
        owners = infer_missing(capture.original_graph, capture.recorded, capture.calls, policy)
    with pipeline.step("project"):
        projection = _project(capture, owners, policy)
    with pipeline.step("document") as step:
        opset_notes = _opset_notes(torch_options.get("opset_version"), capture)
        notes = tuple(dict.fromkeys((*notes, *captured.notes, *capture.notes, *opset_notes)))
        # Notes name source lines of the model.
        document = _build_document(capture, projection, attempt.strategy, view, () if private else notes)
        step.detail = f"{len(document.nodes)} nodes"
        tagged = _tag(capture, document, private)
    with pipeline.step("write"), contextlib.ExitStack() as stack:
        for path in graph_files.values():
            stack.enter_context(staged_text(path, capture.graph_text()))
        written = write_export(tagged, target, external_data=external_data, overwrite=overwrite, options=torch_options)
    return ExportResult(
        onnx_path=target,
        sidecar_path=sidecar_path(target),
        files=(*written, *graph_files.values()),
        document=document,
        attempts=captured.attempts,
        steps=tuple(pipeline.reports),
        dynamic_axes=captured.dynamic_axes,
        notes=notes,
    )


def _check_targets(
    output_path: object, graph_paths: Mapping[str, str | Path | None], overwrite: bool
) -> tuple[Path, dict[str, Path]]:
    """The path of the model, and the paths of the traced graphs by kind."""
    if not isinstance(output_path, str | os.PathLike):
        raise InputError(f"output_path is a {type(output_path).__name__}: give the path of the .onnx file to write")
    target = check_target(Path(output_path), force=overwrite)
    graph_files: dict[str, Path] = {}
    for kind, path in graph_paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InputError(f"{kind}_graph_path is a {type(path).__name__}: give the path of the file to write")
        if path is not None:
            taken = (target, sidecar_path(target), *graph_files.values())
            graph_files[kind] = check_text_target(Path(path), force=overwrite, taken=taken)
    return target, graph_files


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        hint = " (a class: create the model first)" if isinstance(model, type) else ""
        raise InputError(f"the model is a {type(model).__name__}{hint}, not a torch.nn.Module: pass the module itself")


def _check_options(options: Mapping[str, Any], dynamic: object) -> None:
    accepted = set(inspect.signature(torch.onnx.export).parameters) - _RESERVED
    for name in options:
        if name not in accepted:
            close = difflib.get_close_matches(name, sorted(accepted), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see the arguments of torch.onnx.export"
            raise InputError(f"unknown option {name!r}: {hint}")
    opset = options.get("opset_version")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not (type(opset) is int and 1 <= opset <= newest):
        raise InputError(f"opset_version={opset!r} is not an opset: choose a number from 1 to {newest}")
    for name in ("input_names", "output_names"):
        given = options.get(name)
        is_names = isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)
        if given is not None and not is_names and (name, given) != ("output_names", AUTO):
            raise InputError(f"{name}={given!r} is not a list of names: write {name}=['name']")
    declared = [name for name in _DYNAMIC if options.get(name) is not None]
    if dynamic is not None and declared:
        raise InputError(f"dynamic and {declared[0]} both declare dynamic axes: give one of them")


def _inference_policy(model: torch.nn.Module, boundaries: Boundaries, advanced: bool) -> InferencePolicy:
    paths = boundary_paths(read_module_tree(model), boundaries) if boundaries != () else frozenset()
    return InferencePolicy(advanced, paths)


def _candidates(
    registry: StrategyRegistry | None,
    strategy: str,
    exporter: str | None,
    model: torch.nn.Module,
    dynamic: DynamicAxes | None,
    torch_options: Mapping[str, Any],
) -> list[Candidate]:
    if registry is not None and not isinstance(registry, StrategyRegistry):
        raise InputError(f"registry={registry!r} is a {type(registry).__name__}: give a modelexport.StrategyRegistry")
    has_dynamic_axes = dynamic is not None or any(torch_options.get(name) is not None for name in _DYNAMIC)
    return StrategySelector(registry).candidates(strategy, exporter, model, dynamic_shapes=has_dynamic_axes)


def _request(
    model: torch.nn.Module, example_inputs: object, options: dict[str, Any], training: bool, specialize: bool
) -> tuple[CaptureRequest, tuple[str, ...]]:
    """The request, and notes on the example inputs, which are checked."""
    args, kwargs = normalize_inputs(example_inputs, options.pop("kwargs", None), model)
    check_signature(model, args, kwargs)
    names: list[str] = []
    written = CopyOnWrite(model)
    notes = check_forward(
        model,
        args,
        kwargs,
        training=training,
        on_result=lambda result: names.extend(flattened_names(result)),
        written=written,
    )
    result_names: tuple[str, ...] = ()
    if options.get("output_names") == AUTO:
        del options["output_names"]
        # Inputs have the names of forward's arguments, and initializers those of parameters and buffers.
        arguments = (argument.name for argument in read_module_tree(model)[""].forward_arguments)
        result_names = _prefixed(names, {*arguments, *(options.get("input_names") or ()), *model.state_dict()})
    request = CaptureRequest(
        model, args, kwargs, options, "", training, specialize, written=written, result_names=result_names
    )
    return request, notes


def _prefixed(names: Iterable[str], taken: Collection[str]) -> tuple[str, ...]:
    return tuple(f"output.{name}" if name in taken else name for name in names)


def _taken_names(graph: ir.Graph) -> set[str]:
    """The names of all tensors of the main graph that are not its outputs."""
    outputs = {id(value) for value in graph.outputs}
    produced = (value for node in graph for value in node.outputs)
    return {
        value.name or ""
        for value in (*graph.inputs, *graph.initializers.values(), *produced)
        if id(value) not in outputs
    }


def _opset_notes(wanted: int | None, capture: Capture) -> tuple[str, ...]:
    """torch exports with its own opset, and keeps it where it cannot convert the graph to the requested one."""
    written = capture.model.opset_imports.get("")
    if wanted is None or written == wanted:
        return ()
    note = (
        f"the file has opset {written} instead of {wanted}, to which the {capture.exporter} exporter cannot convert it"
    )
    return (f"{note}. The TorchScript exporter (strategy htp) writes older opsets itself",)


def _check_graph_kinds(kinds: Iterable[str], capture: Capture, attempt: AttemptReport) -> None:
    for kind in kinds:
        if kind != capture.graph_kind:
            raise InputError(
                f"there is no {kind} graph to write: strategy {attempt.strategy!r} does not trace one; "
                f"choose strategy {'htp' if kind == 'jit' else 'fx'!r}, or omit {kind}_graph_path"
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
    capture: Capture, projection: Projection, strategy: str, view: TagView, notes: tuple[str, ...]
) -> HierarchyDocument:
    model, final = capture.model, projection.attributions
    nodes = nodes_with_ids(model)
    unowned = [node_id for node_id, node in nodes if node not in final]
    if unowned:
        raise ContractError(f"{len(unowned)} nodes have no owner, {unowned[0]!r} first: please report this")
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
    )


def _tag(capture: Capture, document: HierarchyDocument, private: bool) -> TaggedModel:
    """Write the document into the metadata of the model, or of the skeleton of the exporter's own file."""
    model = capture.model if capture.file is None else capture.file.skeleton()
    if private:
        remove_source_references(model)
    write_stores(model, document)
    return TaggedModel(model, document, capture.file)


class HierarchyExporter:
    """Exports models with fixed options; see `export_model` for the options.

    Args:
        strategy: The strategy; None for the class's own default.
        **options: Further options of `export_model`.
    """

    default_strategy: ClassVar[str] = AUTO

    def __init__(self, strategy: str | None = None, **options: Any) -> None:
        self._options = {"strategy": self.default_strategy if strategy is None else strategy, **options}

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` override those of the exporter."""
        return export_model(model, inputs, path, **{**self._options, **options})


@final
class UnifiedExporter(HierarchyExporter):
    """Exports with the first strategy that succeeds."""


@final
class FXHierarchyExporter(HierarchyExporter):
    """Exports with the `fx` strategy."""

    default_strategy = FxStrategy.name


@final
class HTPHierarchyExporter(HierarchyExporter):
    """Exports with the `htp` strategy."""

    default_strategy = HtpStrategy.name


@final
class UsageBasedExporter(HierarchyExporter):
    """Exports with the `usage_based` strategy."""

    default_strategy = UsageBasedStrategy.name
