"""export_model and the exporter classes: the pipeline as a list of steps."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import onnx
import onnx_ir as ir
import torch

from modelexport.capture import Capture, DynamicAxes, check_forward, check_signature, read_module_tree
from modelexport.errors import ContractError, InputError
from modelexport.exporting.export_writer import Tagged, write_artifact
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.gc_pause import gc_paused
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import Attribution, Boundaries, TagView, boundary_paths
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
    AttemptReport,
    Candidate,
    Captured,
    CaptureRequest,
    StrategyRegistry,
    StrategySelector,
    capture_dynamic,
    capture_with_first,
)
from modelexport.torch_support import TURN, evaluation_mode, normalize_inputs, preserved_state

STEPS = ("check", "capture", "attribute", "project", "document", "write")

# Arguments of torch.onnx.export that say what ours say.
_OURS = frozenset({"model", "args", "f", "dynamo"})
# Those that say which axes may have other sizes.
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
    external_data: bool | None = None,
    overwrite: bool = False,
    fx_graph_path: str | Path | None = None,
    jit_graph_path: str | Path | None = None,
    progress: Observer | None = None,
    registry: StrategyRegistry | None = None,
    **torch_options: Any,
) -> ExportResult:
    """Export a model to ONNX with every node attributed to the module call it came from.

    The graph is the one `torch.onnx.export` writes with the same arguments; take our metadata away with
    `strip_hierarchy`, and so are the bytes. Whether it succeeds, fails or is interrupted, the model and torch are
    left as they were, and the files at `output_path` are the old ones whole or the new ones whole.

    Args:
        model: The model. It is exported in evaluation mode unless `training` is set.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: Where to write ``<name>.onnx``; the sidecar ``<name>_hierarchy.json`` goes beside it.
        strategy: Where the evidence comes from; ``"auto"`` tries what there is, in order.
        exporter: Who makes the graph, for strategies that have several; None tries them in order.
        optimize: torch's own flag.
        verbose: torch's own flag: its dynamo exporter prints its progress, its TorchScript exporter writes stack traces
            into the file.
        torch_nn_exceptions: The torch.nn classes that show in tags: names, ``"all"`` or ``"none"``.
        include: Patterns on qualified class names that show in tags in any case.
        exclude: Patterns on qualified class names that do not.
        advanced_resolution: Reason from data flow about nodes that no module call is recorded for; without it they
            fall to the root.
        boundaries: Modules that this reasoning must not cross: paths, classes (``"class:BertLayer"``, or the class),
            or a function that says of a module's information whether it is one.
        dynamic: Axes of the inputs that may have other sizes. ``"auto"`` finds them by running the model, and gives up
            those that torch cannot export; ``{"input_ids": {0: "batch", 1: "length"}}`` names them by the arguments of
            forward (``"pair.left"`` for a part of one). Where the example has a size of one there, it is run with two.
        private: Leave out all source paths and stack traces, torch's own included.
        training: Export the model in the mode it is in.
        allow_specialization: Fall back to tracing also where the model's Python code depends on values of its inputs.
            The file then computes what the example inputs lead to, for all inputs; the notes of the result say where.
        external_data: Weights in a file of their own; None does so only where they need it.
        overwrite: Replace an existing output.
        fx_graph_path: Write the traced FX graph to this file, each node behind its call.
        jit_graph_path: The same for the TorchScript graph of strategy ``"htp"``.
        progress: Called with a `ProgressEvent` when a step begins and ends.
        registry: The strategies to choose from.
        **torch_options: Whatever else `torch.onnx.export` takes: `opset_version`, `dynamic_shapes`,
            `input_names`, `output_names`, `kwargs`, …

    Returns:
        A record of what was done, which is also a mapping.

    Raises:
        InputError: The model, its inputs, an option or the path cannot be used as given.
        ExportError: No strategy could export the model.
        SpecializationError: Tracing could, but would fix values that depend on the inputs: see `allow_specialization`.
        StorageError: The files could not be written.
    """
    run = Pipeline(STEPS, progress)
    with run.step("check"):
        target, dumps = _check_targets(output_path, {"fx": fx_graph_path, "jit": jit_graph_path}, overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        _check_model(model)
        kept_apart = boundary_paths(read_module_tree(model), boundaries) if boundaries != () else frozenset()
        policy = InferencePolicy(advanced_resolution, kept_apart)
        sizes_vary = any(value is not None for value in (dynamic, *(torch_options.get(name) for name in _DYNAMIC)))
        found = StrategySelector(registry).candidates(strategy, exporter, model, dynamic_shapes=sizes_vary)
        _check_options(torch_options, dynamic)
        args, kwargs = normalize_inputs(example_inputs, torch_options.get("kwargs"))
        check_signature(model, args, kwargs)
        notes = check_forward(model, args, kwargs, training=training)
        tracing = {k: v for k, v in torch_options.items() if k != "kwargs"}
        tracing |= {"optimize": optimize, "verbose": verbose}
        request = CaptureRequest(model, args, kwargs, tracing, "", training, allow_specialization)
    with run.step("capture") as note:
        captured = _capture(found, request, dynamic)
        capture, served = captured.capture, captured.attempts[-1]
        note.detail = f"{capture.exporter}, {len(capture.calls)} calls"
        _check_dumps(dumps, capture, served)
    with run.step("attribute"):
        owners = infer_missing(capture.original_graph, capture.recorded, capture.calls, policy)
    with run.step("project"):
        projection = _project(capture, owners, policy)
    with run.step("document") as note:
        tagged = _document(capture, projection, served.strategy, view)
        note.detail = f"{len(tagged.document.nodes)} nodes"
        if private:
            remove_source_references(tagged.model)
        write_stores(tagged.model, tagged.document)
    with run.step("write"), contextlib.ExitStack() as stack:
        for dump in dumps.values():
            stack.enter_context(staged_text(dump, capture.graph_text()))
        written = write_artifact(
            tagged, target, external_data=external_data, overwrite=overwrite, options=torch_options
        )
    return ExportResult(
        onnx_path=target,
        sidecar_path=sidecar_path(target),
        files=(*written, *dumps.values()),
        document=tagged.document,
        attempts=captured.attempts,
        steps=tuple(run.reports),
        dynamic_axes=captured.dynamic_axes,
        notes=(*notes, *captured.notes, *capture.notes),
    )


def _check_targets(
    output_path: object, graph_paths: Mapping[str, str | Path | None], overwrite: bool
) -> tuple[Path, dict[str, Path]]:
    """Where the model goes, and where what was traced goes, by the kind of graph."""
    if not isinstance(output_path, str | os.PathLike):
        raise InputError(f"output_path is a {type(output_path).__name__}: give the path of the .onnx file to write")
    target = check_target(Path(output_path), force=overwrite)
    dumps: dict[str, Path] = {}
    for kind, path in graph_paths.items():
        if path is not None:
            taken = (target, sidecar_path(target), *dumps.values())
            dumps[kind] = check_text_target(Path(path), force=overwrite, taken=taken)
    return target, dumps


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        hint = " (a class: create the model first)" if isinstance(model, type) else ""
        raise InputError(f"the model is a {type(model).__name__}{hint}, not a torch.nn.Module: pass the module itself")


def _check_options(options: Mapping[str, Any], dynamic: object) -> None:
    accepted = set(inspect.signature(torch.onnx.export).parameters) - _OURS
    for name in options:
        if name not in accepted:
            close = difflib.get_close_matches(name, sorted(accepted), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see torch.onnx.export for what it takes"
            raise InputError(f"unknown option {name!r}: {hint}")
    opset = options.get("opset_version")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not (isinstance(opset, int) and 1 <= opset <= newest):
        raise InputError(f"opset_version={opset!r} is no opset: choose a number from 1 to {newest}")
    both = [name for name in _DYNAMIC if options.get(name) is not None]
    if dynamic is not None and both:
        raise InputError(f"dynamic and {both[0]} both say which axes may have other sizes: give one of them")


def _capture(found: list[Candidate], request: CaptureRequest, dynamic: DynamicAxes | None) -> Captured:
    if dynamic is None:
        return Captured(*_capture_once(found, request))
    return capture_dynamic(request, dynamic, found, functools.partial(_capture_once, found))


def _capture_once(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[AttemptReport, ...]]:
    with TURN, preserved_state(request.model):
        if request.training:
            return capture_with_first(found, request)
        with evaluation_mode(request.model):
            return capture_with_first(found, request)


def _check_dumps(dumps: Iterable[str], capture: Capture, served: AttemptReport) -> None:
    for kind in dumps:
        if kind != capture.graph_kind:
            raise InputError(
                f"there is no {kind} graph to write: strategy {served.strategy!r} traced the model as a "
                f"{capture.graph_kind} graph; ask for that one, or name the strategy"
            )


@gc_paused()
def _project(capture: Capture, owners: Mapping[ir.Node, Attribution], policy: InferencePolicy) -> Projection:
    """The owners in the final graph; `owners` are those in the graph before optimization."""
    if capture.original_graph is capture.model:
        return Projection(add_contexts(capture.model, owners) if policy.advanced else owners, capture.calls)
    return project(
        capture.original_graph, owners, capture.model, capture.calls, recorded=capture.recorded_in_model, policy=policy
    )


@gc_paused()
def _document(
    capture: Capture,
    projection: Projection,
    strategy: str,
    view: TagView,
) -> Tagged:
    model, final = capture.model, projection.attributions
    nodes = nodes_with_ids(model)
    unowned = [identity for identity, node in nodes if node not in final]
    if unowned:
        raise ContractError(f"{len(unowned)} nodes have no owner, {unowned[0]!r} first: please report this")
    document = build_document(
        strategy=strategy,
        exporter=capture.exporter,
        graph_hash=graph_hash(model),
        view=view,
        tree=capture.tree,
        calls=projection.calls,
        nodes=[(identity, operation(node), final[node]) for identity, node in nodes],
        graph_tensors=tensors_with_ids(model, nodes),
        folded={name: found.owner for name, found in projection.constants.items()},
        axes=projection.renamed(capture.dynamic_sizes),
    )
    if capture.file is None:
        return Tagged(model, document)
    return Tagged(capture.file.skeleton(), document, capture.file)


@final
class HierarchyExporter:
    """Exports with one set of options; see `export_model` for what they are."""

    def __init__(self, strategy: str = AUTO, **options: Any) -> None:
        self._options = {"strategy": strategy, **options}

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return export_model(model, inputs, path, **{**self._options, **options})


@final
class UnifiedExporter:
    """Exports with whatever strategy serves the model."""

    def __init__(self, strategy: str = AUTO, **options: Any) -> None:
        self._exporter = HierarchyExporter(strategy, **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class FXHierarchyExporter:
    """Exports with the `fx` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("fx", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class HTPHierarchyExporter:
    """Exports with the `htp` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("htp", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class UsageBasedExporter:
    """Exports with the `usage_based` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("usage_based", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)
